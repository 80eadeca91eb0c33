//! The public Philly trace as one row per job; it names no models and no job ids.

use super::{Intake, Logged, time};
use crate::read::Error;
use crate::read::table::{Others, Table};

pub(super) const COLUMNS: [&str; 5] = ["timestamp", "duration", "num_gpus", "gpu_time", "cluster"];
/// The first three columns identify the format.
pub(super) const REQUIRED: usize = 3;

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let table = Table::open(intake.source, COLUMNS, REQUIRED, Others::Ignore)?;
    for (at, row) in table.rows().enumerate() {
        let (line, [timestamp, duration, gpus, _, cluster]) = row?;
        intake.push_logged(Logged {
            line,
            // The row's number among the jobs: the trace has no ids.
            name: (at + 1).to_string(),
            user: cluster.name_or_empty()?,
            gpus: gpus.gpus()?,
            gpu_type: None,
            submit_s: time::known_epoch_s(&timestamp)?,
            run_s: duration.duration_s()?,
        })?;
    }
    Ok(())
}
