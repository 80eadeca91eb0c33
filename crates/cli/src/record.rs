//! The files of a run: jobs.csv, events.jsonl, summary.json and report.html in one directory.

mod read;
mod write;

pub use read::read;
pub use write::{Summaries, write};

const SUMMARY: &str = "summary.json";
const JOBS: &str = "jobs.csv";
const EVENTS: &str = "events.jsonl";
pub const REPORT: &str = "report.html";

/// Batsim's columns behind the policy, then what Batsim does not know.
const COLUMNS: [&str; 22] = [
    "policy",
    "job_id",
    "workload_name",
    "submission_time",
    "requested_number_of_resources",
    "requested_time",
    "success",
    "final_state",
    "starting_time",
    "execution_time",
    "finish_time",
    "waiting_time",
    "turnaround_time",
    "stretch",
    "allocated_resources",
    "user",
    "model",
    "tier",
    "preemptions",
    "failures",
    "communication_time",
    "queue_time",
];

const FINISHED: &str = "COMPLETED_SUCCESSFULLY";
const CANCELLED: &str = "COMPLETED_KILLED";
