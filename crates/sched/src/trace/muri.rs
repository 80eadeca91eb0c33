//! Muri's traces: models by name, iterations, and the time of an iteration split in stages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Intake;
use crate::compat::muri::start_up_s;
use crate::job::{Job, Length, Profile, Terms};
use crate::read::Error;
use crate::read::table::{Field, ITERATIONS_MAX, Others, Source, TIME_MAX_S, TINY, Table};

pub(super) const COLUMNS: [&str; 11] = [
    "job_id",
    "num_gpu",
    "submit_time",
    "iterations",
    "model_name",
    "batch_size",
    "duration",
    "iteration_time",
    "resource_time_0",
    "resource_time_1",
    "resource_time_2",
];

/// A row as it stands in the file, for runs that follow Muri's own rules to the letter.
#[derive(Debug, Clone, PartialEq)]
pub struct MuriRow {
    pub job_id: String,
    pub gpus: u32,
    pub submit_ms: f64,
    pub iterations: f64,
    pub model: String,
    pub iteration_ms: f64,
    pub batch_size: f64,
    pub duration_ms: f64,
    /// Data loading on the CPU, computing on the GPU, network.
    pub stage_ms: [f64; 3],
    pub line: u64,
}

/// All rows in the order of the file.
pub fn muri_rows(bytes: &[u8], file: &str) -> Result<Vec<MuriRow>, Error> {
    let source = Source::new(bytes, file)?;
    let table = Table::open(source, COLUMNS, COLUMNS.len(), Others::Ignore)?;
    let mut names = HashSet::new();
    let mut rows = Vec::new();
    for row in table.rows() {
        let (line, fields) = row?;
        let row = parse(line, &fields)?;
        if !names.insert(row.job_id.clone()) {
            return Err(fields[0].error("job ids that differ"));
        }
        rows.push(row);
    }
    if rows.is_empty() {
        return Err(Error::about(source.file, "has a header but no jobs"));
    }
    Ok(rows)
}

fn parse(line: u64, fields: &[Field<'_>; 11]) -> Result<MuriRow, Error> {
    let [id, gpus, submit, iterations, model, batch, duration, iteration, s0, s1, s2] = fields;
    let time_max_ms = TIME_MAX_S * 1000.0;
    Ok(MuriRow {
        job_id: id.name()?,
        gpus: gpus.gpus()?,
        submit_ms: submit.number(0.0, time_max_ms)?,
        iterations: iterations.number(TINY, ITERATIONS_MAX)?,
        model: model.name()?,
        iteration_ms: iteration.number(TINY, time_max_ms)?,
        batch_size: batch.number(TINY, 1e9)?,
        duration_ms: duration.number(0.0, time_max_ms)?,
        stage_ms: [
            s0.number(0.0, time_max_ms)?,
            s1.number(0.0, time_max_ms)?,
            s2.number(0.0, time_max_ms)?,
        ],
        line,
    })
}

pub(super) fn read(intake: &mut Intake<'_>) -> Result<(), Error> {
    let table = Table::open(intake.source, COLUMNS, COLUMNS.len(), Others::Ignore)?;
    let mut profiles: HashMap<(String, u32, u64, u64), Arc<Profile>> = HashMap::new();
    for row in table.rows() {
        let (line, fields) = row?;
        let row = parse(line, &fields)?;
        let compute_ms = (row.iteration_ms - row.stage_ms[2]).max(row.iteration_ms / 100.0);
        let key = (row.model.clone(), row.gpus, row.batch_size.to_bits(), compute_ms.to_bits());
        let profile = match profiles.get(&key) {
            Some(profile) => profile.clone(),
            None => {
                let profile = Arc::new(profile(intake, &fields[4], row.gpus, compute_ms)?);
                profiles.entry(key).or_insert(profile).clone()
            }
        };
        let job = Job {
            name: row.job_id,
            user: String::new(),
            gpus: row.gpus,
            terms: Terms::default(),
            gpu_type: None,
            submit_s: row.submit_ms / 1000.0,
            length: Length::Iterations(row.iterations),
            profile,
        };
        intake.push(line, job)?;
    }
    Ok(())
}

/// The model's figures with the row's own compute time: what is left of an iteration without its
/// network stage. The network model puts that stage back according to the placement.
fn profile(
    intake: &Intake<'_>,
    model: &Field<'_>,
    gpus: u32,
    compute_ms: f64,
) -> Result<Profile, Error> {
    let library = intake.options.library;
    // The variant that carries Muri's measurements comes before the plain model of that name.
    let base = library
        .get(&format!("{}@muri", model.text))
        .or_else(|| library.get(&model.text))
        .ok_or_else(|| intake.unknown(model))?;
    Ok(Profile {
        compute_s: compute_ms / 1000.0,
        restart_s: start_up_s(&model.text, gpus).unwrap_or(base.restart_s),
        table: Vec::new(),
        ..Profile::clone(base)
    })
}
