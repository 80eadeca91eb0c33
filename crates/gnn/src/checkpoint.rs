//! All that a run needs to go on as if nothing had happened: models, optimisers, and the rounds so
//! far. Randomness needs no place here: every draw follows from the seed and the round.

use std::collections::BTreeMap;
use std::path::Path;

use hither_core::record::train::Round;
use hither_data::safetensors::{Entry, Writer};
use hither_data::{Checkpoint, Dtype};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::local::Learner;
use crate::model::Weights;
use crate::train::{Best, Trainer};

const RUN: &str = "hither.run";
const STATE: &str = "hither.state";

/// What must be the same for a run to go on, each by a name that a message can tell.
type Run = BTreeMap<String, String>;

#[derive(Serialize, Deserialize)]
struct State {
    rounds: Vec<Round>,
    /// Round, validation and test score of the best model.
    best: Option<(u32, f64, f64)>,
    /// Steps that each optimiser has taken, the server's last.
    steps: Vec<u64>,
}

/// Writes the state after the last round, or nothing at all.
pub fn write(trainer: &Trainer, path: &Path) -> Result<(), Error> {
    let tensors = tensors(trainer);
    let entries: Vec<Entry> = tensors
        .iter()
        .map(|(name, values)| Entry::new(name, Dtype::F32, &[values.len()]))
        .collect();
    let state = State {
        rounds: trainer.rounds.clone(),
        best: trainer.best.as_ref().map(|best| (best.round, best.valid, best.test)),
        steps: learners(trainer).map(|learner| learner.optimiser.steps).collect(),
    };
    let text = |what: Result<String, serde_json::Error>| {
        what.map_err(|error| Error::File { path: path.into(), problem: error.to_string() })
    };
    let metadata = BTreeMap::from([
        (RUN.to_owned(), text(serde_json::to_string(&run(trainer)))?),
        (STATE.to_owned(), text(serde_json::to_string(&state))?),
    ]);
    let mut writer = Writer::create(path, &entries, &metadata)?;
    for (_, values) in tensors {
        writer.write(bytemuck::cast_slice(values))?;
    }
    Ok(writer.finish()?)
}

/// Puts a trainer that has not begun where another one was when it wrote `path`.
pub fn restore(trainer: &mut Trainer, path: &Path) -> Result<(), Error> {
    let bad = |problem: String| Error::Resume { path: path.into(), problem };
    let file = Checkpoint::open(path)?;
    let said = |name: &str| {
        let text = file.metadata.get(name);
        text.ok_or_else(|| bad("it is no checkpoint of `hither train`".into()))
    };
    let unreadable = |error: serde_json::Error| bad(format!("it cannot be understood: {error}"));
    let theirs: Run = serde_json::from_str(said(RUN)?).map_err(unreadable)?;
    for (name, ours) in run(trainer) {
        let theirs = theirs.get(&name).map_or("nothing", String::as_str);
        if theirs != ours {
            return Err(bad(format!(
                "its {name} is {theirs}, but {ours} is asked for; give the options of that run, \
                 or another output directory"
            )));
        }
    }
    let state: State = serde_json::from_str(said(STATE)?).map_err(unreadable)?;
    let steps = learners(trainer).count();
    if state.steps.len() != steps {
        return Err(bad(format!("it has {} optimisers, expected {steps}", state.steps.len())));
    }
    trainer.best = state.best.map(|(round, valid, test)| Best {
        round,
        valid,
        test,
        weights: trainer.global.clone(),
    });
    for (name, values) in tensors_mut(trainer) {
        let numbers = file.tensors.get(&name).and_then(|tensor| tensor.as_f32());
        let numbers = numbers.filter(|numbers| numbers.len() == values.len());
        let numbers = numbers.ok_or_else(|| {
            bad(format!("tensor `{name}` is missing or not of {} numbers", values.len()))
        })?;
        values.copy_from_slice(&numbers);
    }
    for (learner, steps) in trainer.workers.iter_mut().chain([&mut trainer.server]).zip(state.steps)
    {
        learner.optimiser.steps = steps;
    }
    trainer.rounds = state.rounds;
    Ok(())
}

/// More rounds and more patience may be asked for; all else decides what comes out.
fn run(trainer: &Trainer) -> Run {
    let mut settings = trainer.settings.clone();
    (settings.rounds, settings.patience) = (0, None);
    let data = &trainer.data;
    let (nodes, edges) = (data.graph.nodes(), data.graph.edges());
    BTreeMap::from([
        ("dataset".into(), format!("{} of {nodes} nodes and {edges} edges", data.name)),
        ("partition".into(), format!("{:016x}", trainer.partition_hash)),
        ("model".into(), format!("{:?}", trainer.model.spec)),
        ("set of options".into(), format!("{settings:?}")),
    ])
}

fn learners(trainer: &Trainer) -> impl Iterator<Item = &Learner> {
    trainer.workers.iter().chain([&trainer.server])
}

fn tensors(trainer: &Trainer) -> Vec<(String, &[f32])> {
    let mut all: Vec<(String, &[f32])> = vec![];
    let best = trainer.best.as_ref().map(|best| &best.weights);
    for (name, weights) in [("global", Some(&trainer.global)), ("best", best)] {
        if let Some(Weights { params, stats }) = weights {
            all.push((format!("{name}.params"), params));
            all.push((format!("{name}.stats"), stats));
        }
    }
    for (number, learner) in learners(trainer).enumerate() {
        all.push((format!("{number}.first"), &learner.optimiser.first));
        all.push((format!("{number}.second"), &learner.optimiser.second));
    }
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
    let learners = trainer.workers.iter_mut().chain([&mut trainer.server]);
    for (number, learner) in learners.enumerate() {
        all.push((format!("{number}.first"), &mut learner.optimiser.first));
        all.push((format!("{number}.second"), &mut learner.optimiser.second));
    }
    all
}
