//! The books of one job: its phase between the scheduler's wish and the world's word, and how far it
//! has come.

use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_core::topology::{LEVELS_MAX, Tier};
use serde::{Deserialize, Serialize};

use crate::cluster::{Placement, PoolId};
use crate::event::{DecisionId, Why};
use crate::forecast::{Forecast, Spent};
use crate::job::{Demand, Job, Profile};
use crate::order::any_float;

/// The books of one job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobState {
    pub job: Arc<Job>,
    /// The GPU type it asks for.
    pub pool: Option<PoolId>,
    /// The lowest tier that could ever hold it.
    pub best: Tier,
    /// Iteration time at each tier, and iterations, as [`Forecast`] believes.
    pub(crate) iteration_s: Option<[Seconds; LEVELS_MAX]>,
    #[serde(with = "any_float")]
    pub(crate) iterations: f64,
    pub phase: Phase,
    /// Iterations done when the phase began; they survive a preemption.
    pub done: f64,
    /// Time spent holding GPUs before the phase began.
    pub held_s: Seconds,
    /// When the phase began: submission, preemption or start.
    pub since_s: Seconds,
    pub starts: u32,
    /// What its iterations have taken since the last start, and what they take on idle links.
    #[serde(default)]
    pub(crate) paced: Spent,
    /// As much of that as the forecast has heard of.
    #[serde(default)]
    pub(crate) heard: Spent,
    /// What the next start costs before iterations go on.
    pub restart_s: Seconds,
    /// Whether the next start reads a checkpoint, and from when on it is there.
    #[serde(default)]
    pub(super) reads: Option<Seconds>,
    /// The reason for the last decision about it.
    pub why: Why,
}

/// Where a job stands between the scheduler's wish and the world's word.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Phase {
    Waiting,
    /// It waits, and may not start whatever is free: the world has a reason of its own.
    Parked,
    /// GPUs are promised to it; it does not run yet.
    Starting(Start),
    Running(Run),
    /// It has to give its GPUs back and has not done so yet. It may already be promised others.
    Stopping(Box<Stop>),
    Over,
}

/// A start in flight.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Start {
    pub decision: DecisionId,
    pub run: Run,
    /// The stops that it waits for.
    pub after: Vec<DecisionId>,
}

/// A stop in flight, with what it takes to undo it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stop {
    pub decision: DecisionId,
    pub run: Run,
    pub reason: Reason,
    pub at_s: Seconds,
    /// `done`, `held_s` and `since_s` of the job before the stop.
    pub(super) before: (f64, Seconds, Seconds),
    /// What the job is to do once it has stopped.
    pub next: Option<Start>,
}

/// A job that holds its GPUs: where, and how far it has come.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    pub placement: Arc<Placement>,
    pub pace: Pace,
}

/// How far a run comes over time, at a rate that changes now and then.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// When the restart was over and iterations began.
    pub begin_s: Seconds,
    /// From when `rate` holds and how many iterations were done then. Iterations begin after the
    /// restart, so this may lie ahead.
    pub since_s: Seconds,
    pub done: f64,
    /// Iterations per second.
    pub rate: f64,
    /// Iterations in the last periodic checkpoint before `since_s`.
    pub checkpoint_done: f64,
}

impl Pace {
    pub fn new(begin_s: Seconds, done: f64) -> Self {
        Self { begin_s, since_s: begin_s, done, rate: 0.0, checkpoint_done: done }
    }

    /// Iterations done by `now` of a job that has `most`.
    pub fn done_at(&self, now: Seconds, most: f64) -> f64 {
        let ran = (now - self.since_s).max(0.0);
        (self.done + ran * self.rate).min(most)
    }

    /// Iterations in the last periodic checkpoint by `now`.
    pub fn checkpointed_at(&self, now: Seconds, interval_s: Seconds, most: f64) -> f64 {
        let periods = ((now - self.begin_s) / interval_s).floor().max(0.0);
        let last_s = self.begin_s + periods * interval_s;
        if last_s < self.since_s { self.checkpoint_done } else { self.done_at(last_s, most) }
    }

    /// So many iterations are done by `now`, and the rate is another from now on.
    pub fn change(&mut self, now: Seconds, done: f64, rate: f64, interval_s: Seconds, most: f64) {
        self.checkpoint_done = self.checkpointed_at(now, interval_s, most);
        // A job that is still restarting begins its iterations when it was going to.
        self.since_s = self.since_s.max(now);
        self.done = done;
        self.rate = rate;
    }
}

