//! Learn locally, correct globally.
//!
//! The graph is cut into parts. In each round every worker takes the global model, learns on its own
//! part alone, and gives its model back; the server averages them, and then takes a few steps on the
//! whole graph, which undo what the cut edges did to the average. Only models travel.

use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::train::{Machine, Round, Times, Work, Works};

use crate::TrainConfig;
use crate::average::{PartView, add_change, average, between};
use crate::config::Facts;
use crate::correct::{Budget, Judge, ServerSteps, Spent, harms, last_kept};
use crate::full_batch::FullBatch;
use crate::local::{Learner, Learnt, Pace, Steps};
use crate::mode::Corrects;
pub use crate::mode::Mode;
use crate::model::{Model, Weights};
use crate::optim::{self, Optimiser};
use crate::partition::Partition;
use crate::sample::Batch;
use crate::schedule::Schedule;
use crate::task::{Scores, Task};
use crate::transport::{Answer, Order, Threads, Workers};
use crate::update::Updates;
use crate::{Dataset, Error};

/// Everything that decides the result of a run, beside the model and the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub task: Task,
    pub mode: Mode,
    pub rounds: u32,
    /// Steps of each worker in the first round, and the factor by which they grow.
    pub local_steps: u32,
    pub rho: f64,
    pub local: Pace,
    pub server: Pace,
    /// How the rates of both change.
    pub schedule: Schedule,
    pub server_steps: ServerSteps,
    /// The budget of automatic server steps, as a share of the work of all workers.
    pub server_share: f64,
    /// Turns counted work and bytes into seconds.
    pub machine: Machine,
    pub optimiser: optim::Method,
    pub decay: f32,
    /// Rounds from one evaluation to the next.
    pub evaluate_every: u32,
    /// Evaluations without a better one after which to stop.
    pub patience: Option<u32>,
    /// Share of all nodes that psgd-sa copies to each part.
    pub copies: f64,
    /// How workers send what they have learnt, where models travel.
    pub updates: Updates,
    pub seed: u64,
}

impl Settings {
    /// A learner from all examples of a dataset, with a fresh optimiser.
    pub fn learner(&self, model: &Model, data: Arc<Dataset>) -> Learner {
        Learner::new(data, self.task, self.optimiser(model))
    }

    fn optimiser(&self, model: &Model) -> Optimiser {
        Optimiser::new(self.optimiser, self.decay, model.params_len())
    }

    /// A pace at the rate of a round.
    pub fn paced(&self, pace: &Pace, round: u32) -> Pace {
        let rate = pace.rate * self.schedule.factor(round, self.rounds);
        Pace { rate, ..pace.clone() }
    }

    /// How models come back from workers. One that stays on the machine is not compressed.
    pub fn updates(&self) -> Updates {
        if self.mode.is_distributed() { self.updates } else { Updates::Fp32 }
    }

    /// What the server may spend where it corrects a model of some data.
    fn budget(&self, model: &Model, data: &Dataset) -> Budget {
        let nodes = 0..data.graph.nodes() as u32;
        let is_possible = || FullBatch::from_nodes(data, nodes).check(model).is_ok();
        let whole = || Batch::whole(data, &data.split.train, model.needs());
        let takes_whole_steps = self.task == Task::Nodes && is_possible();
        let whole_step = takes_whole_steps.then(|| model.work(&whole(), true));
        let (share, machine) = (self.server_share, self.machine);
        Budget { share, machine, whole_step, spent: Spent::default() }
    }

    /// Training nodes of each of the server's steps after some rounds; none: all, on the whole graph.
    fn server_batch(&self, past: &[Round], budget: &Budget) -> Option<usize> {
        self.server_steps.batch(self.server.batch, past, budget)
    }

    /// Whether the server judges averages and corrections.
    fn judges(&self) -> bool {
        self.mode.corrects_workers() && self.server_steps == ServerSteps::Auto
    }

    /// K·ρ^(r−1)
    pub fn local_steps(&self, round: u32) -> u32 {
        let growth = self.rho.powi(round as i32 - 1);
        let steps = (f64::from(self.local_steps) * growth).round();
        steps.clamp(1.0, f64::from(u32::MAX)) as u32
    }
}

impl Default for Settings {
    fn default() -> Self {
        TrainConfig::default().settings(&Facts::default(), false)
    }
}

/// The best model so far, by its validation score.
#[derive(Clone, Debug)]
pub struct Best {
    pub round: u32,
    /// `None` without validation nodes or links: the last model then counts as the best.
    pub valid: Option<f64>,
    pub test: f64,
    pub weights: Weights,
}

