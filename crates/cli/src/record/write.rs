//! Writes rows to files.

use std::io::Write;

use hither_core::record::{EventRow, Header, JobRow, JobState, RunRecord, Summary};
use hither_data::Output;
use hither_report::Group;
use hither_sched::topo::hostlist;
use serde::Serialize;

use super::{CANCELLED, EVENTS, FINISHED, JOBS, REPORT, SUMMARY};
use crate::outputs::{OutputDir, stage};

/// Writes the four files. All are staged before the first is put in its place, so that a command that
/// is killed leaves the earlier ones as they were.
pub fn write(mut output: OutputDir, header: &Header, runs: &[RunRecord]) -> anyhow::Result<()> {
    output.create()?;
    let dir = output.path();
    let staged = [
        stage(&dir.join(JOBS), |out| jobs(out, header, runs))?,
        stage(&dir.join(EVENTS), |out| events(out, runs))?,
        stage(&dir.join(REPORT), |out| {
            Ok(out.write_all(hither_report::html(&[Group { header, runs }]).as_bytes())?)
        })?,
        stage(&dir.join(SUMMARY), |out| {
            serde_json::to_writer_pretty(&mut *out, &Summaries::new(header, runs))?;
            Ok(out.write_all(b"\n")?)
        })?,
    ];
    Ok(staged.into_iter().try_for_each(Output::commit)?)
}

/// The header and the figures: summary.json, and what `--json` prints.
#[derive(Serialize)]
pub struct Summaries<'a> {
    header: &'a Header,
    runs: Vec<&'a Summary>,
}

impl<'a> Summaries<'a> {
    pub fn new(header: &'a Header, runs: &'a [RunRecord]) -> Self {
        Self { header, runs: runs.iter().map(|run| &run.summary).collect() }
    }
}

fn events(out: &mut dyn Write, runs: &[RunRecord]) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct EventLine<'a> {
        policy: &'a str,
        #[serde(flatten)]
        row: &'a EventRow,
    }
    for run in runs {
        let policy = &run.summary.policy;
        for row in &run.events {
            serde_json::to_writer(&mut *out, &EventLine { policy, row })?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

/// One line of jobs.csv.
struct Line<'a> {
    policy: &'a str,
    header: &'a Header,
    job: &'a JobRow,
}

/// Batsim's columns behind the policy, then what Batsim does not know. Readers go by the names.
type Column = (&'static str, fn(&Line) -> String);
const COLUMNS: &[Column] = &[
    ("policy", |line| line.policy.into()),
    ("job_id", |line| line.job.name.clone()),
    ("workload_name", |line| line.header.trace.clone()),
    ("submission_time", |line| line.job.submit_s.to_string()),
    ("requested_number_of_resources", |line| line.job.gpus.to_string()),
    ("requested_time", |line| line.job.ideal_s.to_string()),
    ("success", |line| u8::from(line.job.state == JobState::Finished).to_string()),
    ("final_state", |line| match line.job.state {
        JobState::Finished => FINISHED.into(),
        JobState::Cancelled => CANCELLED.into(),
    }),
    ("starting_time", |line| or_empty(line.job.start_s)),
    ("execution_time", |line| line.job.run_s.to_string()),
    ("finish_time", |line| line.job.finish_s.to_string()),
    ("waiting_time", |line| or_empty(line.job.start_s.map(|start_s| start_s - line.job.submit_s))),
    ("turnaround_time", |line| line.job.jct_s().to_string()),
    ("stretch", |line| or_empty(stretch(line.job))),
    ("allocated_resources", |line| {
        let machine =
            |&(id, _): &(u32, u32)| line.header.cluster.machines[id as usize].name.as_str();
        hostlist(&line.job.machines.iter().map(machine).collect::<Vec<&str>>())
    }),
    ("user", |line| line.job.user.clone()),
    ("model", |line| line.job.model.clone()),
    // A job without a placement has no tier.
    ("tier", |line| match line.job.machines.is_empty() {
        true => String::new(),
        false => line.job.tier.to_string(),
    }),
    ("preemptions", |line| line.job.preemptions.to_string()),
    ("failures", |line| line.job.failures.to_string()),
    ("communication_time", |line| or_empty(line.job.comm_s)),
    ("queue_time", |line| line.job.queue_s.to_string()),
];

fn or_empty(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Submission to end over the ideal running time; `None` if the job did not finish.
fn stretch(job: &JobRow) -> Option<f64> {
    let has_one = job.state == JobState::Finished && job.ideal_s > 0.0;
    has_one.then(|| job.jct_s() / job.ideal_s)
}

fn jobs(out: &mut dyn Write, header: &Header, runs: &[RunRecord]) -> anyhow::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(COLUMNS.iter().map(|column| column.0))?;
    for run in runs {
        for job in &run.jobs {
            let line = Line { policy: &run.summary.policy, header, job };
            csv.write_record(COLUMNS.iter().map(|(_, cell)| cell(&line)))?;
        }
    }
    csv.flush()?;
    Ok(())
}