/// How progress is kept when a job stops before its end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// Running time between periodic checkpoints; a failure loses what came after the last.
    pub interval_s: Seconds,
    /// Whether a job that is preempted writes a checkpoint first, or falls back as at a failure.
    pub on_preempt: bool,
    /// Bytes per second that the storage of the whole cluster reads and writes.
    #[serde(default = "no_limit", with = "any_float")]
    pub read_bytes_per_s: f64,
    #[serde(default = "no_limit", with = "any_float")]
    pub write_bytes_per_s: f64,
}

fn no_limit() -> f64 {
    f64::INFINITY
}

impl Checkpoints {
    /// Time to write a checkpoint of the job when a preemption asks for one.
    pub fn write_s(&self, job: &Job) -> Seconds {
        match self.on_preempt {
            true => job.profile.checkpoint_bytes / self.write_bytes_per_s,
            false => 0.0,
        }
    }

    /// Time to read it.
    pub fn read_s(&self, job: &Job) -> Seconds {
        job.profile.checkpoint_bytes / self.read_bytes_per_s
    }

    /// What a restart of the job costs while the storage does nothing else.
    pub fn restart_s(&self, job: &Job) -> Seconds {
        let Profile { restart_s, restart_gpu_s, .. } = *job.profile;
        restart_s + restart_gpu_s * f64::from(job.gpus) + self.read_s(job)
    }

    /// Whether a job that stops for this reason keeps all its iterations, or falls back to its last
    /// periodic checkpoint.
    pub fn keeps_all(&self, reason: Reason) -> bool {
        match reason {
            Reason::TimeSlice | Reason::Migration => true,
            Reason::Priority | Reason::Upgrade => self.on_preempt,
            Reason::Failure => false,
        }
    }
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            interval_s: 1800.0,
            on_preempt: true,
            read_bytes_per_s: no_limit(),
            write_bytes_per_s: no_limit(),
        }
    }
}

impl JobState {
    /// The run that is under way or promised.
    pub fn run(&self) -> Option<&Run> {
        match &self.phase {
            Phase::Running(run) | Phase::Starting(Start { run, .. }) => Some(run),
            Phase::Stopping(stop) => stop.next.as_ref().map(|next| &next.run),
            Phase::Waiting | Phase::Parked | Phase::Over => None,
        }
    }

    /// How many times as long as the forecast expects its iterations take where it runs: its profile may be
    /// wrong.
    pub(crate) fn own_pace(&self, forecast: &Forecast) -> f64 {
        let Some(Run { placement, .. }) = self.run() else { return 1.0 };
        let expected = forecast.slowdown_at(&self.job, placement.tier);
        self.paced.ratio().map_or(1.0, |ratio| ratio / expected)
    }

    /// Whether a policy may start it.
    pub fn is_waiting(&self) -> bool {
        match &self.phase {
            Phase::Waiting => true,
            Phase::Stopping(stop) => stop.next.is_none(),
            _ => false,
        }
    }

    pub fn gpus(&self) -> u32 {
        self.job.gpus
    }

    /// What decides where it fits.
    pub fn demand(&self) -> Demand {
        self.job.demand()
    }

    /// Iterations done by `now`.
    pub fn done_at(&self, now: Seconds) -> f64 {
        match &self.phase {
            Phase::Running(run) => run.pace.done_at(now, self.iterations),
            _ => self.done,
        }
    }

    /// Iterations in the last periodic checkpoint by `now`.
    pub fn checkpointed_at(&self, now: Seconds, interval_s: Seconds) -> f64 {
        match &self.phase {
            Phase::Running(run) => run.pace.checkpointed_at(now, interval_s, self.iterations),
            _ => self.done,
        }
    }

    /// Time holding GPUs by `now`.
    pub fn held_at(&self, now: Seconds) -> Seconds {
        match self.phase {
            Phase::Running(_) => self.held_s + (now - self.since_s),
            _ => self.held_s,
        }
    }

    /// Time spent computing what was kept, as if the network were free; without a profile all time
    /// counts.
    pub fn useful_at(&self, now: Seconds) -> Seconds {
        match self.job.profile.is_known() {
            true => self.done_at(now) * self.job.profile.compute_s,
            false => self.held_at(now),
        }
    }
}
