//! Tiresias (NSDI 2019): least attained service in two dimensions, discretised into queues, and
//! placement that consolidates only models whose largest tensor is a large part of the whole.

mod history;

use std::collections::BTreeMap;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Placement, PoolId};
use crate::event::Timer;
use crate::job::JobId;
use crate::order::Total;
use crate::policy::replan::{Order, Ranks};
use crate::policy::{Policy, saved_whole};
use crate::state::{JobState, Turn};
use history::History;

pub const ABOUT: &str = "Tiresias: discretised 2D-LAS, consolidates models with a skewed tensor";
pub const ABOUT_GITTINS: &str = "Tiresias with the Gittins index learned from finished jobs";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// GPU seconds of service at which a job moves to the next queue.
    pub thresholds: Vec<f64>,
    /// A job that has waited this many times its executed time starts over in the first queue.
    pub promote_knob: f64,
    /// Largest tensor's share of the gradient from which a model is consolidated.
    pub skew: f64,
}

impl Default for Options {
    fn default() -> Self {
        // The thresholds of the authors' simulator.
        Self { thresholds: vec![3250.0, 7200.0], promote_knob: f64::INFINITY, skew: 0.5 }
    }
}

pub fn las(options: &Options) -> Box<dyn Policy> {
    Box::new(Tiresias::new(options, None))
}

pub fn gittins(options: &Options) -> Box<dyn Policy> {
    Box::new(Tiresias::new(options, Some(History::default())))
}

/// Queue; running before waiting; Gittins index, highest first. Then the order of submission.
type Rank = (usize, bool, Total);

/// GPUs, since when they run, time held before, service forgiven: the service at any time.
type Cohort = (u32, Total, Total, Total);

#[derive(Debug, Serialize, Deserialize)]
struct Tiresias {
    #[serde(skip)]
    options: Options,
    history: Option<History>,
    ranks: Ranks<Rank, Cohort>,
    /// Service forgiven by a promotion, by job.
    forgiven: BTreeMap<JobId, f64>,
}

impl Tiresias {
    fn new(options: &Options, history: Option<History>) -> Self {
        Self {
            options: options.clone(),
            history,
            ranks: Ranks::default(),
            forgiven: BTreeMap::new(),
        }
    }

    fn service(&self, turn: &Turn, id: JobId) -> f64 {
        let job = turn.state.job(id);
        f64::from(job.gpus()) * job.held_at(turn.now()) - self.forgiven.get(&id).unwrap_or(&0.0)
    }

    /// A queue jump is due exactly when the service reaches the threshold: allow for rounding.
    fn queue(&self, service: f64) -> usize {
        self.options.thresholds.iter().filter(|&&t| service >= t * (1.0 - 1e-9)).count()
    }

    /// The moment at which a job that has just started reaches the next queue.
    fn next_jump_s(&self, turn: &Turn, id: JobId) -> Option<Seconds> {
        let service = self.service(turn, id);
        let limit = self.options.thresholds.iter().find(|&&t| service < t * (1.0 - 1e-9))?;
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
        let index = match &self.history {
            Some(history) => {
                let limit = self.options.thresholds.get(queue).copied().unwrap_or(f64::INFINITY);
                -history.gittins_index(service, limit - service)
            }
            None => 0.0,
        };
        (queue, turn.state.job(id).is_waiting(), Total(index))
    }

    /// Service only grows while a job runs: it keeps its queue until the next threshold, and within
    /// a block of the history its index does not fall below the block's least.
    fn limit(&self, turn: &Turn, id: JobId) -> (Rank, Seconds) {
        let service = self.service(turn, id);
        let queue = self.queue(service);
        let threshold = self.options.thresholds.get(queue).copied().unwrap_or(f64::INFINITY);
        let (rank, until) = match &self.history {
            Some(history) => {
                let (index, until) = history.floor(queue, service);
                (-index, until)
            }
            None => (0.0, f64::INFINITY),
        };
        let until = until.min(threshold * (1.0 - 1e-9));
        // A moment earlier, for rounding.
        let until_s = turn.now() + (until - service) / f64::from(turn.state.job(id).gpus()) - 1e-3;
        ((queue, false, Total(rank)), until_s)
    }

    fn cohort(&self, turn: &Turn, id: JobId) -> Cohort {
        let job = turn.state.job(id);
        let forgiven = self.forgiven.get(&id).copied().unwrap_or(0.0);
        (job.gpus(), Total(job.since_s), Total(job.held_s), Total(forgiven))
    }

    /// Skewed models as close together as possible; the others on the first GPUs that are free.
    fn place(&self, cluster: &Cluster, job: &JobState, pool: PoolId) -> Option<Placement> {
        match job.job.profile.skew >= self.options.skew {
            true => cluster.best_offer(job.demand(), Some(pool)),
            false => cluster.first_fit(job.demand(), pool),
        }
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
        if let Some(history) = &mut self.history
            && history.add(f64::from(job.gpus()) * job.held_s)
        {
            history.set_floors(&self.options.thresholds);
            self.ranks.revise_all();
        }
    }

    fn started(&mut self, id: JobId) {
        self.ranks.revise(id);
    }

    fn adopt(&mut self, turn: &mut Turn, id: JobId) {
        self.ranks.remove(id);
        if let Some(at_s) = self.next_jump_s(turn, id) {
            turn.set_timer(Timer::Job(id), at_s);
        }
    }

    fn timer(&mut self, turn: &mut Turn, timer: Timer) {
        let Timer::Job(id) = timer else { return };
        let job = turn.state.job(id);
        let patience_s = self.options.promote_knob * job.held_s;
        if job.is_waiting() && turn.now() >= job.since_s + patience_s {
            self.forgiven.insert(id, f64::from(job.gpus()) * job.held_s);
            let rank = self.key(turn, id);
            self.ranks.insert(turn, rank, id);
        } else if job.run().is_some()
            && let Some(at_s) = self.next_jump_s(turn, id)
        {
            turn.set_timer(timer, at_s);
        }
    }

    saved_whole!(options);

    fn schedule(&mut self, turn: &mut Turn) {
        let mut ranks = std::mem::take(&mut self.ranks);
        let (started, preempted) = ranks.replan(turn, self);
        self.ranks = ranks;
        for id in started {
            if let Some(at_s) = self.next_jump_s(turn, id) {
                turn.set_timer(Timer::Job(id), at_s);
            }
        }
        for id in preempted {
            self.await_promotion(turn, id);
        }
    }
}
