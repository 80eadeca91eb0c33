//! Hither's own CSV: one row per job, one of `iterations` and `duration_s` filled.

use std::fmt::Write as _;

use super::Intake;
use crate::job::{Job, Length, Terms};
use crate::read::Error;
use crate::read::table::{Others, Table, quote};

pub(super) const COLUMNS: [&str; 8] =
    ["job", "gpus", "submit_s", "duration_s", "iterations", "model", "user", "gpu_type"];
/// The first three columns identify the format; `duration_s` and `iterations` may miss one.
pub(super) const REQUIRED: usize = 3;

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let table = Table::open(intake.source, COLUMNS, REQUIRED, Others::Refuse)?;
    for row in table.rows() {
        let (line, [job, gpus, submit, duration, iterations, model, user, gpu_type]) = row?;
        let gpus = gpus.gpus()?;
        let length = match (duration.is_empty(), iterations.is_empty()) {
            (false, true) => Length::Seconds(duration.duration_s()?),
            (true, false) => Length::Iterations(iterations.iterations()?),
            (true, true) => return Err(duration.error("either duration_s or iterations")),
            (false, false) => return Err(iterations.error("nothing, as duration_s is filled")),
        };
        let profile = match length {
            Length::Seconds(seconds) if model.is_empty() => intake.draw(gpus, seconds),
            _ if model.is_empty() => {
                return Err(model.error("a model, as the length is in iterations"));
            }
            _ => intake.profile(&model)?,
        };
        let gpu_type = gpu_type.name_or_empty()?;
        let job = Job {
            name: job.name()?,
            user: user.name_or_empty()?,
            gpus,
            terms: Terms::default(),
            gpu_type: (!gpu_type.is_empty()).then_some(gpu_type),
            submit_s: submit.seconds()?,
            length,
            profile,
        };
        intake.push(line, job)?;
    }
    Ok(())
}

/// Jobs as a CSV that [`super::read`] takes back unchanged.
pub fn write(jobs: &[Job]) -> String {
    let mut text = String::with_capacity(64 * (jobs.len() + 1));
    text.push_str("job,user,gpus,gpu_type,submit_s,model,iterations,duration_s\n");
    for job in jobs {
        let (iterations, duration) = match job.length {
            Length::Iterations(count) => (count.to_string(), String::new()),
            Length::Seconds(seconds) => (String::new(), seconds.to_string()),
            Length::Unknown => (String::new(), String::new()),
        };
        writeln!(
            text,
            "{},{},{},{},{},{},{iterations},{duration}",
            quote(&job.name),
            quote(&job.user),
            job.gpus,
            quote(job.gpu_type.as_deref().unwrap_or("")),
            job.submit_s,
            quote(&job.profile.name),
        )
        .expect("writing to a string does not fail");
    }
    text
}
