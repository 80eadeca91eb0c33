//! Learn locally, correct globally.
//!
//! The graph is cut into parts. In each round every worker takes the global model, learns on its own
//! part alone, and gives its model back; the server averages them, and then takes a few steps on the
//! whole graph, which undo what the cut edges did to the average. Only models travel.

use std::str::FromStr;
use std::sync::Arc;

use hither_core::record::train::{Bytes, Drift, Header, Round, Summary, Times};
use hither_core::{Seconds, seed};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::average::{add_change, average, between};
use crate::correct::{Found, JUDGES, ServerSteps, lowest};
use crate::drift::Probe;
use crate::local::{Learner, Learnt, Pace, Steps};
use crate::model::{Model, Weights};
use crate::optim::{self, Optimiser};
use crate::partition::Partition;
use crate::sample::draw;
use crate::{Dataset, Error, parts};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One machine with the whole graph, taking the batches of all workers together.
    Single,
    /// Workers learn on their parts; models are averaged.
    PsgdPa,
    /// And the server corrects the average.
    Llcg,
    /// The server corrects the last global model while workers learn; what it learnt is added to
    /// the average, so that nobody waits for it.
    LlcgStale,
    /// Workers draw neighbours from the whole graph and fetch the features of those elsewhere.
    Ggs,
    /// As psgd-pa, and each part stores copies of some nodes around it.
    PsgdSa,
    /// The server's steps alone.
    ServerOnly,
}

impl Mode {
    pub const ALL: [Self; 7] = [
        Self::Single,
        Self::PsgdPa,
        Self::Llcg,
        Self::LlcgStale,
        Self::Ggs,
        Self::PsgdSa,
        Self::ServerOnly,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::PsgdPa => "psgd-pa",
            Self::Llcg => "llcg",
            Self::LlcgStale => "llcg-stale",
            Self::Ggs => "ggs",
            Self::PsgdSa => "psgd-sa",
            Self::ServerOnly => "server-only",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no mode is named `{name}`; there are {names}")
        })
    }
}

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
    pub model: Model,
    pub data: Arc<Dataset>,
    pub workers: Vec<Learner>,
    pub server: Learner,
    /// θ̄
    pub global: Weights,
    pub best: Option<Best>,
    pub rounds: Vec<Round>,
    /// The numbers that each worker's nodes have in the whole graph.
    globals: Vec<Vec<u32>>,
    /// Tells one partition from another.
    pub(crate) partition_hash: u64,
    /// Each worker's share of the training nodes.
    shares: Vec<f32>,
    /// Sent once, before the first round.
    pub setup_bytes: u64,
}