/// A training run: the global model, the workers, and the rounds so far.
pub struct Trainer {
    pub settings: Settings,
    pub model: Arc<Model>,
    pub data: Arc<Dataset>,
    pub workers: Box<dyn Workers>,
    pub server: Learner,
    pub(crate) budget: Budget,
    /// Of the rows of all rounds, as they are written.
    pub(crate) rows_hash: Fnv,
    /// What all rounds sent, in bytes.
    pub sent_bytes: u64,
    /// The global model, θ̄ in the paper.
    pub global: Weights,
    pub best: Option<Best>,
    pub rounds: Vec<Round>,
    /// Parts of the graph.
    pub(crate) parts: usize,
    /// Tells one partition from another.
    pub(crate) partition_hash: u64,
    /// Sent once, before the first round.
    pub setup_bytes: u64,
    /// What each part has of a model with a row per node.
    pub(crate) view: Option<PartView>,
}

impl Trainer {
    /// A trainer whose workers are threads of this process.
    pub fn new(
        settings: Settings,
        model: Model,
        data: Arc<Dataset>,
        partition: &Partition,
    ) -> Self {
        let model = Arc::new(model);
        let threads = Threads::new(&settings, &model, &data, partition);
        let (setup_bytes, view) = (threads.setup_bytes, threads.view(&model));
        let trainer = Self::with_workers(settings, model, data, partition, Box::new(threads));
        Self { setup_bytes, view, ..trainer }
    }

    /// A trainer whose workers are elsewhere: each has what its mode sees of its part of `partition`.
    pub fn with_workers(
        settings: Settings,
        model: Arc<Model>,
        data: Arc<Dataset>,
        partition: &Partition,
        workers: Box<dyn Workers>,
    ) -> Self {
        Self {
            global: model.start(settings.seed),
            parts: partition.parts,
            partition_hash: Fnv::of(partition.of.iter().map(|part| u64::from(*part))).0,
            server: settings.learner(&model, data.clone()),
            budget: settings.budget(&model, &data),
            best: None,
            rounds: vec![],
            setup_bytes: 0,
            sent_bytes: 0,
            rows_hash: Fnv::default(),
            workers,
            view: None,
            settings,
            model,
            data,
        }
    }

    /// Whether all rounds are done, or nothing has become better for long.
    pub fn is_done(&self) -> bool {
        let round = self.rounds.len() as u32;
        let stale = |patience: u32| {
            let since = self.best.as_ref().map_or(0, |best| round - best.round);
            u64::from(since) >= u64::from(patience) * u64::from(self.settings.evaluate_every)
        };
        round >= self.settings.rounds || self.settings.patience.is_some_and(stale)
    }

    /// One round. `clock` gives the seconds since some moment.
    pub fn round(&mut self, clock: &dyn Fn() -> Seconds) -> Result<(), Error> {
        let round = self.rounds.len() as u32 + 1;
        let start = self.global.clone();
        let mut watch = Watch { clock, since: clock() };
        let (model, data) = (self.model.clone(), self.data.clone());
        let mut judge = self.judge(round, &model, &data);

        let (answers, meanwhile) = self.learn_locally(round, &start, judge.as_ref())?;
        let local_s = watch.lap();

        let kept = self.average(&start, &answers, judge.as_mut());
        let workers = answers.iter().map(|answer| answer.learnt.work).sum();
        let (corrected, gain) =
            self.correct_globally(&start, kept, workers, meanwhile, judge.as_mut());
        let server_s = watch.lap();

        let loss = self.loss(round, &answers, corrected.as_ref())?;
        let (scores, evaluated) = self.evaluate(round).unzip();
        let evaluated = evaluated.unwrap_or_default();
        let works = Works {
            workers,
            slowest: self.slowest(&answers),
            server: corrected.as_ref().map_or(Work::default(), |corrected| corrected.work),
            judge: judge.map_or(Work::default(), |judge| judge.work),
            evaluate: evaluated,
        };
        let bytes = self.bytes(&answers);
        let row = Round {
            round,
            local_steps: if answers.is_empty() { 0 } else { self.settings.local_steps(round) },
            kept,
            server_steps: corrected.map_or(0, |corrected| corrected.steps),
            server_batch: self.server_batch(),
            loss,
            valid: scores.as_ref().and_then(|scores: &Scores| scores.valid),
            test: scores.as_ref().map(|scores| scores.test),
            further: scores.into_iter().flat_map(|scores| scores.further).collect(),
            bytes,
            gain,
            path: self.critical_path(&answers, &works, &bytes),
            work: works,
            time: Times {
                local_s,
                exposed_s: self.workers.exposed_s(),
                server_s,
                evaluate_s: watch.lap(),
            },
        };
        self.note(&row);
        self.rounds.push(row);
        Ok(())
    }

