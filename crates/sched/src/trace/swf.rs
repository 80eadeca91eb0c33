//! The Standard Workload Format of the Parallel Workloads Archive, version 2.2: 18 numbers per
//! job, −1 for unknown values. Processors count as GPUs.

use super::{Intake, Logged};
use crate::read::Error;
use crate::read::table::{Field, GPUS_MAX, TIME_MAX_S, width_error};

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

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let source = intake.source;
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
        let Some((gpus, run_s)) = usable(&field, intake)? else { continue };
        let user = field(11).number(-1.0, 1e15)?;
        intake.push_logged(Logged {
            line,
            name: field(0).whole(0, 1 << 53)?.to_string(),
            user: if user < 0.0 { String::new() } else { format!("user{user}") },
            gpus,
            gpu_type: None,
            submit_s: field(1).seconds()?,
            run_s,
        })?;
    }
    Ok(())
}

/// GPUs and run time of a row; none where the standard says that the row is not a job to run, or
/// where one of the two is unknown.
fn usable<'a>(
    field: &impl Fn(usize) -> Field<'a>,
    intake: &mut Intake<'_>,
) -> Result<Option<(u32, f64)>, Error> {
    let status = field(10).number(-1.0, 1e18)?;
    if [2.0, 3.0, 4.0].contains(&status) {
        intake.left_out.add("that are parts of other jobs (status 2 to 4)");
        return Ok(None);
    }
    let run_s = field(3).number(-1.0, TIME_MAX_S)?;
    if status == 5.0 && run_s <= 0.0 {
        intake.left_out.add("cancelled before they ran (status 5)");
        return Ok(None);
    }
    // The request decides the placement; the allocation stands in where the request is unknown.
    let requested = field(7).number(-1.0, 1e18)?;
    let processors = if requested > 0.0 { field(7) } else { field(4) };
    if run_s < 0.0 || processors.number(-1.0, 1e18)? <= 0.0 {
        intake.left_out.add("with unknown processors or run time (-1 or 0)");
        return Ok(None);
    }
    let gpus = processors.whole(1, GPUS_MAX)? as u32;
    if run_s == 0.0 {
        intake.changed.add("with a run time of 0 (taken as 1 s)");
    }
    Ok(Some((gpus, if run_s == 0.0 { RUN_MIN_S } else { run_s })))
}
