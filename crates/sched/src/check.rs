//! Outside checkers: they keep books of their own, from events and decisions alone, and compare them
//! with the scheduler's after every event.

use std::collections::BTreeMap;

use hither_core::Seconds;
use hither_core::record::Reason;

use crate::cluster::{Placement, Slot, Status};
use crate::event::{Action, Decision, End, Event};
use crate::job::JobId;
use crate::state::State;

/// Iterations may differ by this share from rounding alone.
const ROUNDING: f64 = 1e-6;

/// Books of a checker, kept from events and decisions alone.
#[derive(Debug)]
pub struct Checker {
    used: Vec<u32>,
    up: Vec<bool>,
    running: BTreeMap<JobId, Placement>,
    /// Waiting jobs and since when.
    waiting: BTreeMap<JobId, Seconds>,
    /// Progress of every running job just before the event.
    done: BTreeMap<JobId, f64>,
    arrived: u32,
}

impl Checker {
    pub fn new(state: &State) -> Self {
        Self {
            used: vec![0; state.cluster.machines.len()],
            up: vec![true; state.cluster.machines.len()],
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            done: BTreeMap::new(),
            arrived: 0,
        }
    }

    pub fn before(&mut self, now: Seconds, event: &Event, state: &State) -> Result<(), String> {
        self.done = self.running.keys().map(|&id| (id, state.job(id).done_at(now))).collect();
        match event {
            Event::Submitted(jobs) => {
                for _ in jobs {
                    self.waiting.insert(self.arrived, now);
                    self.arrived += 1;
                }
            }
            Event::Ended { job: id, how: End::Finished } => {
                let job = state.job(*id);
                let done = self.done.get(id).copied().ok_or(format!("job {id} ended unstarted"))?;
                // What was not told, or told wrongly, cannot be held against anybody.
                let told = state.forecast.exact;
                if told && done < job.iterations * (1.0 - ROUNDING) - ROUNDING {
                    return Err(format!("job {id} ended after {done} of {}", job.iterations));
                }
                self.free(*id);
            }
            Event::Ended { job: id, .. } => {
                self.free(*id);
                self.waiting.remove(id);
            }
            Event::Machine { machine, status } => {
                self.up[*machine as usize] = *status == Status::Up;
            }
            _ => {}
        }
        Ok(())
    }

