//! Slurm's accounting, as `sacct -P` prints it: columns by name, in any order and choice.
//!
//! A job's steps are no jobs. Rows of one id, which `--duplicates` prints for requeued jobs, are one
//! job. The GPUs that a job held (`AllocTRES`) count before those that it requested: they are the load.

use std::collections::HashMap;

use super::{Intake, Logged, time};
use crate::read::Error;
use crate::read::table::{Field, GPUS_MAX, Others, TIME_MAX_S, Table};

const COLUMNS: [&str; 14] = [
    "Submit",
    "JobID",
    "JobIDRaw",
    "User",
    "State",
    "Start",
    "End",
    "Elapsed",
    "ElapsedRaw",
    "NNodes",
    "AllocTRES",
    "AllocGRES",
    "ReqTRES",
    "ReqGRES",
];
const SUBMIT: usize = 0;
const ID: usize = 1;
const ID_RAW: usize = 2;
const USER: usize = 3;
const STATE: usize = 4;
const START: usize = 5;
const END: usize = 6;
const ELAPSED: usize = 7;
const ELAPSED_RAW: usize = 8;
const NODES: usize = 9;
const ALLOC_TRES: usize = 10;
const ALLOC_GRES: usize = 11;
const REQ_TRES: usize = 12;
const REQ_GRES: usize = 13;
const HINT: &str = "print one with sacct -a -P -o \
                    JobID,User,State,Submit,Start,End,ElapsedRaw,NNodes,ReqTRES,AllocTRES";
/// States of jobs that have not ended.
const ACTIVE: [&str; 8] = [
    "RUNNING",
    "PENDING",
    "SUSPENDED",
    "COMPLETING",
    "CONFIGURING",
    "RESIZING",
    "STOPPED",
    "REQUEUE_HOLD",
];

/// The separator of a header line of `sacct`; none if the line is not such a header.
pub(super) fn separator(line: &str) -> Option<char> {
    ['|', ',', ';', '\t'].into_iter().find(|&separator| {
        let has = |name: &str| line.split(separator).any(|cell| cell.eq_ignore_ascii_case(name));
        // Hither's own columns are lower-case `job`; no other format has these.
        (has("JobID") || has("JobIDRaw")) && (separator == '|' || has("Submit"))
    })
}

/// One job, put together from its rows.
struct SacctJob {
    line: u64,
    name: String,
    user: String,
    submit_s: f64,
    gpus: u64,
    gpu_type: Option<String>,
    run_s: f64,
    is_active: bool,
    has_started: bool,
}

type Row<'a> = [Field<'a>; COLUMNS.len()];

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let source = intake.source;
    let header = source.lines().next().map_or("", |(_, line)| line);
    let separator = separator(header).unwrap_or('|');
    let table = Table::separated(source, separator, COLUMNS, 1, Others::Ignore)
        .map_err(|error| error.hint(HINT))?;
    let some_of = |columns: &[usize]| columns.iter().any(|&at| table.has(at));
    for (columns, what) in [
        (&[ID, ID_RAW][..], "JobID"),
        (&[ALLOC_TRES, ALLOC_GRES, REQ_TRES, REQ_GRES], "AllocTRES (or ReqTRES)"),
        (&[ELAPSED_RAW, ELAPSED, END], "ElapsedRaw (or Elapsed, or Start and End)"),
    ] {
        if !some_of(columns) {
            return Err(table.missing(what).hint(HINT));
        }
    }
    if !some_of(&[ELAPSED_RAW, ELAPSED]) && !table.has(START) {
        return Err(table.missing("ElapsedRaw (or Elapsed, or Start and End)").hint(HINT));
    }
    let mut entries: Vec<SacctJob> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    for row in table.rows() {
        let (line, fields) = row.map_err(|error| {
            error.hint("a JobName with the separator in it breaks a row; leave JobName out")
        })?;
        let id = if fields[ID].is_empty() { &fields[ID_RAW] } else { &fields[ID] };
        // 123.batch, 123_4.0, 123+1.extern: steps.
        if id.text.contains('.') {
            continue;
        }
        let entry = entry(line, id, &fields, &table)?;
        match by_name.get(&entry.name) {
            Some(&at) => merge(intake, &mut entries[at], entry),
            None => {
                by_name.insert(entry.name.clone(), entries.len());
                entries.push(entry);
            }
        }
    }
    entries.into_iter().try_for_each(|entry| keep(intake, entry))
}

/// A further row of a job: it was requeued.
fn merge(intake: &mut Intake<'_>, job: &mut SacctJob, row: SacctJob) {
    intake.changed.add("requeued (added to the first row of the job)");
    job.submit_s = job.submit_s.min(row.submit_s);
    job.run_s += row.run_s;
    job.is_active |= row.is_active;
    job.has_started |= row.has_started;
    if row.gpus > 0 {
        (job.gpus, job.gpu_type) = (row.gpus, row.gpu_type);
    }
}

fn keep(intake: &mut Intake<'_>, job: SacctJob) -> Result<(), Error> {
    if job.is_active {
        intake.left_out.add("still running or pending");
    } else if job.gpus == 0 {
        intake.left_out.add("without GPUs");
    } else if !job.has_started {
        intake.left_out.add("that never started");
    } else {
        if job.run_s == 0.0 {
            intake.changed.add("of less than a second (taken as 1 s)");
        }
        intake.push_logged(Logged {
            line: job.line,
            name: job.name,
            user: job.user,
            gpus: job.gpus.min(GPUS_MAX) as u32,
            gpu_type: job.gpu_type,
            submit_s: job.submit_s,
            run_s: if job.run_s == 0.0 { 1.0 } else { job.run_s },
        })?;
    }
    Ok(())
}

