//! Tiresias (NSDI 2019): least attained service in two dimensions, discretised into queues, and
//! placement that consolidates only models whose largest tensor is a large part of the whole.
//!
//! The paper leaves the thresholds between queues to the operator. By default they are quantiles of the
//! GPU time of the jobs that have ended: a fixed pair suits one workload and makes another FIFO.

mod history;

use std::collections::BTreeMap;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::event::Timer;
use crate::job::JobId;
use crate::order::SortKey;
use crate::policy::placing::Placing;
use crate::policy::replan::{Order, Ranks};
use crate::policy::{Policy, saved_whole};
use crate::state::Turn;
use history::History;

pub const ABOUT: &str = "Tiresias: 2D-LAS in queues, consolidates models with a skewed tensor";
pub const ABOUT_AUTHORS: &str = "tiresias with the thresholds of its authors' simulator";
pub const ABOUT_STRICT: &str = "tiresias that waits for its best tier for ever";
pub const ABOUT_PLUS: &str = "tiresias that keeps the models together that need it (Tiresias+)";
pub const ABOUT_GITTINS: &str = "Tiresias with the Gittins index learned from finished jobs";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Quantiles of the GPU time of ended jobs; a job that has had more moves to the next queue.
    pub quantiles: Vec<f64>,
    /// Fixed thresholds in GPU seconds; if there are any, they take the place of the quantiles.
    pub thresholds: Vec<f64>,
    /// A job that has waited this many times its executed time starts over in the first queue.
    pub promote_knob: f64,
    pub placing: Placing,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            quantiles: vec![0.5, 0.85],
            thresholds: Vec::new(),
            promote_knob: f64::INFINITY,
            placing: Placing::Skew,
        }
    }
}

/// The thresholds of the authors' simulator, in GPU seconds.
const AUTHORS: [f64; 2] = [3250.0, 7200.0];
/// Until so many jobs have ended, the authors' thresholds stand in for quantiles.
const ENDED_MIN: usize = 16;
/// Thresholds that hardly move stay as they are: every change ranks all jobs anew.
const HARDLY: f64 = 0.1;

pub fn las(options: &Options) -> Box<dyn Policy> {
    Box::new(Tiresias::new(options, false))
}

pub fn authors(options: &Options) -> Box<dyn Policy> {
    las(&Options { thresholds: AUTHORS.to_vec(), placing: Placing::Skew, ..options.clone() })
}

pub fn strict(options: &Options) -> Box<dyn Policy> {
    las(&Options { placing: Placing::Strict, ..options.clone() })
}

pub fn plus(options: &Options) -> Box<dyn Policy> {
    las(&Options { placing: Placing::ByProfile, ..options.clone() })
}

pub fn gittins(options: &Options) -> Box<dyn Policy> {
    Box::new(Tiresias::new(options, true))
}

/// Queue; running before waiting; Gittins index, highest first. Then the order of submission.
type Rank = (usize, bool, SortKey);

/// GPUs, since when they run, time held before, service forgiven: the service at any time.
type Cohort = (u32, SortKey, SortKey, SortKey);

#[derive(Debug, Serialize, Deserialize)]
struct Tiresias {
    #[serde(skip)]
    options: Options,
    /// Thresholds from the jobs that have ended.
    learned: Vec<f64>,
    /// Whether the Gittins index ranks the jobs of a queue.
    by_index: bool,
    history: History,
    ranks: Ranks<Rank, Cohort>,
    /// Service forgiven by a promotion, by job.
    forgiven: BTreeMap<JobId, f64>,
}

impl Tiresias {
    fn new(options: &Options, by_index: bool) -> Self {
        Self {
            options: options.clone(),
            learned: AUTHORS.to_vec(),
            by_index,
            history: History::default(),
            ranks: Ranks::default(),
            forgiven: BTreeMap::new(),
        }
    }

    /// GPU seconds of service at which a job moves to the next queue.
    fn thresholds(&self) -> &[f64] {
        match (&self.options.thresholds[..], &self.options.quantiles[..]) {
            ([], []) => &[],
            ([], _) => &self.learned,
            (fixed, _) => fixed,
        }
    }

    /// A job has ended after so much service.
    fn learn(&mut self, turn: &mut Turn, service: f64) {
        let has_quantiles =
            self.options.thresholds.is_empty() && !self.options.quantiles.is_empty();
        if !(self.by_index || has_quantiles) || !self.history.add(service) {
            return;
        }
        let moved = has_quantiles && self.history.len() >= ENDED_MIN && {
            let quantiles = self.options.quantiles.iter();
            let learned: Vec<f64> = quantiles.map(|&q| self.history.quantile(q)).collect();
            let mut pairs = learned.iter().zip(&self.learned);
            let hardly = learned.len() == self.learned.len()
                && pairs.all(|(is, was)| (is - was).abs() <= HARDLY * was);
            if !hardly {
                self.learned = learned;
            }
            !hardly
        };
        if self.by_index {
            let thresholds = self.thresholds().to_vec();
            self.history.set_floors(&thresholds);
        }
        if moved || self.by_index {
            self.ranks.revise_all();
        }
        if moved {
            let mut ranks = std::mem::take(&mut self.ranks);
            ranks.rank_waiting(|id| self.key(turn, id));
            self.ranks = ranks;
            let running: Vec<JobId> = turn.state.running.iter().copied().collect();
            running.into_iter().for_each(|id| self.await_jump(turn, id));
        }
    }

