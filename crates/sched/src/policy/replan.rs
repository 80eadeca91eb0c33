//! Preemptive policies that plan anew at every event: empty the cluster on paper, walk all jobs in
//! order of priority, take all that fit, preempt the rest.
//!
//! A plan touches few jobs, and so does its making (`plan.rs`): jobs that wait are kept by class,
//! those that run by rank (`running.rs`).

use std::collections::BTreeSet;

use hither_core::Seconds;
use hither_core::record::Reason;
use serde::{Deserialize, Serialize};

use crate::by_id::ById;
use crate::event::Why;
use crate::job::JobId;
use crate::policy::placing::Placing;
use crate::policy::queue::{Class, Queue, class_of};
use crate::state::Turn;

mod plan;
mod running;

use plan::{LastFirst, Plan, choose, choose_on_paper, choose_plainly, start_fitting};
use running::Running;

/// How a policy ranks and places jobs.
pub trait Order {
    type Key: Ord + Copy;
    type Cohort: Ord + Copy;

    /// The job's rank now; the least comes first.
    fn key(&self, turn: &Turn, id: JobId) -> Self::Key;

    /// A key that a running job's own does not exceed, and until when that holds if nothing but time
    /// changes the job. The tighter it is, the fewer jobs are looked at.
    fn limit(&self, turn: &Turn, id: JobId) -> (Self::Key, Seconds);

    /// Whether any running job may lose its GPUs in this plan.
    fn may_preempt(&self) -> bool {
        true
    }

    /// The rank of a running job that may lose its GPUs in this plan; `None` for one that may not, which
    /// ranks before all that wait.
    fn stop_key(&self, turn: &Turn, id: JobId) -> Option<Self::Key> {
        Some(self.key(turn, id))
    }

    /// Whether the ranks of all running jobs are of another kind for this plan, so that limits say
    /// nothing of them.
    fn ranks_all(&self) -> bool {
        false
    }

    /// What running jobs have in common that rank alike as long as they run. A job of its own kind is
    /// a cohort of one.
    fn cohort(&self, turn: &Turn, id: JobId) -> Self::Cohort;

    /// Where chosen jobs go.
    fn placing(&self) -> Placing;
}

/// Waiting and running jobs by priority.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "K: Serialize", deserialize = "K: Deserialize<'de>"))]
pub struct Ranks<K: Ord + Copy, C = JobId> {
    waiting: Queue<K>,
    key_of: ById<(Class, K)>,
    /// `None` after a restart, and when all ranks changed: they are ranked for the next plan.
    #[serde(skip)]
    running: Option<Running<K, C>>,
}

impl<K: Ord + Copy, C> Default for Ranks<K, C> {
    fn default() -> Self {
        Self { waiting: Queue::default(), key_of: ById::default(), running: None }
    }
}

impl<K: Ord + Copy, C: Ord + Copy> Ranks<K, C> {
    /// The job waits from now on, at this rank.
    pub fn insert(&mut self, turn: &Turn, key: K, id: JobId) {
        self.remove(id);
        let class = class_of(turn.state.job(id));
        self.key_of.insert(id, (class, key));
        self.waiting.insert(class, key, id);
    }

    /// These jobs, which ran until now, wait from now on.
    fn insert_stopped(&mut self, turn: &Turn, stopped: Vec<(K, JobId)>) {
        let mut jobs = Vec::with_capacity(stopped.len());
        for (key, id) in stopped {
            if let Some(running) = &mut self.running {
                running.remove(id);
            }
            let class = class_of(turn.state.job(id));
            self.key_of.insert(id, (class, key));
            jobs.push((class, key, id));
        }
        self.waiting.extend(jobs);
    }

    /// The job neither waits nor runs.
    pub fn remove(&mut self, id: JobId) {
        if let Some((class, key)) = self.key_of.remove(id) {
            self.waiting.remove(class, key, id);
        }
        if let Some(running) = &mut self.running {
            running.remove(id);
        }
    }

    /// The job runs from now on, or its rank changed otherwise than by time.
    pub fn revise(&mut self, id: JobId) {
        if let Some(running) = &mut self.running {
            running.revise(id);
        }
    }

    /// The ranks of all running jobs changed otherwise than by time.
    pub fn revise_all(&mut self) {
        self.running = None;
    }

    /// Ranks all waiting jobs anew.
    pub fn rank_waiting(&mut self, key: impl Fn(JobId) -> K) {
        let mut has_changed = false;
        for (id, (_, known)) in self.key_of.iter_mut() {
            let key = key(id);
            has_changed |= key != *known;
            *known = key;
        }
        // To sort them takes most of the time, and many policies' ranks stand still while jobs wait.
        if has_changed {
            let ranked = self.key_of.iter().map(|(id, &(class, key))| (class, key, id));
            self.waiting = ranked.collect();
        }
    }

    /// Plans and carries the plan out. Returns who started and who was preempted.
    pub fn replan(
        &mut self,
        turn: &mut Turn,
        order: &impl Order<Key = K, Cohort = C>,
    ) -> (Vec<JobId>, BTreeSet<JobId>) {
        if self.waiting.is_empty() {
            return Default::default(); // nobody to preempt for
        }
        let placing = order.placing();
        if !order.may_preempt() {
            let started = start_fitting(turn, placing, &self.waiting);
            started.iter().for_each(|&id| self.remove(id));
            return (started, BTreeSet::new());
        }
        let (preempted, chosen) = self.plan(turn, order);
        let mut stopped = Vec::with_capacity(preempted.len());
        for &id in &preempted {
            turn.preempt(id, Reason::Priority, Why::Outranked);
            stopped.push((order.key(turn, id), id));
        }
        self.insert_stopped(turn, stopped);
        let mut started = Vec::with_capacity(chosen.len());
        for (id, pool, planned) in chosen {
            // GPUs that others took from under a job are missing when it has made room.
            let place = || {
                let (forecast, cluster) = (&turn.state.forecast, &turn.state.cluster);
                placing.place(forecast, cluster, turn.state.job(id), pool)
            };
            let Some(placement) = planned.or_else(place) else { continue };
            self.remove(id);
            started.push(id);
            let why = Why::Turn { tier: placement.tier };
            turn.start(id, placement, why);
        }
        (started, preempted)
    }

    fn plan(&mut self, turn: &Turn, order: &impl Order<Key = K, Cohort = C>) -> Plan {
        let waiting = &self.waiting;
        let is_counted = turn.state.cluster.splits_freely() && !order.placing().may_decline();
        let plainly = || match is_counted {
            true => choose_plainly(turn, order, waiting),
            false => choose_on_paper(turn, order, &mut LastFirst::ranked(turn, order), waiting),
        };
        if order.ranks_all() {
            return plainly();
        }
        let running = self.running.get_or_insert_with(|| Running::new(&turn.state.running));
        running.refresh(turn, order);
        let plan = match is_counted {
            true => choose(turn, order, running, waiting),
            false => {
                let mut last_first = LastFirst::ascending(turn, running);
                let plan = choose_on_paper(turn, order, &mut last_first, waiting);
                let loose = last_first.loose();
                running.found_loose(loose);
                plan
            }
        };
        debug_assert_eq!(plan, plainly());
        plan
    }
}
