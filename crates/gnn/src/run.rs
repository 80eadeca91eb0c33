//! One training run, from its first round, or its last checkpoint, to its files.
//!
//! ```text
//! let mut run = Run::open("out", &TrainConfig::default(), data)?;
//! while !run.is_done() { run.step(&clock)?; }
//! run.finish()?;
//! ```
//!
//! A run needs no folder; with one, it goes on where an earlier one of the same configuration on the same data
//! stopped. It reads no clock of its own, and prints nothing.

mod choose;
pub mod figures;
pub mod folder;
mod identity;
mod outputs;

use std::path::Path;
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::train::{Round, RunRecord, Setup};
use hither_data::output::check_space;
use serde_json::json;

use crate::config::{Facts, PARTS, PartitionBy, Plan, TrainConfig, WorkerConfig};
use crate::full_batch::FullBatch;
use crate::model::Inference;
use crate::partition::{self, Method, Partition, quality};
use crate::parts::StoredParts;
use crate::train::{Best, Trainer};
use crate::transport::Workers;
use crate::{Dataset, Error, checkpoint};

pub use folder::{
    CHECKPOINT, EMBEDDINGS, Existing, METRICS, MODEL, NODES, PREDICTIONS, RunFolder, SETTINGS,
    SUMMARY,
};
pub use outputs::{NODES_MAX, class_scores, field, likeliest, write_predictions, write_rows};

/// Rounds from one checkpoint to the next.
const CHECKPOINT_EVERY: u32 = 10;

/// The parts of a graph, the method or file that they come from, the share of edges that they cut, and what it took.
#[derive(Clone, Debug)]
pub struct Cut {
    pub partition: Partition,
    pub name: String,
    pub share: f64,
    pub setup: Setup,
}

impl Cut {
    /// The whole graph as one part.
    pub fn none(data: &Dataset) -> Self {
        let partition = Partition { of: vec![0; data.graph.nodes()], parts: 1 };
        Self { partition, name: "none".into(), share: 0.0, setup: Setup::default() }
    }

    /// The parts that a configuration asks for.
    pub fn of(config: &TrainConfig, data: &Arc<Dataset>) -> Result<Self, Error> {
        let Some(workers) = config.by.workers() else { return Ok(Self::none(data)) };
        let cut = match (&data.parts, &workers.partition_file) {
            (Some(stored), _) => Self::stored(stored, workers, data)?,
            (None, Some(path)) => {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Self::new(partition::read(path, data.graph.nodes())?, file, data)
            }
            (None, None) => match workers.partition.unwrap_or(Self::usual(data)) {
                PartitionBy::Auto if data.links.is_some() => {
                    return Err(Error::Settings(
                        "--partition auto probes gradients of labels, and links are learnt here; name a method, such as \
                         metis"
                            .into(),
                    ));
                }
                PartitionBy::Auto => choose::alike(config, workers, data)?,
                PartitionBy::Method(method) => {
                    let settings = Self::settings(workers, method, config.run.seed);
                    Self::by(&settings, data)?
                }
            },
        };
        match workers.parts.filter(|parts| *parts != cut.partition.parts) {
            None => Ok(cut),
            Some(parts) => {
                let found = cut.partition.parts;
                let shown = workers.partition_file.as_ref().map(|path| path.display().to_string());
                let shown = shown.as_ref().unwrap_or(&data.name);
                Err(Error::Settings(format!("{shown} has {found} parts, but --parts is {parts}")))
            }
        }
    }

    fn new(partition: Partition, name: String, data: &Dataset) -> Self {
        let Dataset { graph, labels, split, .. } = data;
        let share = quality(graph, labels, &split.train, &partition).cut_share;
        Self { partition, name, share, setup: Setup::default() }
    }

    fn by(settings: &partition::Settings, data: &Dataset) -> Result<Self, Error> {
        let partition =
            partition::partition(&data.graph, &data.labels, &data.split.train, settings)?;
        Ok(Self::new(partition, settings.method.name().into(), data))
    }

