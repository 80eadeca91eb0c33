//! One run from its first round, or its last checkpoint, to its files.

use std::io::{IsTerminal as _, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use hither_core::record::train::{Round, RunRecord};
use hither_gnn::correct::ServerSteps;
use hither_gnn::full_batch::FullBatch;
use hither_gnn::layer::Layer;
use hither_gnn::mode::Sees;
use hither_gnn::model::Model;
use hither_gnn::train::{Mode, Trainer};
use hither_gnn::{checkpoint, remote, save};
use hither_report::plural;
use indicatif::{ProgressBar, ProgressStyle};
use rayon::current_num_threads;

use super::args::TrainArgs;
use super::case::TrainingCase;
use super::profile::profile;
use super::ranks::{Crew, RankReport};
use super::stop::{StopRequest, Stopped};
use super::store::{
    CHECKPOINT, EMBEDDINGS, MODEL, NODES, PREDICTIONS, PROFILE, RANKS, RunStore, write_json,
};
use super::{estimate, predictions};
use crate::Common;

/// Interval between lines of progress if standard error is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// A run that takes longer says so after its first round.
const LONG_S: f64 = 20.0;
const BAR: &str = "{msg} [{bar:30}] {pos}/{len}  {elapsed} elapsed{prefix}";

/// One run that is to be done.
pub struct Job<'a> {
    pub args: &'a TrainArgs,
    pub case: &'a TrainingCase<'a>,
    pub mode: Mode,
    /// From 1.
    pub run: u32,
    pub steps: ServerSteps,
    /// The other ranks of an MPI job, if workers run there.
    pub crew: Option<&'a Crew>,
    pub stop: StopRequest,
}

/// A run that is ready to begin, and the partition of its graph.
pub struct Ready {
    pub trainer: Trainer,
    pub cut: String,
    pub cut_share: f64,
}

impl Job<'_> {
    pub fn ready(&self) -> anyhow::Result<Ready> {
        let Self { args, case, mode, .. } = self;
        let model = Model::new(args.spec(&case.data)?)?;
        if mode.does().workers == Some(Sees::PartAndSums) && !remote::is_supported(&model) {
            bail!(
                "--mode {} stores sums over neighbours, which --model {} does not read; use sage, gcn \
                 or mlp layers, or another mode",
                mode.name(),
                args.model_name()
            );
        }
        if case.data.graph.weights().is_some() {
            let heeds = |layer: &Layer| !matches!(layer, Layer::Attention(_) | Layer::Gatv2(_));
            if !model.stages.iter().all(|stage| heeds(&stage.layer)) {
                bail!(
                    "--model {} does not read weights of edges; use sage, gcn, gin or appnp, or a dataset \
                     without weights",
                    args.model_name()
                );
            }
            if mode.does().workers == Some(Sees::PartAndSums) {
                bail!("--mode {} does not read weights of edges; use another mode", mode.name());
            }
        }
        let settings =
            args.settings(&case.data, *mode, case.seed, case.workers()?, self.steps.clone());
        let cut = case.cut(*mode)?;
        for batch in FullBatch::of_run(&settings, &case.data, &cut.partition) {
            if let Err(error) = batch.check(&model) {
                bail!("{error}; give --batch and --server-batch a number of nodes");
            }
        }
        let data = case.data.clone();
        let trainer = match self.crew {
            None => Trainer::new(settings, model, data, &cut.partition),
            Some(crew) => {
                let workers = crew.begin(args, &settings, &model)?;
                Trainer::with_workers(settings, model.into(), data, &cut.partition, workers)
            }
        };
        Ok(Ready { trainer, cut: cut.name, cut_share: cut.share })
    }

    /// Trains and writes the files. Call it on the threads that are to do the work.
    pub fn run(
        &self,
        ready: Ready,
        mut store: Option<&mut RunStore>,
        common: &Common,
    ) -> anyhow::Result<RunRecord> {
        let Ready { mut trainer, cut, cut_share } = ready;
        let seed = self.case.seed;
        if let Some(store) = &mut store {
            if let Some(checkpoint) = store.checkpoint(self.run) {
                checkpoint::restore(&mut trainer, &checkpoint)?;
                self.stop.note_saved(trainer.rounds.len() as u32);
                common.say(&format!("resuming after round {}", trainer.rounds.len()));
            }
            store.begin(self.run, seed, self.mode.name(), &trainer.rounds)?;
        }
        self.rounds(&mut trainer, store.as_deref_mut(), common)?;
        let header = trainer.header(env!("CARGO_PKG_VERSION"), &cut, cut_share);
        let summary = trainer.summary();
        let mut record = RunRecord { header, rounds: trainer.rounds.clone(), summary };
        if let Some(store) = &mut store {
            let place = store.place(self.run);
            let ranks = self.crew.map(|crew| crew.report(&mut trainer)).transpose()?;
            let all = self.args.run.embeddings;
            write(&trainer, &mut record, ranks.as_deref(), &place, all)?;
            store.finish(record.clone())?;
        }
        Ok(record)
    }

    fn rounds(
        &self,
        trainer: &mut Trainer,
        mut store: Option<&mut RunStore>,
        common: &Common,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        let clock = || start.elapsed().as_secs_f64();
        let mut progress = Progress::new(self, trainer, common);
        while !trainer.is_done() {
            let round = trainer.round(&clock)?;
            if let Some(store) = &mut store {
                let asked = self.stop.is_asked();
                let due = asked || round.round.is_multiple_of(self.args.run.checkpoint_every);
                // Before its row is written: metrics.jsonl then never lacks a round that a resumed run
                // does not repeat.
                if due || trainer.is_done() {
                    checkpoint::write(trainer, &store.place(self.run).join(CHECKPOINT))?;
                    self.stop.note_saved(round.round);
                }
                store.add(self.run, self.case.seed, self.mode.name(), &round)?;
                if asked && !trainer.is_done() {
                    progress.bar.finish_and_clear();
                    return Err(Stopped(round.round).into());
                }
            }
            progress.tell(trainer, &round, common);
        }
        progress.bar.finish_and_clear();
        Ok(())
    }
}