    /// Goes on after rounds that an earlier process trained.
    pub(crate) fn take_rounds(&mut self, rounds: Vec<Round>) {
        rounds.iter().for_each(|row| self.note(row));
        self.rounds = rounds;
    }

    /// Counts a round in what later ones depend on.
    fn note(&mut self, row: &Round) {
        self.budget.note(row);
        self.sent_bytes += row.bytes.total();
        // A row that cannot be written has no hash; writing it fails too, and says why.
        let _ = serde_json::to_writer(&mut self.rows_hash, row);
    }

    /// Nodes of each of the server's steps in this round, if it takes any.
    fn server_batch(&self) -> Option<usize> {
        let Self { settings, rounds, budget, .. } = self;
        settings.mode.corrects().then(|| settings.server_batch(rounds, budget)).flatten()
    }

    /// Who judges this round, if that is due.
    fn judge<'a>(&mut self, round: u32, model: &'a Model, data: &'a Dataset) -> Option<Judge<'a>> {
        let settings = &self.settings;
        let is_due = settings.judges() && self.budget.judges(&self.rounds);
        is_due.then(|| Judge::draw(&mut self.server, model, data, settings.seed, round))
    }

    /// Every worker takes its steps from the global model. A server that does not wait for the
    /// average corrects meanwhile.
    fn learn_locally(
        &mut self,
        round: u32,
        start: &Weights,
        judge: Option<&Judge>,
    ) -> Result<(Vec<Answer>, Option<Learnt>), Error> {
        let Self { settings, model, workers, server, rounds, budget, .. } = self;
        let order = Order { round, steps: settings.local_steps(round), start };
        let mut corrected = None;
        let judged = judge.map(|judge| &judge.held_out[..]);
        let mut meanwhile = || {
            if settings.mode.does().corrects == Corrects::Meanwhile {
                let correction = Correction { settings, model, past: rounds, budget, judged };
                corrected = Some(correction.take(server, start, None));
            }
        };
        let mut answers = workers.round(&order, &mut meanwhile)?;
        answers.iter_mut().for_each(|answer| self.complete(start, answer));
        Ok((answers, corrected))
    }

    /// Adds the change that a worker sent to the model that it was sent.
    fn complete(&self, start: &Weights, answer: &mut Answer) {
        let Some(change) = answer.change.take() else { return };
        answer.learnt.weights.params = match &self.view {
            Some(view) => change.apply(&view.pick(start, answer.part).params),
            None => change.apply(&start.params),
        };
    }

    /// The weight of each answer in the average: its share of the training nodes. All are 0 if there are none.
    fn shares(&self, answers: &[Answer]) -> Vec<f32> {
        let nodes = |answer: &Answer| self.workers.parts()[answer.part].train_nodes;
        let total: usize = answers.iter().map(nodes).sum();
        answers.iter().map(|answer| nodes(answer) as f32 / total.max(1) as f32).collect()
    }

    /// The work of the worker that takes longest.
    fn slowest(&self, answers: &[Answer]) -> Work {
        let time = |work: &Work| self.settings.machine.seconds(*work);
        let works = answers.iter().map(|answer| answer.learnt.work);
        works.max_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or_default()
    }

    /// Averages the workers' models and moves the global model there, as far as a judgement of this
    /// round or an earlier one found it worth going. Returns the share of the way.
    fn average(&mut self, start: &Weights, answers: &[Answer], judge: Option<&mut Judge>) -> f64 {
        // Parts without training nodes have learnt nothing.
        if self.shares(answers).iter().all(|share| *share == 0.0) {
            return 1.0;
        }
        let average = self.average_of(start, answers);
        let kept = match judge {
            Some(judge) => judge.choose_kept(start, &average),
            None => last_kept(&self.rounds),
        };
        self.global = between(start, &average, kept as f32);
        kept
    }

    /// The mean of the workers' models.
    fn average_of(&self, start: &Weights, answers: &[Answer]) -> Weights {
        let models: Vec<&Weights> = answers.iter().map(|answer| &answer.learnt.weights).collect();
        let shares = self.shares(answers);
        match &self.view {
            Some(view) => {
                let parts: Vec<usize> = answers.iter().map(|answer| answer.part).collect();
                view.average(start, &models, &parts, &shares)
            }
            None => average(&models, &shares),
        }
    }