    /// The parts that a dataset came in.
    fn stored(stored: &StoredParts, workers: &WorkerConfig, data: &Dataset) -> Result<Self, Error> {
        if workers.partition.is_some() || workers.partition_file.is_some() {
            return Err(Error::Settings(format!(
                "{} is already partitioned; to cut it otherwise, train on the dataset that it was made of",
                data.name
            )));
        }
        let (inside, edges) = (stored.edges_inside(), data.graph.edges());
        let share = edges.saturating_sub(inside) as f64 / edges.max(1) as f64;
        let (partition, name) = (stored.partition(), stored.method.clone());
        Ok(Self { partition, name, share, setup: Setup::default() })
    }

    /// How a graph is cut without further word: links have no gradients of nodes to probe.
    pub fn usual(data: &Dataset) -> PartitionBy {
        match data.links {
            Some(_) => PartitionBy::Method(Method::Metis),
            None => PartitionBy::Auto,
        }
    }

    /// What a plan depends on, of the graph and its parts.
    pub fn facts(&self, data: &Dataset) -> Facts {
        Facts { parts: Some(self.partition.parts), ..Facts::of(data) }
    }

    /// How a graph is cut that is neither stored by part nor has a file of parts.
    pub fn settings(workers: &WorkerConfig, method: Method, seed: u64) -> partition::Settings {
        partition::Settings {
            method,
            parts: workers.parts.unwrap_or(PARTS),
            seed,
            ..partition::Settings::default()
        }
    }
}

/// A run that has begun, with or without a folder.
pub struct Run {
    pub trainer: Trainer,
    pub cut: Cut,
    /// Rounds from one checkpoint to the next.
    pub checkpoint_every: u32,
    /// Write the outputs of graphs with more than [`NODES_MAX`] nodes too.
    pub all_outputs: bool,
    folder: Option<RunFolder>,
    /// Its number in the folder, from 1.
    number: u32,
}

impl Run {
    /// A run without files.
    pub fn new(config: &TrainConfig, data: Dataset) -> Result<Self, Error> {
        let data = Arc::new(config.prepare(data)?);
        let cut = Cut::of(config, &data)?;
        let plan = config.resolve(&cut.facts(&data))?;
        Self::from_plan(plan, data, cut, None)
    }

    /// A run whose files are in `dir`: a new one, or the one that is there, from its last checkpoint. Another run's
    /// folder is refused.
    pub fn open(dir: impl AsRef<Path>, config: &TrainConfig, data: Dataset) -> Result<Self, Error> {
        let mut run = Self::new(config, data)?;
        let dir = dir.as_ref();
        let existing = match dir.join(SETTINGS).exists() {
            true => Existing::Resume,
            false => Existing::Refuse,
        };
        let mut settings = config.options();
        settings.insert("data".into(), json!(run.trainer.data.id()));
        run.begin(RunFolder::open(dir, settings, existing)?, 1)?;
        Ok(run)
    }

    /// A run of a plan on data that were prepared for it. Without `workers` they are threads of this process.
    pub fn from_plan(
        plan: Plan,
        data: Arc<Dataset>,
        cut: Cut,
        workers: Option<Box<dyn Workers>>,
    ) -> Result<Self, Error> {
        let Plan { settings, model } = plan;
        for batch in FullBatch::of_run(&settings, &data, &cut.partition) {
            batch.check(&model).map_err(|error| {
                Error::Settings(format!(
                    "{error}; give --batch and --server-batch a number of nodes"
                ))
            })?;
        }
        let trainer = match workers {
            None => Trainer::new(settings, model, data, &cut.partition),
            Some(workers) => {
                Trainer::with_workers(settings, model.into(), data, &cut.partition, workers)
            }
        };
        let checkpoint_every = CHECKPOINT_EVERY;
        Ok(Self { trainer, cut, checkpoint_every, all_outputs: false, folder: None, number: 1 })
    }

    /// Takes over the files of a folder's run, and goes on from its checkpoint if it has one.
    pub fn begin(&mut self, mut folder: RunFolder, number: u32) -> Result<(), Error> {
        if let Some(path) = folder.checkpoint(number) {
            checkpoint::restore(&mut self.trainer, &path, folder.rounds(number))?;
        }
        check_space(&folder.place(number), self.output_bytes())?;
        let Trainer { settings, rounds, .. } = &self.trainer;
        folder.begin(number, settings.seed, settings.mode.name(), rounds)?;
        (self.folder, self.number) = (Some(folder), number);
        Ok(())
    }

