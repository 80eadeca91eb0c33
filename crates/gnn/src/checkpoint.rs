//! All that a run needs to go on as if nothing had happened.
//!
//! The server's file holds the models, the server's optimiser and the rounds so far. Each worker
//! writes its own state to its own file, named by round, in a folder beside it. The server's file
//! is written last and names the round, so that a kill at any moment leaves a whole checkpoint:
//! this one or the one before. Randomness needs no place: every draw follows from the seed and the
//! round.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use hither_core::record::train::Round;
use hither_data::safetensors::{Entry, Writer};
use hither_data::{Checkpoint, Dtype};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::model::Weights;
use crate::optim::Optimiser;
use crate::train::{Best, Fnv, Trainer};

const RUN: &str = "hither.run";
const STATE: &str = "hither.state";

#[derive(Serialize, Deserialize)]
struct State {
    /// How many rounds are done, and a hash of their rows, which metrics.jsonl holds.
    rounds: u32,
    rows: String,
    /// Round, validation and test score of the best model.
    best: Option<(u32, Option<f64>, f64)>,
    /// Steps that the server's optimiser has taken.
    steps: u64,
}

/// Writes the state after the last round, or nothing at all.
pub fn write(trainer: &mut Trainer, path: &Path) -> Result<(), Error> {
    let (round, folder) = (trainer.rounds.len() as u32, workers_folder(path));
    let run = identity(trainer);
    fs::create_dir_all(&folder).map_err(|source| Error::Io {
        action: "create",
        path: folder.clone(),
        source,
    })?;
    trainer.workers.save(&folder, &run, round)?;
    let state = State {
        rounds: round,
        rows: format!("{:016x}", trainer.rows_hash.0),
        best: trainer.best.as_ref().map(|best| (best.round, best.valid, best.test)),
        steps: trainer.server.optimiser.steps,
    };
    write_file(path, &tensors(trainer), &run, &json(path, &state)?)?;
    remove_others(&folder, round)
}

/// Puts a trainer that has not begun where another one was when it wrote `path`. `rows` are the rounds that it had
/// trained; later ones are left out.
pub fn restore(trainer: &mut Trainer, path: &Path, mut rows: Vec<Round>) -> Result<(), Error> {
    let bad = |problem: String| Error::Resume { path: path.into(), problem };
    let file = Checkpoint::open(path)?;
    let unreadable = |error: serde_json::Error| bad(format!("it cannot be understood: {error}"));
    let run = identity(trainer);
    if metadata(&file, path, RUN)? != run {
        return Err(bad(
            "it is of a run with other options, parts or data; give those of that run, or another \
             output directory"
                .into(),
        ));
    }
    let state: State = serde_json::from_str(metadata(&file, path, STATE)?).map_err(unreadable)?;
    rows.truncate(state.rounds as usize);
    if rows.len() < state.rounds as usize || format!("{:016x}", hash(&rows)) != state.rows {
        return Err(bad(format!(
            "the {} rounds before it are not all in metrics.jsonl beside it; begin again with --force",
            state.rounds
        )));
    }
    trainer.best = state.best.map(|(round, valid, test)| Best {
        round,
        valid,
        test,
        weights: trainer.global.clone(),
    });
    for (name, values) in tensors_mut(trainer) {
        read_tensor(&file, path, &name, values)?;
    }
    trainer.server.optimiser.steps = state.steps;
    trainer.workers.restore(&workers_folder(path), &run, state.rounds)?;
    trainer.take_rounds(rows);
    Ok(())
}

/// Writes a worker's optimiser, and what its compressed updates have left out, to its file in `folder`.
pub fn write_worker(
    optimiser: &Optimiser,
    residual: &[f32],
    folder: &Path,
    run: &str,
    round: u32,
    part: usize,
) -> Result<(), Error> {
    let path = worker_file(folder, round, part);
    let mut tensors =
        vec![("first".to_owned(), &optimiser.first[..]), ("second".to_owned(), &optimiser.second)];
    if !residual.is_empty() {
        tensors.push(("residual".to_owned(), residual));
    }
    write_file(&path, &tensors, run, &optimiser.steps.to_string())
}

/// Reads back what [`write_worker`] wrote for the same run, round and part.
pub fn read_worker(
    optimiser: &mut Optimiser,
    residual: &mut [f32],
    folder: &Path,
    run: &str,
    round: u32,
    part: usize,
) -> Result<(), Error> {
    let path = worker_file(folder, round, part);
    let bad = |problem: &str| Error::Resume { path: path.clone(), problem: problem.into() };
    let file = Checkpoint::open(&path)?;
    if metadata(&file, &path, RUN)? != run {
        return Err(bad("it belongs to another run; start again with another output directory"));
    }
    let steps = metadata(&file, &path, STATE)?.parse();
    optimiser.steps = steps.map_err(|_| bad("its number of steps is not a number"))?;
    read_tensor(&file, &path, "first", &mut optimiser.first)?;
    read_tensor(&file, &path, "second", &mut optimiser.second)?;
    if !residual.is_empty() {
        read_tensor(&file, &path, "residual", residual)?;
    }
    Ok(())
}

