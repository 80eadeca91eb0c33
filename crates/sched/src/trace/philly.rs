//! The public Philly trace in the form of one row a job; it names no models and no job ids.

use hither_core::seed;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::table::{Field, Table};
use super::{Error, Intake};
use crate::job::{Job, Length};

pub(super) const COLUMNS: [&str; 5] = ["timestamp", "duration", "num_gpus", "gpu_time", "cluster"];

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let table = Table::open(intake.source, COLUMNS, 3, false)?;
    let mut draws = seed::stream(intake.options.seed, "trace models");
    let mut count = 0u64;
    for row in table.rows() {
        let (line, [timestamp, duration, gpus, _, cluster]) = row?;
        let gpus = gpus.gpus()?;
        let duration_s = duration.duration_s()?;
        count += 1;
        let job = Job {
            // The row's number among the jobs: the trace has no ids.
            name: count.to_string(),
            user: cluster.name_or_empty()?,
            gpus,
            gpu_type: None,
            submit_s: epoch_s(&timestamp)?,
            length: Length::Seconds(duration_s),
            profile: intake.options.library.assign(gpus, duration_s, &mut draws),
        };
        intake.push(line, job)?;
    }
    if count > 0 {
        intake.notes.push(super::assigned_note(count, intake.options.seed));
    }
    Ok(())
}

/// Seconds since 1970; the trace's clock has no time zone, and only differences matter.
fn epoch_s(field: &Field<'_>) -> Result<f64, Error> {
    let wrong = || field.error("a time such as 2017-10-09 07:01:55");
    let civil: DateTime = field.text.parse().map_err(|_| wrong())?;
    let zoned = civil.to_zoned(TimeZone::UTC).map_err(|_| wrong())?;
    Ok(zoned.timestamp().as_duration().as_secs_f64())
}
