//! The files of a run: jobs.csv, events.jsonl, summary.json and report.html in one directory.

mod read;
mod write;

pub use read::read;
pub use write::{Summaries, write};

const SUMMARY: &str = "summary.json";
const JOBS: &str = "jobs.csv";
const EVENTS: &str = "events.jsonl";
pub const REPORT: &str = "report.html";

const FINISHED: &str = "COMPLETED_SUCCESSFULLY";
const CANCELLED: &str = "COMPLETED_KILLED";