    /// Bytes of the large files: the model, the outputs of all nodes, and a checkpoint, which holds two models and two
    /// moments per parameter of each worker and the server.
    pub fn output_bytes(&self) -> u64 {
        let Trainer { global, data, model, workers, .. } = &self.trainer;
        let spec = &model.spec;
        let hidden = if spec.layers.len() > 1 { spec.hidden } else { 0 };
        let is_written = self.all_outputs || data.graph.nodes() <= NODES_MAX;
        let nodes = if is_written { data.graph.nodes() as u64 } else { 0 };
        let learners = workers.parts().len() as u64 + 1;
        let row_bytes = 4 * (hidden + spec.outputs) as u64;
        global.bytes() * (3 + 2 * learners) + nodes * row_bytes
    }

    /// Whether all rounds are done, or nothing has become better for long.
    pub fn is_done(&self) -> bool {
        self.trainer.is_done()
    }

    pub fn rounds(&self) -> &[Round] {
        &self.trainer.rounds
    }

    /// The best model so far.
    pub fn best(&self) -> Option<&Best> {
        self.trainer.best.as_ref()
    }

    /// Trains one round and keeps its row, with a checkpoint if that is due. `clock` gives the seconds since some
    /// moment.
    pub fn step(&mut self, clock: &dyn Fn() -> Seconds) -> Result<&Round, Error> {
        self.trainer.round(clock)?;
        if let (Some(folder), Some(row)) = (&mut self.folder, self.trainer.rounds.last()) {
            folder.add(row)?;
            if row.round.is_multiple_of(self.checkpoint_every) || self.trainer.is_done() {
                self.save()?;
            }
        }
        self.trainer.rounds.last().ok_or_else(|| Error::Settings("no round was trained".into()))
    }

    /// Writes a checkpoint now, so that the run can be stopped.
    pub fn save(&mut self) -> Result<(), Error> {
        let Some(folder) = &mut self.folder else { return Ok(()) };
        folder.sync()?;
        checkpoint::write(&mut self.trainer, &folder.place(self.number).join(CHECKPOINT))
    }

    /// What the best model says of every node.
    pub fn predict(&self) -> Result<Inference, Error> {
        let best = self.best().ok_or_else(not_evaluated)?;
        Ok(self.trainer.model.infer(&best.weights, &self.trainer.data))
    }

    /// Writes the best model and what it predicts, and returns the record of the run.
    pub fn finish(&mut self) -> Result<RunRecord, Error> {
        self.finish_with(|_, _, _| Ok(()))
    }

    /// The same; `more` writes further files to the run's folder, before the run counts as finished.
    pub fn finish_with<E: From<Error>>(
        &mut self,
        more: impl FnOnce(&mut Trainer, &RunRecord, &Path) -> Result<(), E>,
    ) -> Result<RunRecord, E> {
        let header = self.trainer.header(env!("CARGO_PKG_VERSION"), &self.cut.name, self.cut.share);
        let (rounds, mut summary) = (self.trainer.rounds.clone(), self.trainer.summary());
        summary.setup = self.setup();
        let mut record = RunRecord { header, rounds, summary };
        if let Some(folder) = &mut self.folder {
            let place = folder.place(self.number);
            record.summary.classes = outputs::write(&self.trainer, &place, self.all_outputs)?;
            more(&mut self.trainer, &record, &place)?;
            folder.finish(record.clone())?;
        }
        Ok(record)
    }

    /// What was done before the first round.
    fn setup(&self) -> Setup {
        let Trainer { setup_bytes: bytes, settings, .. } = &self.trainer;
        let Cut { setup, .. } = &self.cut;
        let path_s = settings.machine.seconds(setup.probe) + settings.machine.transfer_s(*bytes);
        Setup { bytes: *bytes, path_s, ..setup.clone() }
    }

    /// The folder, for the next run.
    pub fn into_folder(self) -> Option<RunFolder> {
        self.folder
    }
}

fn not_evaluated() -> Error {
    Error::Settings("no round was evaluated".into())
}
