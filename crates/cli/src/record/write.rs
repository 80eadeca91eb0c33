//! Writes rows to files.

use std::io::Write;

use hither_core::record::{EventRow, Header, JobRow, JobState, RunRecord, Summary};
use hither_data::Output;
use hither_report::Group;
use hither_sched::topo::hostlist;
use serde::Serialize;

use super::{CANCELLED, COLUMNS, EVENTS, FINISHED, JOBS, REPORT, SUMMARY};
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
    struct Line<'a> {
        policy: &'a str,
        #[serde(flatten)]
        row: &'a EventRow,
    }
    for run in runs {
        let policy = &run.summary.policy;
        for row in &run.events {
            serde_json::to_writer(&mut *out, &Line { policy, row })?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

fn jobs(out: &mut dyn Write, header: &Header, runs: &[RunRecord]) -> anyhow::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(COLUMNS)?;
    for run in runs {
        for job in &run.jobs {
            csv.write_record(cells(&run.summary.policy, header, job))?;
        }
    }
    csv.flush()?;
    Ok(())
}

fn cells(policy: &str, header: &Header, job: &JobRow) -> [String; 22] {
    let finished = job.state == JobState::Finished;
    let turnaround_s = job.jct_s();
    let machine = |&(id, _): &(u32, u32)| header.cluster.machines[id as usize].name.as_str();
    let hosts: Vec<&str> = job.machines.iter().map(machine).collect();
    // A job that never ran has no start and no stretch.
    let or_empty = |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
    [
        policy.into(),
        job.name.clone(),
        header.trace.clone(),
        job.submit_s.to_string(),
        job.gpus.to_string(),
        job.ideal_s.to_string(),
        u8::from(finished).to_string(),
        if finished { FINISHED } else { CANCELLED }.into(),
        or_empty(job.start_s),
        job.run_s.to_string(),
        job.finish_s.to_string(),
        or_empty(job.start_s.map(|start_s| start_s - job.submit_s)),
        turnaround_s.to_string(),
        or_empty((job.run_s > 0.0).then(|| turnaround_s / job.run_s)),
        hostlist(&hosts),
        job.user.clone(),
        job.model.clone(),
        job.tier.to_string(),
        job.preemptions.to_string(),
        job.failures.to_string(),
        job.comm_s.to_string(),
        job.queue_s.to_string(),
    ]
}