/// Writes the model with the best validation score and its outputs for every node, and records the
/// scores of each class. Outputs for the nodes of a large graph are as large as its features: they are
/// written only if `all` asks for them.
fn write(
    trainer: &Trainer,
    record: &mut RunRecord,
    ranks: Option<&[RankReport]>,
    place: &Path,
    all: bool,
) -> anyhow::Result<()> {
    let Some(best) = &trainer.best else { bail!("no round was evaluated") };
    let target = save::Target::of(&trainer.data);
    save::model(&place.join(MODEL), &trainer.model, &best.weights, &target)?;
    let (model, data) = (&trainer.model, &*trainer.data);
    if all || data.graph.nodes() <= predictions::NODES_MAX {
        let outputs = model.infer(&best.weights, data);
        if data.links.is_some() {
            save::link_embeddings(&place.join(EMBEDDINGS), data, &outputs)?;
            predictions::write_rows(&place.join(NODES), data)?;
        } else {
            save::embeddings(&place.join(EMBEDDINGS), data, &outputs)?;
            predictions::write(&place.join(PREDICTIONS), data, &outputs)?;
        }
    }
    if data.links.is_none() {
        let tested = model.infer_rows(&best.weights, data, &data.split.test);
        record.summary.classes = predictions::class_scores(data, &tested);
    }
    if let Some(ranks) = ranks {
        write_json(&place.join(RANKS), &ranks)?;
    }
    write_json(&place.join(PROFILE), &profile(record, current_num_threads(), ranks))
}

/// A bar on a terminal; elsewhere a line now and then.
struct Progress {
    bar: ProgressBar,
    name: String,
    lines: bool,
    since: Instant,
    is_first: bool,
    /// Parts that the last round left out.
    left_out: Vec<u32>,
}

impl Progress {
    fn new(job: &Job<'_>, trainer: &Trainer, common: &Common) -> Self {
        let bar = common.bar(trainer.settings.rounds.into(), "");
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style);
        }
        let name = match job.args.run.runs {
            1 => job.mode.name().to_owned(),
            runs => format!("{}, run {} of {runs}", job.mode.name(), job.run),
        };
        bar.set_message(name.clone());
        bar.inc(trainer.rounds.len() as u64);
        let lines = !stderr().is_terminal();
        Self { bar, name, lines, since: Instant::now(), is_first: true, left_out: vec![] }
    }

    /// Says so when other workers are left out than in the round before.
    fn tell_left_out(&mut self, round: &Round, common: &Common) {
        if round.left_out == self.left_out {
            return;
        }
        self.left_out.clone_from(&round.left_out);
        let parts: Vec<String> = round.left_out.iter().map(u32::to_string).collect();
        let line = match parts.len() {
            0 => format!("round {}: all workers are back", round.round),
            _ => {
                format!("round {} is without late or lost parts: {}", round.round, parts.join(", "))
            }
        };
        self.bar.suspend(|| common.say(&line));
    }

    fn tell(&mut self, trainer: &Trainer, round: &Round, common: &Common) {
        self.tell_left_out(round, common);
        let mut text = format!("{}: loss {:.3}", self.name, round.loss);
        if let Some(valid) = round.valid {
            text.push_str(&format!(", valid {:.2}", 100.0 * valid));
        }
        if let Some(best) = &trainer.best {
            match best.valid {
                Some(valid) => {
                    let (score, at) = (100.0 * valid, best.round);
                    text.push_str(&format!(", best {score:.2} in round {at}"));
                }
                None => text.push_str(&format!(", test {:.2}", 100.0 * best.test)),
            }
        }
        let bytes: u64 = trainer.rounds.iter().map(|round| round.bytes.total()).sum();
        text.push_str(&format!(", {:.1} MB sent", bytes as f64 / 1e6));
        let left = estimate::left(&trainer.settings, &trainer.rounds);
        let (done, all) = (trainer.rounds.len(), trainer.settings.rounds);
        if let Some(left) = left {
            self.bar.set_prefix(format!(", {left} left"));
            if std::mem::take(&mut self.is_first) && left.most_s > LONG_S {
                let line = format!(
                    "{}: {left} for {}",
                    self.name,
                    plural(all as usize - done, "more round")
                );
                self.bar.suspend(|| common.say(&line));
            }
            if self.lines && self.since.elapsed() >= LINE_EVERY {
                self.since = Instant::now();
                common.say(&format!("round {done} of {all}, {left} left; {text}"));
            }
        }
        self.bar.set_message(text);
        self.bar.inc(1);
    }
}