    /// The server's steps on the whole graph. A judge undoes them if they harm. Returns what was
    /// learnt and, if it was judged, what was gained.
    fn correct_globally(
        &mut self,
        start: &Weights,
        kept: f64,
        workers: Work,
        meanwhile: Option<Learnt>,
        mut judge: Option<&mut Judge>,
    ) -> (Option<Learnt>, Option<f64>) {
        let Self { settings, model, server, rounds, global, budget, .. } = self;
        let before = judge.as_mut().map(|judge| (judge.kept_loss(kept, global), global.clone()));
        let corrected = match settings.mode.does().corrects {
            Corrects::Never => return (None, None),
            Corrects::Average => {
                let judged = judge.as_ref().map(|judge| &judge.held_out[..]);
                let correction = Correction { settings, model, past: rounds, budget, judged };
                let corrected = correction.take(server, global, Some(workers));
                *global = corrected.weights.clone();
                corrected
            }
            Corrects::Meanwhile => {
                let Some(corrected) = meanwhile else { return (None, None) };
                add_change(global, start, &corrected.weights);
                corrected
            }
        };
        let mut gain = None;
        if let (Some(judge), Some((loss, uncorrected))) = (judge, before)
            && corrected.steps > 0
        {
            let gained = 1.0 - judge.loss(global) / loss.max(f64::MIN_POSITIVE);
            if harms(gained) {
                *global = uncorrected;
            }
            gain = Some(gained);
        }
        (Some(corrected), gain)
    }

    /// The mean loss of the round's steps. A model that is no longer finite ends the run.
    fn loss(
        &self,
        round: u32,
        answers: &[Answer],
        corrected: Option<&Learnt>,
    ) -> Result<f64, Error> {
        let shares = self.shares(answers);
        let losses = answers.iter().zip(&shares);
        let loss = match corrected {
            Some(corrected) if answers.is_empty() => corrected.loss,
            _ => losses.map(|(answer, share)| answer.learnt.loss * f64::from(*share)).sum(),
        };
        if !loss.is_finite() || !self.global.is_finite() {
            return Err(Error::Diverged { round, what: "the loss or a parameter" });
        }
        Ok(loss)
    }

    /// Validation and test score on the whole graph with all neighbours, and the work of scoring.
    /// Keeps the best model.
    fn evaluate(&mut self, round: u32) -> Option<(Scores, Work)> {
        let last = round == self.settings.rounds;
        if !last && !round.is_multiple_of(self.settings.evaluate_every) {
            return None;
        }
        let scores = self.settings.task.scores(&self.model, &self.global, &self.data);
        // Of models that score alike at the top, the one that learnt longest counts.
        let is_perfect = scores.valid.is_some_and(|valid| valid >= 1.0);
        let is_better =
            |best: &Best| scores.valid.is_none() || scores.valid > best.valid || is_perfect;
        if self.best.as_ref().is_none_or(is_better) {
            let Scores { valid, test, .. } = scores;
            self.best = Some(Best { round, valid, test, weights: self.global.clone() });
        }
        // Counted as if all nodes were scored.
        let whole = Batch::whole(&self.data, &[], self.model.needs());
        Some((scores, self.model.work(&whole, false)))
    }
}

/// The server's steps of a round.
struct Correction<'a> {
    settings: &'a Settings,
    model: &'a Model,
    past: &'a [Round],
    budget: &'a Budget,
    /// Training nodes that judge the steps, which leave them out; `None`: nobody judges.
    judged: Option<&'a [u32]>,
}

impl Correction<'_> {
    /// Takes them from `start`. The work of the round's workers counts if it is known by now.
    fn take(&self, server: &mut Learner, start: &Weights, workers: Option<Work>) -> Learnt {
        let Self { settings, past, budget, judged, .. } = *self;
        let (round, batch) = (past.len() as u32 + 1, settings.server_batch(past, budget));
        let until = settings.server_steps.until(past, batch, budget, workers, judged.is_some());
        let was_sampled = past.last().is_some_and(|last| last.server_batch.is_some());
        if batch.is_none() && was_sampled {
            // What Adam knows of the noise of sampled steps would keep steps on the whole graph short.
            server.optimiser = settings.optimiser(self.model);
        }
        let pace = Pace { batch, ..settings.paced(&settings.server, round) };
        let without = judged.unwrap_or_default();
        let steps = Steps { seed: settings.seed, who: "server", round, until, without };
        server.learn(self.model, start, &pace, &steps)
    }
}

/// FNV-1a.
#[derive(Clone, Copy)]
pub(crate) struct Fnv(pub u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x0000_0100_0000_01b3);
    }

    pub fn of(numbers: impl IntoIterator<Item = u64>) -> Self {
        let mut hash = Self::default();
        numbers.into_iter().for_each(|number| hash.add(number));
        hash
    }
}

impl std::io::Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        bytes.iter().for_each(|byte| self.add(u64::from(*byte)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Tells how long things take.
struct Watch<'a> {
    clock: &'a dyn Fn() -> Seconds,
    since: Seconds,
}

impl Watch<'_> {
    fn lap(&mut self) -> Seconds {
        let now = (self.clock)();
        now - std::mem::replace(&mut self.since, now)
    }
}
