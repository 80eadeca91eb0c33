//! Reads the files of a run back into rows, or fails with one error that names the place.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context as _, anyhow, bail, ensure};
use csv::StringRecord;
use hither_core::record::{EventRow, Happening, Header, JobRow, JobState, RunRecord, Summary};
use hither_core::topology::LEVELS_MAX;
use serde::Deserialize;

use super::{CANCELLED, EVENTS, FINISHED, JOBS, SUMMARY};
use crate::inputs::text;

#[derive(Deserialize)]
struct Summaries {
    header: Header,
    runs: Vec<Summary>,
}

/// A directory that `hither simulate -o` wrote. Last placements are not read back.
pub fn read(dir: &Path) -> anyhow::Result<(Header, Vec<RunRecord>)> {
    let path = dir.join(SUMMARY);
    let summaries: Summaries = serde_json::from_str(&text(&path)?).map_err(|error| {
        anyhow!("{}:{}: {error}; was it written by hither simulate?", path.display(), error.line())
    })?;
    let Summaries { header, runs } = summaries;
    if let Some(name) = header.cluster.stray() {
        bail!("{}: {name} is in a place that is not listed", path.display());
    }
    let mut index = HashMap::new();
    for (at, run) in runs.iter().enumerate() {
        if index.insert(run.policy.clone(), at).is_some() {
            bail!("{}: policy {} is listed twice", path.display(), run.policy);
        }
    }
    let empty = |summary| RunRecord { summary, jobs: Vec::new(), events: Vec::new() };
    let mut runs: Vec<RunRecord> = runs.into_iter().map(empty).collect();
    read_jobs(&dir.join(JOBS), &index, &mut runs)?;
    read_events(&dir.join(EVENTS), &header, &index, &mut runs)?;
    Ok((header, runs))
}

fn read_jobs(
    path: &Path,
    index: &HashMap<String, usize>,
    runs: &mut [RunRecord],
) -> anyhow::Result<()> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    let mut csv = csv::Reader::from_reader(BufReader::new(file));
    let at = |error: csv::Error| match error.position() {
        Some(position) => anyhow!("{shown}:{}: {error}", position.line()),
        None => anyhow!("{shown}: {error}"),
    };
    let columns = Columns::new(csv.headers().map_err(at)?);
    columns.check().map_err(|error| anyhow!("{shown}:1: {error}"))?;
    for record in csv.records() {
        let record = record.map_err(at)?;
        let line = record.position().map_or(0, csv::Position::line);
        let policy = columns.cell(&record, "policy");
        let run = index
            .get(policy)
            .with_context(|| format!("{shown}:{line}: policy {policy:?} is not in {SUMMARY}"))?;
        let jobs = &mut runs[*run].jobs;
        let row = job_row(jobs.len() as u32, &columns, &record)
            .map_err(|error| anyhow!("{shown}:{line}: {error:#}"))?;
        jobs.push(row);
    }
    for run in runs.iter() {
        let Summary { policy, jobs, .. } = &run.summary;
        let found = run.jobs.len() as u64;
        ensure!(
            found == *jobs,
            "{shown}: {found} jobs of {policy}, and {SUMMARY} has {jobs}; is the file truncated?"
        );
    }
    Ok(())
}

/// Where the columns are. A file may have further ones, in any order; it may lack those that were
/// added later, whose cells are then empty.
struct Columns(HashMap<String, usize>);

/// Columns without which a row says nothing.
const NEEDED: [&str; 12] = [
    "policy",
    "job_id",
    "user",
    "model",
    "requested_number_of_resources",
    "submission_time",
    "starting_time",
    "finish_time",
    "execution_time",
    "queue_time",
    "requested_time",
    "final_state",
];

impl Columns {
    fn new(head: &StringRecord) -> Self {
        Self(head.iter().zip(0..).map(|(name, at)| (name.to_owned(), at)).collect())
    }

    fn check(&self) -> anyhow::Result<()> {
        match NEEDED.iter().find(|name| !self.0.contains_key(**name)) {
            Some(name) => bail!("no column {name}; was it written by hither simulate?"),
            None => Ok(()),
        }
    }

    fn cell<'a>(&self, record: &'a StringRecord, name: &str) -> &'a str {
        self.0.get(name).and_then(|&at| record.get(at)).unwrap_or("")
    }
}

