//! The Standard Workload Format of the Parallel Workloads Archive, version 2.2: 18 numbers a job,
//! −1 for what is not known. Processors are taken for GPUs.

use hither_core::seed;

use super::table::{Field, GPUS_MAX, TIME_MAX_S, width_error};
use super::{Error, Intake, assigned_note};
use crate::job::{Job, Length};

const COLUMNS: [&str; 18] = [
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
];
/// The archive rounds to seconds: 0 means under half a second.
const RUN_MIN_S: f64 = 1.0;

/// A comment, or 18 numbers.
pub(super) fn is_line(line: &str) -> bool {
    line.trim_start().starts_with(';')
        || (line.split_whitespace().count() == COLUMNS.len()
            && line.split_whitespace().all(|word| word.parse::<f64>().is_ok()))
}

/// Rows that the standard itself says are no jobs to run, or not known well enough.
#[derive(Default)]
struct LeftOut {
    unknown: u64,
    partial: u64,
    cancelled: u64,
    rounded_up: u64,
}

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let source = intake.source;
    let mut draws = seed::stream(intake.options.seed, "trace models");
    let mut left_out = LeftOut::default();
    let mut count = 0u64;
    for (line, text) in source.lines() {
        if text.trim_start().starts_with(';') {
            continue;
        }
        let words: Vec<&str> = text.split_whitespace().take(COLUMNS.len() + 1).collect();
        if words.len() != COLUMNS.len() {
            return Err(width_error(source, line, words.len(), COLUMNS.len()));
        }
        let field = |index: usize| Field {
            file: source.file,
            line,
            column: COLUMNS[index],
            text: words[index].into(),
        };
        for index in 0..COLUMNS.len() {
            // Nothing here is used before it is known to be a number, −1 included.
            field(index).number(-1.0, 1e18)?;
        }
        let Some((gpus, run_s)) = usable(&field, &mut left_out)? else { continue };
        count += 1;
        let user = field(11).number(-1.0, 1e15)?;
        let job = Job {
            name: field(0).whole(0, 1 << 53)?.to_string(),
            user: if user < 0.0 { String::new() } else { format!("user{user}") },
            gpus,
            gpu_type: None,
            submit_s: field(1).seconds()?,
            length: Length::Seconds(run_s),
            profile: intake.options.library.assign(gpus, run_s, &mut draws),
        };
        intake.push(line, job)?;
    }
    let LeftOut { unknown, partial, cancelled, rounded_up } = left_out;
    for (number, words) in [
        (unknown, "left out: processors or run time are not known (-1 or 0)"),
        (partial, "left out: parts of jobs that have a row of their own (status 2 to 4)"),
        (cancelled, "left out: cancelled before they ran (status 5)"),
        (rounded_up, "with a run time of 0 run for 1 s"),
    ] {
        if number > 0 {
            intake.notes.push(format!("{number} rows {words}"));
        }
    }
    if count > 0 {
        intake.notes.push(assigned_note(count, intake.options.seed));
    }
    Ok(())
}

/// GPUs and run time of a row; none where it is left out and counted.
fn usable<'a>(
    field: &impl Fn(usize) -> Field<'a>,
    left_out: &mut LeftOut,
) -> Result<Option<(u32, f64)>, Error> {
    let status = field(10).number(-1.0, 1e18)?;
    if [2.0, 3.0, 4.0].contains(&status) {
        left_out.partial += 1;
        return Ok(None);
    }
    let run_s = field(3).number(-1.0, TIME_MAX_S)?;
    if status == 5.0 && run_s <= 0.0 {
        left_out.cancelled += 1;
        return Ok(None);
    }
    // What was asked for decides the placement; what was given stands in where that is unknown.
    let requested = field(7).number(-1.0, 1e18)?;
    let processors = if requested > 0.0 { field(7) } else { field(4) };
    if run_s < 0.0 || processors.number(-1.0, 1e18)? <= 0.0 {
        left_out.unknown += 1;
        return Ok(None);
    }
    let gpus = processors.whole(1, GPUS_MAX)? as u32;
    left_out.rounded_up += u64::from(run_s == 0.0);
    Ok(Some((gpus, if run_s == 0.0 { RUN_MIN_S } else { run_s })))
}
