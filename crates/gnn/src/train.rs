//! Learn locally, correct globally.
//!
//! The graph is cut into parts. In each round every worker takes the global model, learns on its own
//! part alone, and gives its model back; the server averages them, and then takes a few steps on the
//! whole graph, which undo what the cut edges did to the average. Only models travel.

use std::sync::Arc;

use hither_core::record::train::{Bytes, Drift, Round, Times};
use hither_core::{Seconds, seed};

use crate::average::{add_change, average, between};
use crate::correct::{Found, JUDGES, ServerSteps, lowest};
use crate::drift::{Part, Probe};
use crate::local::{Learner, Learnt, Pace, Steps};
pub use crate::mode::Mode;
use crate::mode::{Corrects, Sees};
use crate::model::{Model, Weights};
use crate::optim::{self, Optimiser};
use crate::partition::Partition;
use crate::sample::draw;
use crate::transport::{Answer, Order, Threads, Workers};
use crate::{Dataset, Error};

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub mode: Mode,
    pub rounds: u32,
    /// Steps of each worker in the first round, and the factor by which they grow.
    pub local_steps: u32,
    pub rho: f64,
    pub local: Pace,
    pub server: Pace,
    pub server_steps: ServerSteps,
    pub optimiser: optim::Method,
    pub decay: f32,
    /// Rounds from one evaluation to the next.
    pub evaluate_every: u32,
    /// Drift is measured in the first so many rounds, and from then on once in as many.
    pub probe_every: u32,
    /// Evaluations without a better one after which to stop.
    pub patience: Option<u32>,
    /// Share of all nodes that psgd-sa copies to each part.
    pub copies: f64,
    pub seed: u64,
}

impl Settings {
    /// A learner from all training nodes of a dataset, with a fresh optimiser.
    pub fn learner(&self, model: &Model, data: Arc<Dataset>) -> Learner {
        let train = data.split.train.clone();
        Learner::new(data, train, Optimiser::new(self.optimiser, self.decay, model.params_len()))
    }

    /// K·ρ^(r−1)
    fn local_steps(&self, round: u32) -> u32 {
        let growth = self.rho.powi(round as i32 - 1);
        let steps = (f64::from(self.local_steps) * growth).round();
        steps.clamp(1.0, f64::from(u32::MAX)) as u32
    }

    /// Whether drift is measured: only cut edges cause any, and it changes fastest in the beginning.
    fn is_probed(&self, round: u32) -> bool {
        let every = self.probe_every;
        let is_due = round <= every || round.is_multiple_of(every);
        self.mode.does().workers == Some(Sees::Part) && is_due
    }
}

/// The best model so far, by its validation score.
#[derive(Clone, Debug)]
pub struct Best {
    pub round: u32,
    pub valid: f64,
    pub test: f64,
    pub weights: Weights,
}

