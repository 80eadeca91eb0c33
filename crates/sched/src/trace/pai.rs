//! Alibaba's PAI trace of 2020: a table of tasks, and one of jobs for users and submission times.
//!
//! The tables are published without header lines, the headers as files of their own beside them.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{Intake, Logged, time};
use crate::read::Error;
use crate::read::table::{GPUS_MAX, Source, TIME_MAX_S, Table, split};

pub(super) const TASKS: &str = "pai_task_table.csv";
const JOBS: &str = "pai_job_table.csv";
pub(super) const BESIDE: [&str; 3] = ["pai_task_table.header", JOBS, "pai_job_table.header"];

/// The published columns, in the order of the files.
const TASK_COLUMNS: [&str; 10] = [
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
];
const JOB_COLUMNS: [&str; 6] = ["job_name", "inst_id", "user", "status", "start_time", "end_time"];
const STATES: [&str; 4] = ["Terminated", "Failed", "Running", "Waiting"];

/// A row of the table of tasks, for files without a header.
pub(super) fn is_row(line: &str) -> bool {
    let cells: Vec<&str> = line.split(',').collect();
    cells.len() == TASK_COLUMNS.len() && STATES.contains(&cells[3])
}

/// A job, put together from its tasks.
struct PaiJob {
    line: u64,
    name: String,
    /// In hundredths: a task may ask for a part of a GPU.
    gpu_percent: f64,
    start_s: f64,
    end_s: f64,
    is_active: bool,
}

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let source = intake.source;
    let first = source.lines().next().map_or("", |(_, line)| line);
    if super::present(first, &["job_name", "inst_id"]) == 2
        || first.split(',').count() == JOB_COLUMNS.len()
    {
        return Err(Error::about(source.file, format!("has no GPUs: they are in {TASKS}"))
            .hint("give the folder that holds the tables of the trace"));
    }
    let submitted = match intake.table(JOBS) {
        Some(jobs) => Some(submitted(jobs, intake.table("pai_job_table.header"))?),
        None => None,
    };
    let mut entries: Vec<PaiJob> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    let names = ["job_name", "inst_num", "status", "start_time", "end_time", "plan_gpu"];
    let table = open(source, intake.table("pai_task_table.header"), &TASK_COLUMNS, names)?;
    for row in table.rows() {
        let (line, [job, instances, status, start, end, plan]) = row?;
        let amount = |field: &super::Field<'_>, absent: f64, max: f64| {
            if time::is_absent(&field.text) { Ok(absent) } else { field.number(0.0, max) }
        };
        let instances = amount(&instances, 1.0, GPUS_MAX as f64)?;
        let gpu_percent = instances * amount(&plan, 0.0, 100.0 * GPUS_MAX as f64)?;
        let start_s = amount(&start, f64::INFINITY, TIME_MAX_S)?;
        let end_s = amount(&end, f64::NEG_INFINITY, TIME_MAX_S)?;
        let name = job.name()?;
        let at = *by_name.entry(name.clone()).or_insert_with(|| {
            let (start_s, end_s) = (f64::INFINITY, f64::NEG_INFINITY);
            entries.push(PaiJob { line, name, gpu_percent: 0.0, start_s, end_s, is_active: false });
            entries.len() - 1
        });
        let entry = &mut entries[at];
        entry.is_active |= ["Running", "Waiting"].contains(&&*status.text);
        // Parameter servers and the like without GPUs neither add to a job nor prolong it.
        if gpu_percent > 0.0 {
            entry.gpu_percent += gpu_percent;
            entry.start_s = entry.start_s.min(start_s);
            entry.end_s = entry.end_s.max(end_s);
        }
    }
    if submitted.is_none() {
        intake.notes.push(format!(
            "jobs arrive when their first task starts: {JOBS}, which has submissions and users, is \
             not there"
        ));
    }
    entries.into_iter().try_for_each(|entry| keep(intake, entry, submitted.as_ref()))
}

fn keep(
    intake: &mut Intake<'_>,
    entry: PaiJob,
    submitted: Option<&HashMap<String, (String, f64)>>,
) -> Result<(), Error> {
    let PaiJob { line, name, gpu_percent, start_s, end_s, is_active } = entry;
    let why = if is_active {
        Some("still running or waiting")
    } else if gpu_percent == 0.0 {
        Some("without GPUs")
    } else if !(end_s > start_s && start_s.is_finite()) {
        Some("without a start and a later end")
    } else {
        None
    };
    if let Some(why) = why {
        intake.left_out.add(why);
        return Ok(());
    }
    let gpus = (gpu_percent / 100.0).ceil();
    if gpus > GPUS_MAX as f64 {
        let error = intake.source.error(format!("at most {GPUS_MAX} GPUs per job"));
        return Err(error.at(line).found(&gpus.to_string()));
    }
    if gpus * 100.0 != gpu_percent {
        intake.changed.add("with a fraction of a GPU (given whole ones)");
    }
    let known = submitted.and_then(|jobs| jobs.get(&name)).cloned();
    let (user, submit_s) = known.unwrap_or((String::new(), start_s));
    intake.push_logged(Logged {
        line,
        name,
        user,
        gpus: gpus as u32,
        gpu_type: None,
        submit_s: submit_s.min(start_s),
        run_s: end_s - start_s,
    })
}

/// User and submission by job.
fn submitted(
    source: Source<'_>,
    header: Option<Source<'_>>,
) -> Result<HashMap<String, (String, f64)>, Error> {
    let names = ["job_name", "user", "start_time"];
    let mut jobs = HashMap::new();
    for row in open(source, header, &JOB_COLUMNS, names)?.rows() {
        let (_, [job, user, start]) = row?;
        if !time::is_absent(&start.text) {
            jobs.insert(job.name()?, (user.name_or_empty()?, start.seconds()?));
        }
    }
    Ok(jobs)
}

/// A table with a header line, with a header file, or in the published order.
fn open<'a, const N: usize>(
    source: Source<'a>,
    header: Option<Source<'a>>,
    published: &'static [&'static str],
    names: [&'static str; N],
) -> Result<Table<'a, N>, Error> {
    let first = source.lines().next().map_or("", |(_, line)| line);
    if super::present(first, &published[..1]) == 1 {
        return Table::open(source, names, N, crate::read::table::Others::Ignore);
    }
    let beside = header.and_then(|header| header.lines().next());
    let columns = match beside {
        Some((_, line)) => split(line, ',').unwrap_or_default(),
        None => published.iter().map(|&name| Cow::Borrowed(name)).collect(),
    };
    Table::headless(source, columns, names, N)
}