impl Trainer {
    pub fn new(
        settings: Settings,
        model: Model,
        data: Arc<Dataset>,
        partition: &Partition,
    ) -> Self {
        let new_optimiser =
            || Optimiser::new(settings.optimiser, settings.decay, model.params_len());
        let learner = |data: Arc<Dataset>| {
            let train = data.split.train.clone();
            Learner::new(data, train, new_optimiser())
        };
        let mut setup_bytes = 0;
        let workers: Vec<Learner> = match settings.mode {
            Mode::ServerOnly => vec![],
            Mode::Single => vec![learner(data.clone())],
            Mode::PsgdPa | Mode::Llcg | Mode::LlcgStale => {
                parts::cut(&data, partition).into_iter().map(|part| learner(part.into())).collect()
            }
            Mode::PsgdSa => {
                let count = (settings.copies * data.graph.nodes() as f64).round() as usize;
                let (parts, bytes) = parts::cut_with_copies(&data, partition, count, settings.seed);
                setup_bytes = bytes;
                parts.into_iter().map(|part| learner(part.into())).collect()
            }
            Mode::Ggs => parts::homes(&data, partition)
                .into_iter()
                .map(|(train, home)| {
                    let mut worker = Learner::new(data.clone(), train, new_optimiser());
                    worker.home = Some(home);
                    worker
                })
                .collect(),
        };
        let total: usize = workers.iter().map(|worker| worker.train.len()).sum();
        let share = |worker: &Learner| worker.train.len() as f32 / total.max(1) as f32;
        Self {
            global: model.start(settings.seed),
            shares: workers.iter().map(share).collect(),
            globals: partition.nodes_of(),
            partition_hash: fnv(&partition.of),
            server: learner(data.clone()),
            best: None,
            rounds: vec![],
            setup_bytes,
            settings,
            model,
            data,
            workers,
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
        let mode = self.settings.mode;
        let local_steps = self.local_steps(round);
        let mut watch = Watch { clock, since: clock() };

        // A server that does not wait decides before this round is measured.
        let blind = self.settings.server_steps.of(round, local_steps, None, &self.rounds);

        // Learn locally. A server that need not wait for the average corrects meanwhile.
        let start = self.global.clone();
        let (learnt, meanwhile) = rayon::join(
            || learn(&mut self.workers, &self.settings, &self.model, &start, round, local_steps),
            || {
                let (server, settings, model) = (&mut self.server, &self.settings, &self.model);
                (mode == Mode::LlcgStale)
                    .then(|| correct(server, settings, model, &start, round, blind))
            },
        );
        let local_s = watch.lap();

        // Measure how far apart that led, where it was cut edges that led there.
        let drift = self.measure(round, &start, &learnt);
        let probe_s = watch.lap();

        // Average, and go there as far as it is worth going.
        let mut kept = 1.0;
        if !learnt.is_empty() {
            let models: Vec<&Weights> = learnt.iter().map(|learnt| &learnt.weights).collect();
            let average = average(&models, &self.shares);
            kept = self.worth(round, &start, &average);
            self.global = between(&start, &average, kept as f32);
        }

        // Correct globally.
        let steps = match mode {
            Mode::LlcgStale => blind,
            Mode::Llcg | Mode::ServerOnly => {
                let now = Some(Found { kept, drift });
                self.settings.server_steps.of(round, local_steps, now, &self.rounds)
            }
            _ => 0,
        };
        let corrected = match (mode, meanwhile) {
            (Mode::LlcgStale, Some(corrected)) => {
                add_change(&mut self.global, &start, &corrected.weights);
                Some(corrected)
            }
            (Mode::Llcg | Mode::ServerOnly, _) => {
                let (server, settings, model) = (&mut self.server, &self.settings, &self.model);
                let corrected = correct(server, settings, model, &self.global, round, steps);
                self.global = corrected.weights.clone();
                Some(corrected)
            }
            _ => None,
        };
        let server_s = watch.lap();

        let loss = if learnt.is_empty() {
            corrected.map_or(0.0, |corrected| corrected.loss)
        } else {
            let losses = learnt.iter().zip(&self.shares);
            losses.map(|(learnt, share)| learnt.loss * f64::from(*share)).sum()
        };
        if !loss.is_finite() || !self.global.is_finite() {
            return Err(Error::Diverged { round, what: "the loss or a parameter" });
        }
        let bytes = self.bytes(&learnt);
        let scores = self.evaluate(round);
        let time = Times { local_s, server_s, probe_s, evaluate_s: watch.lap() };
        let (valid, test) = scores.unzip();
        let local_steps = if self.workers.is_empty() { 0 } else { local_steps };
        let row = Round {
            round,
            local_steps,
            kept,
            server_steps: steps,
            loss,
            valid,
            test,
            bytes,
            drift,
            time,
        };
        self.rounds.push(row.clone());
        Ok(row)
    }

    /// K·ρ^(r−1)
    fn local_steps(&self, round: u32) -> u32 {
        let growth = self.settings.rho.powi(round as i32 - 1);
        let steps = (f64::from(self.settings.local_steps) * growth).round();
        steps.clamp(1.0, f64::from(u32::MAX)) as u32
    }

    fn measure(&mut self, round: u32, start: &Weights, learnt: &[Learnt]) -> Option<Drift> {
        let cut = matches!(self.settings.mode, Mode::PsgdPa | Mode::Llcg | Mode::LlcgStale);
        let every = self.settings.probe_every;
        // Drift changes fastest in the beginning.
        let due = round <= every || round.is_multiple_of(every);
        if !cut || !due {
            return None;
        }
        let squares = learnt.iter().zip(&self.shares);
        let squares = squares.map(|(learnt, share)| learnt.gradient_squared * f64::from(*share));
        let probe = Probe {
            model: &self.model,
            weights: start,
            seed: self.settings.seed,
            round,
            fanout: self.settings.local.seen(),
            full: &self.settings.server.fanout,
        };
        let local_squared = squares.sum();
        let (workers, server) = (&mut self.workers, &mut self.server);
        Some(probe.measure(workers, &self.globals, &self.shares, server, local_squared))
    }

    /// How far it is worth going to the average, of the whole way: to where the loss of the whole
    /// graph is lowest.
    fn worth(&mut self, round: u32, start: &Weights, average: &Weights) -> f64 {
        let settings = &self.settings;
        let corrects = matches!(settings.mode, Mode::Llcg | Mode::LlcgStale);
        if !corrects || settings.server_steps != ServerSteps::Auto {
            return 1.0;
        }
        let name = format!("judge/{round}");
        let nodes = draw(&self.server.train, JUDGES, &mut seed::stream(settings.seed, &name));
        let half = between(start, average, 0.5);
        let (fanout, name) = (&settings.server.fanout, (settings.seed, name.as_str()));
        lowest(self.server.losses(&self.model, [start, &half, average], nodes, fanout, name))
    }

    /// What crossed the network: every worker's model both ways, and what workers fetched.
    fn bytes(&self, learnt: &[Learnt]) -> Bytes {
        let mut bytes = Bytes::default();
        if self.settings.mode != Mode::Single {
            for learnt in learnt {
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

impl Trainer {
    /// What is trained, on what. `partition` says how it was cut.
    pub fn header(&self, hither: &str, partition: &str, cut_share: f64) -> Header {
        let (data, settings) = (&self.data, &self.settings);
        let kinds: Vec<&str> = self.model.spec.layers.iter().map(|kind| kind.name()).collect();
        Header {
            hither: hither.into(),
            dataset: data.name.clone(),
            nodes: data.graph.nodes() as u64,
            edges: data.graph.edges() as u64,
            features: data.features.dim() as u64,
            classes: data.labels.count() as u64,
            metric: data.metric.name().into(),
            mode: settings.mode.name().into(),
            model: kinds.join(","),
            parameters: self.model.params_len() as u64,
            parts: self.globals.len() as u32,
            partition: partition.into(),
            cut_share,
            rounds: settings.rounds,
            seed: settings.seed,
        }
    }

    /// What came of the rounds so far.
    pub fn summary(&self) -> Summary {
        let mut bytes = Bytes { features_down_bytes: self.setup_bytes, ..Bytes::default() };
        let mut time = Times::default();
        for round in &self.rounds {
            bytes.add(&round.bytes);
            time.add(&round.time);
        }
        let best = self.best.as_ref();
        Summary {
            mode: self.settings.mode.name().into(),
            seed: self.settings.seed,
            rounds: self.rounds.len() as u32,
            best_round: best.map_or(0, |best| best.round),
            valid: best.map_or(0.0, |best| best.valid),
            test: best.map_or(0.0, |best| best.test),
            server_steps: self.rounds.iter().map(|round| u64::from(round.server_steps)).sum(),
            bytes,
            time,
        }
    }
}

/// Every worker takes its steps from the same model.
fn learn(
    workers: &mut [Learner],
    settings: &Settings,
    model: &Model,
    start: &Weights,
    round: u32,
    count: u32,
) -> Vec<Learnt> {
    let of = |(part, worker): (usize, &mut Learner)| {
        let who = format!("local/{part}");
        let steps = Steps { seed: settings.seed, who: &who, round, count };
        worker.learn(model, start, &settings.local, &steps)
    };
    workers.par_iter_mut().enumerate().map(of).collect()
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
