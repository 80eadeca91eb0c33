//! Tiresias (NSDI 2019): least attained service in two dimensions, discretised into queues, and
//! placement that consolidates only models whose largest tensor is a large part of the whole.

use std::collections::BTreeMap;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Placement, PoolId};
use crate::event::Timer;
use crate::job::JobId;
use crate::order::Total;
use crate::policy::replan::Ranks;
use crate::policy::{Policy, saved_whole};
use crate::state::{JobState, Turn};

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

#[derive(Debug, Serialize, Deserialize)]
struct Tiresias {
    #[serde(skip)]
    options: Options,
    history: Option<History>,
    ranks: Ranks<Rank>,
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

    fn rank(&self, turn: &Turn, id: JobId) -> Rank {
        let service = self.service(turn, id);
        // A queue jump is due exactly when the service reaches the threshold: allow for rounding.
        let queue =
            self.options.thresholds.iter().filter(|&&t| service >= t * (1.0 - 1e-9)).count();
        let index = match &self.history {
            Some(history) => {
                let limit = self.options.thresholds.get(queue).copied().unwrap_or(f64::INFINITY);
                -history.gittins_index(service, limit - service)
            }
            None => 0.0,
        };
        (queue, turn.state.job(id).is_waiting(), Total(index))
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

/// Skewed models as close together as possible; the others on the first GPUs that are free.
fn place(cluster: &Cluster, job: &JobState, pool: PoolId, skew: f64) -> Option<Placement> {
    match job.job.profile.skew >= skew {
        true => cluster.best_offer(job.demand(), Some(pool)),
        false => cluster.first_fit(job.demand(), pool),
    }
}

impl Policy for Tiresias {
    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        self.ranks.insert(self.rank(turn, id), id);
        self.await_promotion(turn, id);
    }

    fn forget(&mut self, turn: &mut Turn, id: JobId) {
        self.ranks.remove(id);
        self.forgiven.remove(&id);
        let job = turn.state.job(id);
        if let Some(history) = &mut self.history {
            history.add(f64::from(job.gpus()) * job.held_s);
        }
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
            self.ranks.insert(self.rank(turn, id), id);
        } else if job.run().is_some()
            && let Some(at_s) = self.next_jump_s(turn, id)
        {
            turn.set_timer(timer, at_s);
        }
    }

    saved_whole!(options);

    fn schedule(&mut self, turn: &mut Turn) {
        let mut ranks = std::mem::take(&mut self.ranks);
        let skew = self.options.skew;
        let (started, preempted) = ranks.replan(
            turn,
            |turn, id| self.rank(turn, id),
            |cluster, job, pool| place(cluster, job, pool, skew),
        );
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

/// Finished jobs that are remembered.
const SERVICES_MAX: usize = 1 << 17;

/// Total services of finished jobs: the distribution that the Gittins index is about.
#[derive(Debug, Default, Serialize, Deserialize)]
struct History {
    /// Sorted, and the sums of its prefixes.
    services: Vec<f64>,
    prefix: Vec<f64>,
    fresh: Vec<f64>,
}

impl History {
    fn add(&mut self, service: f64) {
        self.fresh.push(service);
        // Merge in batches that grow with the history: amortised O(log n) a job.
        if self.fresh.len() * 8 >= self.services.len() {
            self.services.append(&mut self.fresh);
            self.services.sort_by(f64::total_cmp);
            // Every second one says as much of the distribution, and memory stays bounded.
            if self.services.len() > SERVICES_MAX {
                self.services = self.services.iter().copied().step_by(2).collect();
            }
            self.prefix.clear();
            self.prefix.push(0.0);
            for s in &self.services {
                self.prefix.push(self.prefix[self.prefix.len() - 1] + s);
            }
        }
    }

    /// Chance that a job of this age ends within the quantum, over the service that it then
    /// expects to get: P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a].
    fn gittins_index(&self, age: f64, quantum: f64) -> f64 {
        let n = self.services.len();
        let from = self.services.partition_point(|&s| s <= age);
        let to = self.services.partition_point(|&s| s <= age + quantum);
        if from >= n {
            return 0.0;
        }
        let ending = (to - from) as f64;
        let spent = self.prefix[to] - self.prefix[from] - age * ending;
        let beyond = if to < n { (n - to) as f64 * quantum } else { 0.0 };
        ending / (spent + beyond).max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gittins_index_of_a_known_distribution() {
        let mut history = History::default();
        [10.0, 20.0, 100.0, 100.0].into_iter().for_each(|s| history.add(s));
        // Age 0, quantum 20: two of four end; they expect (10 + 20 + 20 + 20) service.
        assert!((history.gittins_index(0.0, 20.0) - 2.0 / 70.0).abs() < 1e-12);
        // Age 20: both that are left end at 100.
        assert!((history.gittins_index(20.0, f64::INFINITY) - 2.0 / 160.0).abs() < 1e-12);
        assert_eq!(history.gittins_index(100.0, 5.0), 0.0);
    }
}
