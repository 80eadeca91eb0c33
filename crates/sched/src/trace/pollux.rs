//! Pollux' workloads: applications with a number of replicas and a total batch size. How much a
//! job trains is not in them; the library's `work` table says it for each application.

use std::collections::HashMap;
use std::sync::Arc;

use super::Intake;
use crate::job::{Job, Length, Profile, Terms};
use crate::read::Error;
use crate::read::table::{Field, ITERATIONS_MAX, Others, TINY, Table};

pub(super) const COLUMNS: [&str; 5] = ["name", "time", "application", "num_replicas", "batch_size"];

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let table = Table::open(intake.source, COLUMNS, COLUMNS.len(), Others::Ignore)?;
    let mut profiles: HashMap<(String, u32, u64), Arc<Profile>> = HashMap::new();
    for row in table.rows() {
        let (line, [name, time, application, replicas, batch_size]) = row?;
        let gpus = replicas.gpus()?;
        let batch = batch_size.number(1.0, 1e12)?;
        let key = (application.name()?, gpus, batch.to_bits());
        let work = intake.options.library.work(&application.text).ok_or_else(|| {
            application
                .error("an application whose work the profile library knows")
                .hint("describe it as [work.NAME] in a file given by --profiles FILE")
        })?;
        let iterations = (work.samples / batch).clamp(TINY, ITERATIONS_MAX);
        let profile = match profiles.get(&key) {
            Some(profile) => profile.clone(),
            None => {
                let ratio = batch / f64::from(gpus) / work.batch;
                let profile = Arc::new(profile(intake, &application, &work.model, gpus, ratio)?);
                profiles.entry(key).or_insert(profile).clone()
            }
        };
        let job = Job {
            name: name.name()?,
            user: String::new(),
            gpus,
            terms: Terms::default(),
            gpu_type: None,
            submit_s: time.seconds()?,
            length: Length::Iterations(iterations),
            profile,
        };
        intake.push(line, job)?;
    }
    intake.notes.push("the work of each application is an estimate of the profile library".into());
    Ok(())
}

/// A GPU computes `ratio` times the measured batch in an iteration: computing grows with it,
/// communicating does not.
fn profile(
    intake: &Intake<'_>,
    application: &Field<'_>,
    model: &str,
    gpus: u32,
    ratio: f64,
) -> Result<Profile, Error> {
    let base = intake.options.library.get(model).ok_or_else(|| intake.unknown(application))?;
    let mut profile = Profile::clone(base);
    profile.compute_s = (base.compute_s * ratio).max(TINY);
    profile.table.retain(|row| row.placement.iter().sum::<u32>() == gpus);
    for row in &mut profile.table {
        let computing_s = base.compute_s.min(row.step_s);
        row.step_s = (row.step_s + (ratio - 1.0) * computing_s).max(TINY);
    }
    Ok(profile)
}
