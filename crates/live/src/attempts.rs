//! What was asked of the engine and has not come about. None of it is saved: a driver that is started again asks
//! again, and learns again where a job does not fit.

use std::collections::{BTreeMap, HashMap};

use hither_core::Seconds;
use hither_sched::cluster::MachineId;
use hither_sched::event::DecisionId;
use hither_sched::job::Split;

use crate::engine::{Key, Order};

/// How long the driver believes in what it has asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// An order without effect is given again after so long.
    pub retry_s: Seconds,
    /// A start that has not come about after so long is taken back, and so is one whose stops take so much
    /// longer than stops may.
    pub start_s: Seconds,
    /// A stop that has not come about after so long, and the job's grace time, is given up.
    pub stop_s: Seconds,
    /// Time between a checkpoint signal and the requeue, where the job does not say.
    pub grace_s: Seconds,
    /// A job that did not fit where it was placed, so many times in a row, is left to the engine.
    pub tries_max: u32,
    /// Nodes that refused a job get no other that asks for the same, for so long.
    pub closed_s: Seconds,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retry_s: 2.0,
            start_s: 30.0,
            stop_s: 120.0,
            grace_s: 30.0,
            tries_max: 5,
            closed_s: 60.0,
        }
    }
}

/// Why a start did not come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Blame {
    /// The job, a limit or the cluster; another place would not have helped.
    Other,
    /// The place, as far as anybody can tell.
    #[default]
    Place,
}

/// What is remembered of one job.
#[derive(Debug, Clone, Default)]
pub struct Attempt {
    /// The decision that the fields up to `failed` are about.
    decision: Option<DecisionId>,
    pub since_s: Seconds,
    /// Since when a start no longer waits for stops.
    pub ready_s: Option<Seconds>,
    pub signalled_s: Option<Seconds>,
    pub is_released: bool,
    /// The engine has said, or shown by its silence, that it will not carry the wish out.
    pub failed: Option<Blame>,

    last: Option<(Order, Seconds)>,
    /// Starts in a row that did not fit.
    pub tries: u32,
    /// What the engine said of the last start that did not come about.
    pub refusal: Option<String>,
    /// Whether the engine has shown it held, or in its own queue, since it last ran.
    pub was_held: bool,
    pub was_queued: bool,
    /// Since when it is being ended and still holds its GPUs.
    pub leaving_s: Option<Seconds>,
    /// Somebody held it while it was about to start.
    pub is_held_by_hand: bool,
    /// Why it is left to the engine.
    pub left: Option<String>,
}

impl Attempt {
    /// Begins anew where the wish is another than before.
    pub fn on(&mut self, decision: DecisionId, now: Seconds) {
        if self.decision != Some(decision) {
            (self.decision, self.since_s) = (Some(decision), now);
            (self.ready_s, self.signalled_s, self.failed) = (None, None, None);
            self.is_released = false;
        }
    }

    /// The order, unless it was given just now.
    pub fn give(&mut self, order: Order, now: Seconds, limits: &Limits) -> Option<Order> {
        let is_again = |last: &(Order, Seconds)| last.0 == order && now < last.1 + limits.retry_s;
        if self.last.as_ref().is_some_and(is_again) {
            return None;
        }
        self.is_released |= matches!(order, Order::Release { .. });
        if matches!(order, Order::Signal { .. }) {
            self.signalled_s = Some(now);
        }
        self.last = Some((order.clone(), now));
        Some(order)
    }

    /// Whether the last order was to hold the job.
    pub fn was_told_to_hold(&self) -> bool {
        matches!(self.last, Some((Order::Hold { .. }, _)))
    }
}

#[derive(Debug, Default)]
pub struct Attempts {
    by_job: HashMap<Key, Attempt>,
    /// Machines that have just refused jobs that are split so, and until when nobody tries again.
    closed: BTreeMap<(MachineId, Split), Seconds>,
}

impl Attempts {
    pub fn of(&mut self, job: &Key) -> &mut Attempt {
        // Most jobs are asked about often, and few are new.
        if !self.by_job.contains_key(job) {
            self.by_job.insert(job.clone(), Attempt::default());
        }
        self.by_job.get_mut(job).expect("inserted above")
    }

    /// Whether what was last asked for the job will not come about.
    pub fn has_failed(&self, job: &str) -> bool {
        self.by_job.get(job).is_some_and(|attempt| attempt.failed.is_some())
    }

    /// Why a job is left to the engine.
    pub fn left(&self, job: &str) -> Option<&str> {
        self.by_job.get(job)?.left.as_deref()
    }

    /// What the engine said of the last start that did not come about.
    pub fn refusal(&self, job: &str) -> Option<&str> {
        self.by_job.get(job)?.refusal.as_deref()
    }

    /// Jobs that are not leaving any more.
    pub fn left_gone(&mut self, is_leaving: impl Fn(&str) -> bool) {
        for (job, attempt) in &mut self.by_job {
            if attempt.leaving_s.is_some() && !is_leaving(job) {
                attempt.leaving_s = None;
            }
        }
    }

    /// Forgets jobs that are gone.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.by_job.retain(|job, _| is_there(job));
    }

    pub fn close(&mut self, machine: MachineId, split: Split, until_s: Seconds) {
        self.closed.insert((machine, split), until_s);
    }

    /// Machines that may be tried again.
    pub fn reopened(&mut self, now: Seconds) -> Vec<(MachineId, Split)> {
        self.closed.extract_if(.., |_, until_s| *until_s <= now).map(|(key, _)| key).collect()
    }
}
