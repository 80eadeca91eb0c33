//! Tiresias (NSDI 2019): least attained service in two dimensions, discretised into queues, and
//! placement that consolidates only models whose largest tensor is a large part of the whole.
//!
//! The paper leaves the thresholds between queues to the operator. By default they are quantiles of the
//! GPU time of the jobs that have ended: a fixed pair suits one workload and makes another FIFO.

use std::collections::BTreeMap;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::event::Timer;
use crate::history::History;
use crate::job::JobId;
use crate::order::{SortKey, pairs};
use crate::pass::{Answer, Offer};
use crate::policy::replan::outranked;
use crate::policy::{Placing, Policy, learned_whole};
use crate::state::{Claim, State, Turn};

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
pub const AUTHORS: [f64; 2] = [3250.0, 7200.0];
/// Until so many jobs have ended, the authors' thresholds stand in for quantiles.
const ENDED_MIN: usize = 16;
/// Thresholds that hardly move stay as they are: every change ranks all jobs anew.
const HARDLY: f64 = 0.1;

#[derive(Debug, Serialize, Deserialize)]
pub struct Tiresias {
    #[serde(skip)]
    options: Options,
    /// Whether the Gittins index ranks the jobs of a queue.
    by_index: bool,
    /// Thresholds from the jobs that have ended.
    learned: Vec<f64>,
    /// The change of the history that they are from.
    learned_at: u64,
    /// Service forgiven by a promotion, by job.
    #[serde(with = "pairs")]
    forgiven: BTreeMap<JobId, f64>,
    #[serde(skip)]
    planned: u64,
}

impl Tiresias {
    pub fn new(options: &Options, by_index: bool) -> Self {
        Self {
            options: options.clone(),
            by_index,
            learned: AUTHORS.to_vec(),
            learned_at: 0,
            forgiven: BTreeMap::new(),
            planned: 0,
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

    /// Takes the thresholds from the jobs that have ended. Returns whether they moved.
    fn learn_thresholds(&mut self, history: &History) -> bool {
        let has_quantiles =
            self.options.thresholds.is_empty() && !self.options.quantiles.is_empty();
        let is_news = std::mem::replace(&mut self.learned_at, history.changes) != history.changes;
        if !(has_quantiles && is_news && history.len() >= ENDED_MIN) {
            return false;
        }
        let quantiles = self.options.quantiles.iter();
        let learned: Vec<f64> = quantiles.map(|&q| history.quantile(q)).collect();
        let mut pairs = learned.iter().zip(&self.learned);
        let hardly = learned.len() == self.learned.len()
            && pairs.all(|(is, was)| (is - was).abs() <= HARDLY * was);
        if !hardly {
            self.learned = learned;
        }
        !hardly
    }

    fn service(&self, state: &State, id: JobId) -> f64 {
        let job = state.job(id);
        f64::from(job.gpus()) * job.held_at(state.now) - self.forgiven.get(&id).unwrap_or(&0.0)
    }

    /// A queue jump is due exactly when the service reaches the threshold: allow for rounding.
    fn queue(&self, service: f64) -> usize {
        self.thresholds().iter().filter(|&&t| service >= t * (1.0 - 1e-9)).count()
    }

    /// Queue; running before waiting; Gittins index, highest first. Then the order of submission.
    fn rank(&self, state: &State, id: JobId) -> Claim {
        let service = self.service(state, id);
        let queue = self.queue(service);
        let index = match self.by_index {
            true => {
                let limit = self.thresholds().get(queue).copied().unwrap_or(f64::INFINITY);
                -state.services.gittins_index(service, limit - service)
            }
            false => 0.0,
        };
        let is_waiting = u32::from(state.job(id).is_waiting());
        Claim { class: 2 * queue as u32 + is_waiting, value: SortKey(index) }
    }

    /// Wakes the policy when a job that runs or starts now reaches the next queue.
    fn await_jump(&self, turn: &mut Turn, id: JobId) {
        let service = self.service(&turn.state, id);
        let limit = self.thresholds().iter().find(|&&t| service < t * (1.0 - 1e-9));
        if let Some(limit) = limit {
            let gpus = f64::from(turn.state.job(id).gpus());
            turn.set_timer(Timer::Job(id), turn.now() + (limit - service) / gpus);
        }
    }

    // ---- promotion ----

    /// When a waiting job starts over in the first queue.
    fn promoted_at_s(&self, state: &State, id: JobId) -> Seconds {
        let job = state.job(id);
        match job.held_s > 0.0 {
            true => job.since_s + self.options.promote_knob * job.held_s,
            false => f64::INFINITY,
        }
    }

    fn await_promotions(&self, turn: &mut Turn) {
        for id in turn.state.line.ids().collect::<Vec<JobId>>() {
            let at_s = self.promoted_at_s(&turn.state, id);
            let is_set = turn.state.timers.contains_key(&Timer::Job(id));
            if at_s.is_finite() && at_s > turn.now() && !is_set {
                turn.set_timer(Timer::Job(id), at_s);
            }
        }
    }
}

impl Policy for Tiresias {
    fn claim(&self, state: &State, id: JobId) -> Claim {
        self.rank(state, id)
    }

    fn answer(&mut self, turn: &mut Turn, id: JobId, _offer: Offer) -> Answer {
        let answer = self.options.placing.answer(turn, id);
        if matches!(answer, Answer::Take(..)) {
            self.await_jump(turn, id);
        }
        answer
    }

    fn victims(&mut self, turn: &mut Turn, _id: JobId) -> Vec<JobId> {
        let mut planned = self.planned;
        let rank = |state: &State, id| Some(self.rank(state, id));
        let victims = outranked(turn, &mut planned, self.options.placing, rank);
        self.planned = planned;
        victims
    }

    fn round(&mut self, turn: &mut Turn) -> bool {
        self.forgiven.retain(|id, _| turn.state.jobs.get(*id).is_some());
        let mut changed: Vec<JobId> = Vec::new();
        for id in turn.take_due_jobs() {
            let Some(job) = turn.state.jobs.get(id) else { continue };
            let (held_s, gpus) = (job.held_s, f64::from(job.gpus()));
            if job.run().is_some() {
                self.await_jump(turn, id);
            } else if turn.state.line.contains(id)
                && turn.now() >= self.promoted_at_s(&turn.state, id)
            {
                self.forgiven.insert(id, gpus * held_s);
                changed.push(id);
            }
        }
        if self.learn_thresholds(&turn.state.services) {
            changed = turn.state.line.ids().collect();
            let running: Vec<JobId> = turn.state.running.iter().copied().collect();
            running.into_iter().for_each(|id| self.await_jump(turn, id));
        }
        turn.rank_anew(self, &changed);
        if self.options.promote_knob.is_finite() {
            self.await_promotions(turn);
        }
        !changed.is_empty()
    }

    learned_whole!(options);

    fn may_stop(&self) -> bool {
        true
    }
}
