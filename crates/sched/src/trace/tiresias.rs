//! Tiresias' traces: models by name, durations in seconds.

use super::Intake;
use crate::job::{Job, Length, Terms};
use crate::read::Error;
use crate::read::table::{Others, Table};

pub(super) const COLUMNS: [&str; 5] =
    ["job_id", "num_gpu", "submit_time", "model_name", "duration"];

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let table = Table::open(intake.source, COLUMNS, COLUMNS.len(), Others::Ignore)?;
    for row in table.rows() {
        let (line, [id, gpus, submit, model, duration]) = row?;
        let job = Job {
            name: id.name()?,
            user: String::new(),
            gpus: gpus.gpus()?,
            terms: Terms::default(),
            gpu_type: None,
            submit_s: submit.seconds()?,
            length: Length::Seconds(duration.duration_s()?),
            profile: intake.profile(&model)?,
        };
        intake.push(line, job)?;
    }
    Ok(())
}
