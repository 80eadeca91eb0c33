//! Gavel's traces: tab separated, without a header, models by name and batch size.

use std::collections::HashMap;
use std::sync::Arc;

use super::Intake;
use crate::job::{Job, Length, Profile, Terms};
use crate::read::Error;
use crate::read::table::{Field, ITERATIONS_MAX, TIME_MAX_S, TINY, width_error};

const COLUMNS: [&str; 10] = [
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
];

pub(super) fn is_line(line: &str) -> bool {
    line.split('\t').count() == COLUMNS.len()
}

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let source = intake.source;
    let mut profiles: HashMap<(String, u32), Arc<Profile>> = HashMap::new();
    let mut count = 0u64;
    for (line, text) in source.lines() {
        // Quotes in a command are the shell's, not ours.
        let cells: Vec<&str> = text.split('\t').map(str::trim).collect();
        if cells.len() != COLUMNS.len() {
            return Err(width_error(source, line, cells.len(), COLUMNS.len())
                .hint("columns are separated by tabs"));
        }
        let field = |index: usize| Field {
            file: source.file,
            line,
            column: COLUMNS[index],
            text: cells[index].into(),
        };
        let job_type = field(0);
        let steps = field(5).number(TINY, ITERATIONS_MAX)?;
        let gpus = field(6).gpus()?;
        // Read to be checked: no policy of ours knows weights or deadlines.
        field(7).number(0.0, 1e9)?;
        field(8).number(-1.0, TIME_MAX_S)?;
        let key = (job_type.name()?, gpus);
        let profile = match profiles.get(&key) {
            Some(profile) => profile.clone(),
            None => {
                let profile = Arc::new(profile(intake, &job_type, gpus)?);
                profiles.entry(key).or_insert(profile).clone()
            }
        };
        count += 1;
        let job = Job {
            name: count.to_string(),
            user: String::new(),
            gpus,
            terms: Terms::default(),
            gpu_type: None,
            submit_s: field(9).seconds()?,
            // Gavel counts the steps of all workers together.
            length: Length::Iterations((steps / f64::from(gpus)).max(TINY)),
            profile,
        };
        intake.push(line, job)?;
    }
    Ok(())
}

/// The model with its measured steps at the job's own number of GPUs, on one machine and spread. The
/// closed form starts from the step on one machine.
fn profile(intake: &Intake<'_>, job_type: &Field<'_>, gpus: u32) -> Result<Profile, Error> {
    let library = intake.options.library;
    let base = library
        .get(&format!("{}@gavel", job_type.text))
        .or_else(|| library.get(&job_type.text))
        .ok_or_else(|| intake.unknown(job_type))?;
    let mut profile = Profile::clone(base);
    profile.table.retain(|row| row.placement.iter().sum::<u32>() == gpus);
    if let Some(together) = profile.table.iter().find(|row| row.placement == [gpus]) {
        profile.compute_s = together.step_s;
    }
    Ok(profile)
}