pub struct Trainer {
    pub settings: Settings,
    pub model: Arc<Model>,
    pub data: Arc<Dataset>,
    pub workers: Box<dyn Workers>,
    pub server: Learner,
    /// θ̄
    pub global: Weights,
    pub best: Option<Best>,
    pub rounds: Vec<Round>,
    /// Each part's training nodes, by their numbers in the whole graph.
    pub(crate) train_of_parts: Vec<Vec<u32>>,
    /// Tells one partition from another.
    pub(crate) partition_hash: u64,
    /// Sent once, before the first round.
    pub setup_bytes: u64,
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
        let mut train_of_parts = vec![vec![]; partition.parts];
        for node in &data.split.train {
            train_of_parts[partition.of[*node as usize] as usize].push(*node);
        }
        Self {
            global: model.start(settings.seed),
            train_of_parts,
            partition_hash: fnv(&partition.of),
            server: settings.learner(&model, data.clone()),
            best: None,
            rounds: vec![],
            setup_bytes: threads.setup_bytes,
            workers: Box::new(threads),
            settings,
            model,
            data,
        }
    }

    /// Whether all rounds are done, or nothing has become better for long.
    pub fn is_done(&self) -> bool {
        let round = self.rounds.len() as u32;
        let stale = |patience| {
            let since = self.best.as_ref().map_or(0, |best| round - best.round);
            since >= patience * self.settings.evaluate_every
        };
        round >= self.settings.rounds || self.settings.patience.is_some_and(stale)
    }

    /// One round. `clock` gives the seconds since some moment.
    pub fn round(&mut self, clock: &dyn Fn() -> Seconds) -> Result<Round, Error> {
        let round = self.rounds.len() as u32 + 1;
        let start = self.global.clone();
        let mut watch = Watch { clock, since: clock() };

        let (answers, meanwhile) = self.learn_locally(round, &start)?;
        let local_s = watch.lap();

        let drift = self.measure_drift(round, &start, &answers);
        let probe_s = watch.lap();

        let kept = self.average(round, &start, &answers);
        let corrected = self.correct_globally(round, &start, Found { kept, drift }, meanwhile);
        let server_s = watch.lap();

        let loss = self.loss(round, &answers, corrected.as_ref())?;
        let (valid, test) = self.evaluate(round).unzip();
        let row = Round {
            round,
            local_steps: if answers.is_empty() { 0 } else { self.settings.local_steps(round) },
            kept,
            server_steps: corrected.map_or(0, |corrected| corrected.steps),
            loss,
            valid,
            test,
            bytes: self.bytes(&answers),
            drift,
            time: Times { local_s, server_s, probe_s, evaluate_s: watch.lap() },
        };
        self.rounds.push(row.clone());
        Ok(row)
    }

    /// Every worker takes its steps from the global model. A server that does not wait for the
    /// average corrects meanwhile.
    fn learn_locally(
        &mut self,
        round: u32,
        start: &Weights,
    ) -> Result<(Vec<Answer>, Option<Learnt>), Error> {
        let steps = self.settings.local_steps(round);
        let order = Order { round, steps, start, probe: self.settings.is_probed(round) };
        let mut corrected = None;
        let mut meanwhile = || {
            if self.settings.mode.does().corrects == Corrects::Meanwhile {
                let steps = self.settings.server_steps.of(round, steps, None, &self.rounds);
                let server = &mut self.server;
                corrected = Some(correct(server, &self.settings, &self.model, start, round, steps));
            }
        };
        let answers = self.workers.round(&order, &mut meanwhile)?;
        Ok((answers, corrected))
    }

    /// The weight of each answer in the average: its share of the training nodes.
    fn shares(&self, answers: &[Answer]) -> Vec<f32> {
        let nodes = |answer: &Answer| self.workers.parts()[answer.part].train_nodes;
        let total: usize = answers.iter().map(nodes).sum();
        answers.iter().map(|answer| nodes(answer) as f32 / total.max(1) as f32).collect()
    }

    /// How far the workers' gradients are from the whole graph's, if they measured it.
    fn measure_drift(&mut self, round: u32, start: &Weights, answers: &[Answer]) -> Option<Drift> {
        let shares = self.shares(answers);
        let parts: Option<Vec<Part>> = answers
            .iter()
            .zip(&shares)
            .map(|(answer, share)| {
                let train = &self.train_of_parts[answer.part][..];
                let probed = answer.probed.as_ref()?;
                Some(Part { train, number: answer.part, share: *share, probed })
            })
            .collect();
        let parts = parts.filter(|parts| !parts.is_empty())?;
        let squares = answers.iter().zip(&shares);
        let squares = squares.map(|(a, share)| a.learnt.gradient_squared * f64::from(*share));
        let probe = Probe {
            model: &self.model,
            weights: start,
            seed: self.settings.seed,
            round,
            fanout: self.settings.local.seen(),
            full: &self.settings.server.fanout,
        };
        Some(probe.server_half(&parts, &mut self.server, squares.sum()))
    }

    /// Averages the workers' models, and goes there as far as it is worth going.
    fn average(&mut self, round: u32, start: &Weights, answers: &[Answer]) -> f64 {
        if answers.is_empty() {
            return 1.0;
        }
        let models: Vec<&Weights> = answers.iter().map(|answer| &answer.learnt.weights).collect();
        let average = average(&models, &self.shares(answers));
        let kept = self.worth(round, start, &average);
        self.global = between(start, &average, kept as f32);
        kept
    }

    /// How far it is worth going to the average, of the whole way: to where the loss of the whole
    /// graph is lowest.
    fn worth(&mut self, round: u32, start: &Weights, average: &Weights) -> f64 {
        let settings = &self.settings;
        if !settings.mode.corrects_workers() || settings.server_steps != ServerSteps::Auto {
            return 1.0;
        }
        let name = format!("judge/{round}");
        let nodes = draw(&self.server.train, JUDGES, &mut seed::stream(settings.seed, &name));
        let half = between(start, average, 0.5);
        let (fanout, name) = (&settings.server.fanout, (settings.seed, name.as_str()));
        lowest(self.server.losses(&self.model, [start, &half, average], nodes, fanout, name))
    }

    /// The server's steps on the whole graph.
    fn correct_globally(
        &mut self,
        round: u32,
        start: &Weights,
        now: Found,
        meanwhile: Option<Learnt>,
    ) -> Option<Learnt> {
        let settings = &self.settings;
        match settings.mode.does().corrects {
            Corrects::Never => None,
            Corrects::Average => {
                let local = settings.local_steps(round);
                let steps = settings.server_steps.of(round, local, Some(now), &self.rounds);
                let server = &mut self.server;
                let corrected = correct(server, settings, &self.model, &self.global, round, steps);
                self.global = corrected.weights.clone();
                Some(corrected)
            }
            Corrects::Meanwhile => {
                let corrected = meanwhile?;
                add_change(&mut self.global, start, &corrected.weights);
                Some(corrected)
            }
        }
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

    /// What crossed the network: every worker's model both ways, and what workers fetched.
    fn bytes(&self, answers: &[Answer]) -> Bytes {
        let mut bytes = Bytes::default();
        if self.settings.mode.is_distributed() {
            for Answer { learnt, .. } in answers {
                bytes.model_down_bytes += self.global.bytes();
                bytes.model_up_bytes += learnt.weights.bytes();
                bytes.add(&learnt.bytes);
            }
        }
        bytes
    }

    /// Validation and test score on the whole graph, all neighbours seen; keeps the best model.
    fn evaluate(&mut self, round: u32) -> Option<(f64, f64)> {
        let last = round == self.settings.rounds;
        if !last && !round.is_multiple_of(self.settings.evaluate_every) {
            return None;
        }
        let outputs = self.model.infer(&self.global, &self.data);
        let valid = outputs.score(&self.data, &self.data.split.valid);
        let test = outputs.score(&self.data, &self.data.split.test);
        if self.best.as_ref().is_none_or(|best| valid > best.valid) {
            self.best = Some(Best { round, valid, test, weights: self.global.clone() });
        }
        Some((valid, test))
    }
}

/// The server takes steps on the whole graph.
fn correct(
    server: &mut Learner,
    settings: &Settings,
    model: &Model,
    start: &Weights,
    round: u32,
    count: u32,
) -> Learnt {
    let steps = Steps { seed: settings.seed, who: "server", round, count };
    server.learn(model, start, &settings.server, &steps)
}

/// FNV-1a.
fn fnv(numbers: &[u32]) -> u64 {
    let step =
        |hash: u64, number: &u32| (hash ^ u64::from(*number)).wrapping_mul(0x0000_0100_0000_01b3);
    numbers.iter().fold(0xcbf2_9ce4_8422_2325, step)
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