fn entry(
    line: u64,
    id: &Field<'_>,
    row: &Row<'_>,
    table: &Table<'_, { COLUMNS.len() }>,
) -> Result<SacctJob, Error> {
    // `CANCELLED by 1000`, and `CANCELLED+` where the column was cut.
    let state = row[STATE].text.split_whitespace().next().unwrap_or("").trim_end_matches('+');
    let start_s = time::epoch_s(&row[START])?;
    let end_s = time::epoch_s(&row[END])?;
    let run_s = run_s(row, start_s, end_s)?;
    let was_cancelled = state.eq_ignore_ascii_case("CANCELLED");
    // `123_[5-9]` stands for the tasks of an array that have not started.
    let never = id.text.contains('[')
        || (table.has(START) && start_s.is_none())
        || (was_cancelled && run_s == 0.0);
    let lacks_end = !table.has(STATE) && table.has(END) && end_s.is_none();
    let (gpus, gpu_type) = gpus(row)?;
    Ok(SacctJob {
        line,
        name: id.name()?,
        user: row[USER].name_or_empty()?,
        submit_s: time::known_epoch_s(&row[SUBMIT])?,
        gpus,
        gpu_type,
        run_s,
        is_active: ACTIVE.iter().any(|active| active.eq_ignore_ascii_case(state)) || lacks_end,
        has_started: !never,
    })
}

fn run_s(row: &Row<'_>, start_s: Option<f64>, end_s: Option<f64>) -> Result<f64, Error> {
    if !time::is_absent(&row[ELAPSED_RAW].text) {
        return row[ELAPSED_RAW].number(0.0, TIME_MAX_S);
    }
    let elapsed = &row[ELAPSED];
    if !time::is_absent(&elapsed.text) {
        return time::parse_elapsed_s(&elapsed.text)
            .ok_or_else(|| elapsed.error("a length such as 1-12:30:00"));
    }
    Ok(start_s.zip(end_s).map_or(0.0, |(start_s, end_s)| (end_s - start_s).max(0.0)))
}

/// The GPUs of a job, and their type where it asked for one.
fn gpus(row: &Row<'_>) -> Result<(u64, Option<String>), Error> {
    let nodes = match time::is_absent(&row[NODES].text) {
        true => 1,
        false => row[NODES].whole(0, GPUS_MAX)?.max(1),
    };
    let asked_tres = tres(&row[REQ_TRES])?;
    // Old Slurm writes requests per node, and what it gave over all nodes.
    let asked_gres = gres(&row[REQ_GRES], nodes)?;
    let gpu_type = asked_tres.gpu_type.or(asked_gres.gpu_type);
    let counts =
        [tres(&row[ALLOC_TRES])?.count, gres(&row[ALLOC_GRES], 1)?.count, asked_tres.count];
    let count = counts.into_iter().find(|&count| count > 0).unwrap_or(asked_gres.count);
    if count > GPUS_MAX {
        return Err(row[ALLOC_TRES].error(format!("at most {GPUS_MAX} GPUs per job")));
    }
    Ok((count, gpu_type))
}

#[derive(Default)]
struct SacctGpus {
    count: u64,
    /// None where no type is named, or several.
    gpu_type: Option<String>,
}

impl SacctGpus {
    fn add(&mut self, gpu_type: Option<&str>, count: u64) {
        self.gpu_type = match (self.count, gpu_type) {
            (0, gpu_type) => gpu_type.map(Into::into),
            _ => None,
        };
        self.count = self.count.saturating_add(count);
    }
}

/// `billing=64,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=512G,node=1`: the plain entry is the sum of the
/// typed ones.
fn tres(field: &Field<'_>) -> Result<SacctGpus, Error> {
    let mut typed = SacctGpus::default();
    let mut all = None;
    for item in field.text.split(',') {
        let Some((key, value)) = item.split_once('=') else { continue };
        let Some(rest) = key.trim().strip_prefix("gres/gpu") else { continue };
        let wrong = || field.error("GPUs such as gres/gpu=8 or gres/gpu:a100=8");
        let count: u64 = value.trim().parse().map_err(|_| wrong())?;
        match rest.strip_prefix(':') {
            Some(gpu_type) => typed.add(Some(gpu_type), count),
            None if rest.is_empty() => all = Some(count),
            // gres/gpumem, gres/gpuutil: other resources.
            None => {}
        }
    }
    Ok(SacctGpus { count: all.unwrap_or(typed.count), gpu_type: typed.gpu_type })
}

/// `gpu:8`, `gpu:a100:8`, `gres:gpu:a100:8(S:0-1)`, among other resources.
fn gres(field: &Field<'_>, nodes: u64) -> Result<SacctGpus, Error> {
    let mut gpus = SacctGpus::default();
    for item in field.text.split(',') {
        let item = item.split('(').next().unwrap_or("").trim();
        let item = item.strip_prefix("gres:").unwrap_or(item);
        let parts: Vec<&str> = item.split(':').collect();
        let (gpu_type, count) = match parts[..] {
            ["gpu"] => (None, "1"),
            ["gpu", count] if count.parse::<u64>().is_ok() => (None, count),
            ["gpu", gpu_type] => (Some(gpu_type), "1"),
            ["gpu", gpu_type, count] => (Some(gpu_type), count),
            _ => continue,
        };
        let wrong = || field.error("GPUs such as gpu:8 or gpu:a100:8");
        let count: u64 = count.parse().map_err(|_| wrong())?;
        gpus.add(gpu_type, count.saturating_mul(nodes));
    }
    Ok(gpus)
}