    /// Wakes the policy when a running job reaches the next queue.
    fn await_jump(&self, turn: &mut Turn, id: JobId) {
        if let Some(at_s) = self.next_jump_s(turn, id) {
            turn.set_timer(Timer::Job(id), at_s);
        }
    }

    fn service(&self, turn: &Turn, id: JobId) -> f64 {
        let job = turn.state.job(id);
        f64::from(job.gpus()) * job.held_at(turn.now()) - self.forgiven.get(&id).unwrap_or(&0.0)
    }

    /// A queue jump is due exactly when the service reaches the threshold: allow for rounding.
    fn queue(&self, service: f64) -> usize {
        self.thresholds().iter().filter(|&&t| service >= t * (1.0 - 1e-9)).count()
    }

    /// The moment at which a job that has just started reaches the next queue.
    fn next_jump_s(&self, turn: &Turn, id: JobId) -> Option<Seconds> {
        let service = self.service(turn, id);
        let limit = self.thresholds().iter().find(|&&t| service < t * (1.0 - 1e-9))?;
        Some(turn.now() + (limit - service) / f64::from(turn.state.job(id).gpus()))
    }

    fn await_promotion(&self, turn: &mut Turn, id: JobId) {
        let job = turn.state.job(id);
        let at_s = job.since_s + self.options.promote_knob * job.held_s;
        if job.held_s > 0.0 && at_s.is_finite() {
            turn.set_timer(Timer::Job(id), at_s);
        }
    }
}

impl Order for Tiresias {
    type Key = Rank;
    type Cohort = Cohort;

    fn key(&self, turn: &Turn, id: JobId) -> Rank {
        let service = self.service(turn, id);
        let queue = self.queue(service);
        let index = match self.by_index {
            true => {
                let limit = self.thresholds().get(queue).copied().unwrap_or(f64::INFINITY);
                -self.history.gittins_index(service, limit - service)
            }
            false => 0.0,
        };
        (queue, turn.state.job(id).is_waiting(), SortKey(index))
    }

    /// Service only grows while a job runs: it keeps its queue until the next threshold, and within
    /// a block of the history its index does not fall below the block's least.
    fn limit(&self, turn: &Turn, id: JobId) -> (Rank, Seconds) {
        let service = self.service(turn, id);
        let queue = self.queue(service);
        let threshold = self.thresholds().get(queue).copied().unwrap_or(f64::INFINITY);
        let (rank, until) = match self.by_index {
            true => {
                let (index, until) = self.history.floor(queue, service);
                (-index, until)
            }
            false => (0.0, f64::INFINITY),
        };
        let until = until.min(threshold * (1.0 - 1e-9));
        // A moment earlier, for rounding.
        let until_s = turn.now() + (until - service) / f64::from(turn.state.job(id).gpus()) - 1e-3;
        ((queue, false, SortKey(rank)), until_s)
    }

    fn cohort(&self, turn: &Turn, id: JobId) -> Cohort {
        let job = turn.state.job(id);
        let forgiven = self.forgiven.get(&id).copied().unwrap_or(0.0);
        (job.gpus(), SortKey(job.since_s), SortKey(job.held_s), SortKey(forgiven))
    }

    fn placing(&self) -> Placing {
        self.options.placing
    }
}

impl Policy for Tiresias {
    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        let rank = self.key(turn, id);
        self.ranks.insert(turn, rank, id);
        self.await_promotion(turn, id);
    }

    fn forget(&mut self, turn: &mut Turn, id: JobId) {
        self.ranks.remove(id);
        self.forgiven.remove(&id);
        let job = turn.state.job(id);
        let service = f64::from(job.gpus()) * job.held_s;
        self.learn(turn, service);
    }

    fn started(&mut self, id: JobId) {
        self.ranks.revise(id);
    }

    fn adopt(&mut self, turn: &mut Turn, id: JobId) {
        self.ranks.remove(id);
        self.await_jump(turn, id);
    }

    fn timer(&mut self, turn: &mut Turn, timer: Timer) {
        let Timer::Job(id) = timer else { return };
        let job = turn.state.job(id);
        let patience_s = self.options.promote_knob * job.held_s;
        if job.is_waiting() && turn.now() >= job.since_s + patience_s {
            self.forgiven.insert(id, f64::from(job.gpus()) * job.held_s);
            let rank = self.key(turn, id);
            self.ranks.insert(turn, rank, id);
        } else if job.run().is_some() {
            self.await_jump(turn, id);
        }
    }

    saved_whole!(options);

    fn schedule(&mut self, turn: &mut Turn) {
        let mut ranks = std::mem::take(&mut self.ranks);
        let (started, preempted) = ranks.replan(turn, self);
        self.ranks = ranks;
        for id in started {
            self.await_jump(turn, id);
        }
        for id in preempted {
            self.await_promotion(turn, id);
        }
    }
}