    pub fn after(
        &mut self,
        now: Seconds,
        decisions: &[Decision],
        state: &State,
        overtaking_s_max: Option<Seconds>,
    ) -> Result<(), String> {
        let mut newly_started = Vec::new();
        for decision in decisions {
            match &decision.action {
                Action::Start { job, placement } => {
                    self.start(*job, placement, state)?;
                    newly_started.push(*job);
                }
                Action::Stop { job, reason } => self.preempt(now, *job, *reason, state)?,
                Action::Failed { job } => self.preempt(now, *job, Reason::Failure, state)?,
                Action::Decline { .. } | Action::SetTimer { .. } | Action::Tuned { .. } => {}
            }
        }
        self.books_agree(state)?;
        if state.forecast.exact {
            self.nobody_is_faster_than_alone(state)?; // else profiles may be told wrongly
        }
        if let Some(bound) = overtaking_s_max {
            newly_started.retain(|id| !self.done.contains_key(id));
            for id in newly_started {
                self.nobody_starved(now, id, state, bound)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, id: JobId, placement: &Placement, state: &State) -> Result<(), String> {
        if self.waiting.remove(&id).is_none() {
            return Err(format!("job {id} started without waiting"));
        }
        let job = state.job(id);
        let given: u32 = placement.slots.iter().map(|s| s.gpus).sum();
        if given != job.gpus() {
            return Err(format!("job {id} wants {} GPUs and got {given}", job.gpus()));
        }
        let split = job.job.terms.split;
        let is_whole = |s: &Slot| split.chunks_in(s.gpus) * split.chunk == s.gpus;
        if !placement.slots.iter().all(is_whole) {
            return Err(format!("job {id} is split otherwise than it may be"));
        }
        let pool = |m: u32| state.cluster.machines[m as usize].pool;
        let first_pool = placement.slots.first().map(|s| pool(s.machine));
        let mut seen = Vec::new();
        for slot in &placement.slots {
            if slot.gpus == 0 || seen.contains(&slot.machine) {
                return Err(format!(
                    "job {id}: machine {} is listed twice or without GPUs",
                    slot.machine
                ));
            }
            seen.push(slot.machine);
            if !self.up[slot.machine as usize] {
                return Err(format!("job {id} started on machine {}, which is down", slot.machine));
            }
            if Some(pool(slot.machine)) != first_pool
                || job.pool.is_some_and(|p| Some(p) != first_pool)
            {
                return Err(format!("job {id} got GPUs of the wrong type"));
            }
            let used = &mut self.used[slot.machine as usize];
            *used += slot.gpus;
            if *used > state.cluster.machines[slot.machine as usize].gpus {
                return Err(format!("machine {} is booked twice", slot.machine));
            }
        }
        if placement.tier != state.cluster.tier_of(&placement.slots) {
            return Err(format!("job {id}: the placement is not of tier {:?}", placement.tier));
        }
        self.running.insert(id, placement.clone());
        Ok(())
    }

    fn preempt(
        &mut self,
        now: Seconds,
        id: JobId,
        reason: Reason,
        state: &State,
    ) -> Result<(), String> {
        if !self.free(id) {
            return Err(format!("job {id} was preempted and did not run"));
        }
        if reason != Reason::Failure && !state.job(id).job.terms.preemptible {
            return Err(format!("job {id} may not be preempted"));
        }
        self.waiting.insert(id, now);
        let Some(&before) = self.done.get(&id) else {
            return Ok(()); // started in this very turn: nothing to lose
        };
        let job = state.job(id);
        let after = job.done_at(now);
        let lost_max = match state.checkpoints.keeps_all(reason) {
            true => 0.0,
            // No iteration takes less than its computing time.
            false if state.forecast.exact => {
                state.checkpoints.interval_s / job.job.profile.compute_s
            }
            false => f64::INFINITY,
        };
        // If it starts and stops again in this turn, it has nothing more to lose.
        self.done.insert(id, after);
        let rounding = ROUNDING * before.max(1.0);
        if before - after > lost_max * (1.0 + ROUNDING) + rounding {
            return Err(format!("job {id} fell back from {before} to {after} iterations"));
        }
        Ok(())
    }

    /// Takes the job off the books; false if it did not run.
    fn free(&mut self, id: JobId) -> bool {
        let Some(placement) = self.running.remove(&id) else {
            return false;
        };
        for slot in &placement.slots {
            self.used[slot.machine as usize] -= slot.gpus;
        }
        true
    }

    fn books_agree(&self, state: &State) -> Result<(), String> {
        for (id, machine) in state.cluster.machines.iter().enumerate() {
            let free = if self.up[id] { machine.gpus - self.used[id] } else { 0 };
            if machine.free != free {
                return Err(format!("machine {id}: {free} GPUs are free, not {}", machine.free));
            }
            if !self.up[id] && self.used[id] > 0 {
                return Err(format!("machine {id} is down and holds jobs"));
            }
        }
        if self.running.len() != state.running.len() || self.waiting.len() != state.line.len() {
            return Err("the scheduler lost count of its jobs".into());
        }
        for &id in self.running.keys() {
            // `done_at` stops at the job's end; its pace does not.
            let job = state.job(id);
            let done = job.run().map_or(0.0, |run| run.pace.done_at(state.now, f64::INFINITY));
            if state.forecast.exact && done > job.iterations * (1.0 + ROUNDING) + ROUNDING {
                return Err(format!("job {id} ran past its end"));
            }
        }
        Ok(())
    }

    /// Nobody iterates faster than alone on the same GPUs. A job may well be faster than its ideal,
    /// which is that of an average place: where uplinks differ it may get better ones, and measured
    /// steps may be shorter at a wider tier.
    fn nobody_is_faster_than_alone(&self, state: &State) -> Result<(), String> {
        for (&id, placement) in &self.running {
            let job = state.job(id);
            let shape = state.network.shape(&state.cluster, placement);
            let alone_s = state.network.iteration_s(&job.job.profile, &shape);
            let rate = job.run().map_or(0.0, |run| run.pace.rate);
            if rate * alone_s > 1.0 + ROUNDING {
                let step_s = 1.0 / rate;
                return Err(format!("job {id} takes {step_s} s an iteration, alone {alone_s} s"));
            }
        }
        Ok(())
    }

    /// `id` has just started from the queue: was an older job left behind for too long?
    fn nobody_starved(
        &self,
        now: Seconds,
        id: JobId,
        state: &State,
        bound: Seconds,
    ) -> Result<(), String> {
        let started = state.job(id);
        for (&other, &since) in &self.waiting {
            let waiting = state.job(other);
            let older = waiting.job.submit_s < started.job.submit_s;
            if older && now - since > bound && shares_pool(waiting.pool, started.pool) {
                return Err(format!(
                    "job {id} overtook job {other}, which has waited {} s (bound {bound} s)",
                    now - since
                ));
            }
        }
        Ok(())
    }
}

fn shares_pool(a: Option<u16>, b: Option<u16>) -> bool {
    a.is_none() || b.is_none() || a == b
}