/// The folder of the workers' files that belongs to a server's file.
pub fn workers_folder(path: &Path) -> PathBuf {
    path.with_extension("workers")
}

fn worker_file(folder: &Path, round: u32, part: usize) -> PathBuf {
    folder.join(format!("round-{round}-worker-{part}.safetensors"))
}

/// Removes workers' files of other rounds, which no server's file names any more.
fn remove_others(folder: &Path, round: u32) -> Result<(), Error> {
    let failed = |action| move |source| Error::Io { action, path: folder.into(), source };
    let current = format!("round-{round}-");
    for entry in fs::read_dir(folder).map_err(failed("read"))? {
        let entry = entry.map_err(failed("read"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("round-") && !name.starts_with(&current) {
            fs::remove_file(entry.path()).map_err(failed("tidy"))?;
        }
    }
    Ok(())
}

/// A hash of the rows of rounds, as they are written.
fn hash(rows: &[Round]) -> u64 {
    let mut hash = Fnv::default();
    for row in rows {
        // A row that cannot be written was never counted.
        let _ = serde_json::to_writer(&mut hash, row);
    }
    hash.0
}

fn json(path: &Path, value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|error| Error::File { path: path.into(), problem: error.to_string() })
}

fn metadata<'a>(file: &'a Checkpoint, path: &Path, name: &str) -> Result<&'a str, Error> {
    let problem = || "it is no checkpoint of `hither train`".to_owned();
    let text = file.metadata.get(name).map(String::as_str);
    text.ok_or_else(|| Error::Resume { path: path.into(), problem: problem() })
}

fn read_tensor(
    file: &Checkpoint,
    path: &Path,
    name: &str,
    values: &mut [f32],
) -> Result<(), Error> {
    let numbers = file.tensors.get(name).and_then(|tensor| tensor.as_f32());
    let numbers = numbers.filter(|numbers| numbers.len() == values.len());
    let numbers = numbers.ok_or_else(|| Error::Resume {
        path: path.into(),
        problem: format!("tensor `{name}` is missing or not of {} numbers", values.len()),
    })?;
    values.copy_from_slice(&numbers);
    Ok(())
}

fn write_file(
    path: &Path,
    tensors: &[(String, &[f32])],
    run: &str,
    state: &str,
) -> Result<(), Error> {
    let entry = |(name, values): &(String, &[f32])| Entry::new(name, Dtype::F32, &[values.len()]);
    let entries: Vec<Entry> = tensors.iter().map(entry).collect();
    let metadata =
        BTreeMap::from([(RUN.to_owned(), run.to_owned()), (STATE.to_owned(), state.to_owned())]);
    let mut writer = Writer::create(path, &entries, &metadata)?;
    for (_, values) in tensors {
        writer.write(bytemuck::cast_slice(values))?;
    }
    Ok(writer.finish()?)
}

/// A hash of all that decides what comes out. More rounds and more patience may be asked for.
fn identity(trainer: &Trainer) -> String {
    let mut settings = trainer.settings.clone();
    settings.patience = None;
    if !settings.schedule.depends_on_length() {
        settings.rounds = 0;
    }
    let data = &trainer.data;
    let (nodes, edges, parts) = (data.graph.nodes(), data.graph.edges(), trainer.partition_hash);
    let spec = &trainer.model.spec;
    let all = format!("{settings:?} {spec:?} {} {nodes} {edges} {parts}", data.name);
    format!("{:016x}", Fnv::of(all.bytes().map(u64::from)).0)
}

/// What the server's file holds.
fn tensors(trainer: &Trainer) -> Vec<(String, &[f32])> {
    let mut all: Vec<(String, &[f32])> = vec![];
    let best = trainer.best.as_ref().map(|best| &best.weights);
    for (name, weights) in [("global", Some(&trainer.global)), ("best", best)] {
        if let Some(Weights { params, stats }) = weights {
            all.push((format!("{name}.params"), params));
            all.push((format!("{name}.stats"), stats));
        }
    }
    all.push(("server.first".into(), &trainer.server.optimiser.first));
    all.push(("server.second".into(), &trainer.server.optimiser.second));
    all
}

/// The same, to be written to.
fn tensors_mut(trainer: &mut Trainer) -> Vec<(String, &mut [f32])> {
    let mut all: Vec<(String, &mut [f32])> = vec![];
    let best = trainer.best.as_mut().map(|best| &mut best.weights);
    for (name, weights) in [("global", Some(&mut trainer.global)), ("best", best)] {
        if let Some(Weights { params, stats }) = weights {
            all.push((format!("{name}.params"), params));
            all.push((format!("{name}.stats"), stats));
        }
    }
    all.push(("server.first".into(), &mut trainer.server.optimiser.first));
    all.push(("server.second".into(), &mut trainer.server.optimiser.second));
    all
}