fn job_row(job: u32, columns: &Columns, record: &StringRecord) -> anyhow::Result<JobRow> {
    let cell = |name: &str| columns.cell(record, name);
    let wrong = |name: &str, expected: &dyn Display| {
        anyhow!("column {name}: found {:?}, expected {expected}", cell(name))
    };
    let seconds = |name: &str| match cell(name).parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(wrong(name, &"a number of at least 0")),
    };
    let whole = |name: &str, max: u32| match cell(name).parse::<u32>() {
        Ok(value) if value <= max => Ok(value),
        _ => Err(wrong(name, &format!("a whole number from 0 to {max}"))),
    };
    let if_any = |name: &str| match cell(name) {
        "" => Ok(None),
        _ => seconds(name).map(Some),
    };
    let count = |name: &str, max: u32| match cell(name) {
        "" => Ok(0),
        _ => whole(name, max),
    };
    Ok(JobRow {
        job,
        name: cell("job_id").into(),
        user: cell("user").into(),
        model: cell("model").into(),
        gpus: whole("requested_number_of_resources", 10_000_000)?,
        submit_s: seconds("submission_time")?,
        start_s: if_any("starting_time")?,
        finish_s: seconds("finish_time")?,
        run_s: seconds("execution_time")?,
        queue_s: seconds("queue_time")?,
        comm_s: if_any("communication_time")?,
        ideal_s: seconds("requested_time")?,
        tier: count("tier", LEVELS_MAX as u32 - 1)? as u8,
        preemptions: count("preemptions", u32::MAX)?,
        failures: count("failures", u32::MAX)?,
        state: match cell("final_state") {
            FINISHED => JobState::Finished,
            CANCELLED => JobState::Cancelled,
            _ => return Err(wrong("final_state", &format!("{FINISHED} or {CANCELLED}"))),
        },
        machines: Vec::new(),
    })
}

#[derive(Deserialize)]
struct EventLine {
    policy: String,
    #[serde(flatten)]
    row: EventRow,
}

fn read_events(
    path: &Path,
    header: &Header,
    index: &HashMap<String, usize>,
    runs: &mut [RunRecord],
) -> anyhow::Result<()> {
    let shown = path.display();
    let cannot = || format!("cannot read {shown}");
    let file = File::open(path).with_context(cannot)?;
    for (line, text) in (1u64..).zip(BufReader::new(file).lines()) {
        let text = text.with_context(cannot)?;
        let parsed: EventLine =
            serde_json::from_str(&text).map_err(|error| anyhow!("{shown}:{line}: {error}"))?;
        let Some(&run) = index.get(&parsed.policy) else {
            bail!("{shown}:{line}: policy {:?} is not in {SUMMARY}", parsed.policy);
        };
        let run = &mut runs[run];
        check_event(&parsed.row, header, run)
            .map_err(|error| anyhow!("{shown}:{line}: {error}"))?;
        run.events.push(parsed.row);
    }
    for run in runs.iter().filter(|run| !run.events.is_empty()) {
        let Summary { policy, finished, .. } = &run.summary;
        let is_finish = |row: &&EventRow| matches!(row.what, Happening::Finish { .. });
        let found = run.events.iter().filter(is_finish).count() as u64;
        ensure!(
            found == *finished,
            "{shown}: {found} jobs of {policy} finish, and in {SUMMARY} {finished} do; \
             is the file truncated?"
        );
    }
    Ok(())
}

/// Whether the event names known jobs and machines, and times that do not go back.
fn check_event(row: &EventRow, header: &Header, run: &RunRecord) -> anyhow::Result<()> {
    let last_s = run.events.last().map_or(0.0, |last| last.t);
    ensure!(row.t.is_finite() && row.t >= last_s, "time {} comes after {last_s}", row.t);
    let job_there = |job: u32| {
        let jobs = run.jobs.len();
        ensure!((job as usize) < jobs, "job {job} of {jobs} jobs");
        Ok(())
    };
    let machine_there = |id: u32, gpus: u32| {
        let machines = &header.cluster.machines;
        let machine = machines.get(id as usize);
        let machine = machine.with_context(|| format!("machine {id} of {}", machines.len()))?;
        ensure!(gpus <= machine.gpus, "{gpus} GPUs on a machine of {}", machine.gpus);
        Ok(())
    };
    match &row.what {
        Happening::Arrive { job, .. }
        | Happening::Decline { job, .. }
        | Happening::Preempt { job, .. }
        | Happening::Finish { job }
        | Happening::Cancel { job } => job_there(*job),
        Happening::Start { job, tier, machines, .. } => {
            job_there(*job)?;
            let levels = header.cluster.levels.len();
            ensure!(usize::from(*tier) < levels, "tier {tier} of {levels}, counted from 0");
            machines.iter().try_for_each(|&(id, gpus)| machine_there(id, gpus))
        }
        Happening::MachineDown { machine } | Happening::MachineUp { machine } => {
            machine_there(*machine, 0)
        }
        Happening::Timers { .. } => Ok(()),
        Happening::Links { mean, busiest } => {
            let links = header.cluster.levels.len().saturating_sub(1);
            let is_load = |load: &f64| (0.0..=1.0 + 1e-9).contains(load);
            let are_loads = |loads: &[f64]| loads.len() == links && loads.iter().all(is_load);
            ensure!(
                are_loads(mean) && are_loads(busiest),
                "links: expected {links} shares from 0 to 1, one for each level but the last"
            );
            Ok(())
        }
    }
}
