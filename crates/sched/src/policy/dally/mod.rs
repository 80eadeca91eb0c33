//! Network-proximity scheduling: delay scheduling, network-sensitive preemption, upgrades, and an
//! auto-tuner of the delay timers.
//!
//! After "GPU Cluster Scheduling for Network-Sensitive Deep Learning" (Dally). The paper publishes
//! the parts and not all their rules; what it leaves open is a reconstruction of ours, and each
//! such point is a named field of [`Options`]. docs/policies.md tells the choices and docs/
//! results-schedule.md the measurements behind the defaults.

use std::collections::{BTreeMap, BTreeSet};

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_core::topology::Tier;
use serde::{Deserialize, Serialize};

use crate::cluster::{Placement, PoolId};
use crate::event::{Action, Timer, Why};
use crate::job::JobId;
use crate::policy::Policy;
use crate::policy::queue::{Class, class_of};
use crate::state::Turn;

mod options;
mod score;
mod tuner;
mod victims;
mod waiting;

pub use options::{Clock, Options, Timers};
pub use score::Score;
use tuner::{Tuner, Wait};
use victims::{Candidate, Candidates};
use waiting::{Left, Saved, Waiting};

pub const ABOUT: &str = "delay scheduling, network-sensitive preemption, upgrades, tuned timers";
pub const ABOUT_NO_WAIT: &str = "dally that takes the best place on offer at once (timers 0)";
pub const ABOUT_CONSOLIDATE: &str = "dally that waits for its best tier for ever (timers ∞)";
pub const ABOUT_MANUAL: &str = "dally with timers fixed at 12 h and 24 h";
pub const ABOUT_NO_PREEMPT: &str = "dally without preemption and upgrades";

pub fn auto(options: &Options) -> Box<dyn Policy> {
    Box::new(Dally::new(options.clone()))
}

/// The same fixed timer for all levels.
fn alike(options: &Options, timer_s: Seconds) -> Box<dyn Policy> {
    let level_s = BTreeMap::new();
    manual(&Options { machine_s: timer_s, rack_s: timer_s, level_s, ..options.clone() })
}

pub fn no_wait(options: &Options) -> Box<dyn Policy> {
    alike(options, 0.0)
}

pub fn consolidate(options: &Options) -> Box<dyn Policy> {
    alike(options, f64::INFINITY)
}

pub fn manual(options: &Options) -> Box<dyn Policy> {
    let timers = Timers::Fixed;
    auto(&Options { timers, wait_while_worth: false, ..options.clone() })
}

pub fn no_preempt(options: &Options) -> Box<dyn Policy> {
    auto(&Options { preempt: false, upgrade: false, ..options.clone() })
}

#[derive(Debug, Serialize, Deserialize)]
struct Dally {
    #[serde(skip)]
    options: Options,
    tuner: Tuner,
    waiting: Waiting,
    round_set: bool,
    round_due: bool,
    /// Timers last reported for each demand.
    reported: BTreeMap<u32, Vec<Seconds>>,
}

impl Dally {
    fn new(options: Options) -> Self {
        Self {
            tuner: Tuner::new(&options.tuner),
            waiting: Waiting::new(options.clock == Clock::WhileDeclining),
            options,
            round_set: false,
            round_due: false,
            reported: BTreeMap::new(),
        }
    }

    // ---- delay scheduling ----

    /// Offers what is free to the waiting jobs, by claim. Whoever is offered a tier that it does
    /// not accept yet declines, and the next is asked: no head of the line blocks the others.
    fn offer(&mut self, turn: &mut Turn) {
        let saved = self.serve_overdue(turn);
        while let Some((id, tier, pool)) = self.waiting.first_acceptor(&turn.state.cluster, &saved)
        {
            let why = settles_for(turn, id, tier);
            self.accept(turn, id, tier, pool, why);
        }
        for id in self.waiting.decline(turn, &saved) {
            self.hold_out(turn, id);
        }
        self.waiting.set_alarms(turn);
    }

    fn accept(&mut self, turn: &mut Turn, id: JobId, tier: Tier, pool: PoolId, why: Why) {
        let gang = turn.state.job(id).demand();
        let placement = turn.state.cluster.place_at(gang, pool, tier).expect("it was on offer");
        let left = self.waiting.leave(turn, id).expect("it waits");
        // A wait that ended because others made room says only that the tier takes longer to come.
        let got = tier <= left.allowed && !matches!(why, Why::RoomMade { .. });
        self.note_wait(gang.gpus, left, got);
        turn.start(id, placement, why);
    }

    fn note_wait(&mut self, gpus: u32, left: Left, got: bool) {
        if let Some(waited_s) = left.held_out_s {
            self.tuner.observe(gpus, left.allowed, Wait { waited_s, got });
        }
    }

    /// The job's clock starts: from now on it holds out for its tier, for so long.
    fn hold_out(&mut self, turn: &mut Turn, id: JobId) {
        let tier = self.waiting.allowed(id);
        let job = turn.state.job(id);
        let gpus = job.gpus();
        let timers_s = self.timers_s(turn, gpus);
        // Holding out longer than the worse tier would cost the job cannot pay for itself.
        let forecast = &turn.state.forecast;
        let cost = forecast.step_cost(job, tier.wider());
        let worth_s = match (cost, forecast.left(job, turn.now())) {
            (Some((step_s, _)), Some(left)) if self.options.wait_while_worth => left * step_s,
            _ => f64::INFINITY,
        };
        let cost = cost.map(|(_, share)| share);
        let until_s = self.waiting.start_clock(turn, id, timers_s[tier.level()].min(worth_s));
        turn.decline(id, Why::HoldsOut { tier, until_s, cost });
        if self.options.timers == Timers::Auto && self.reported.get(&gpus) != Some(&timers_s) {
            self.reported.insert(gpus, timers_s.clone());
            turn.say(Action::Tuned { gpus, timers_s }, Why::Learned);
        }
    }

    /// How long a job of this demand holds out for each tier but the widest.
    fn timers_s(&self, turn: &Turn, gpus: u32) -> Vec<Seconds> {
        let levels = &turn.state.cluster.levels;
        let below_widest = Tier::all(levels.len() - 1).zip(levels);
        below_widest
            .map(|(tier, name)| match self.options.timers {
                Timers::Fixed => self.options.fixed_s(tier.level(), name),
                Timers::Auto => self.tuner.timer_s(gpus, tier),
            })
            .collect()
    }

    /// The job has held out long enough for its tier and accepts the next one.
    fn relent(&mut self, turn: &mut Turn, id: JobId) {
        let left = self.waiting.leave(turn, id).expect("it waits");
        self.note_wait(turn.state.job(id).gpus(), left, false);
        let allowed = left.allowed.wider();
        self.join(turn, id, allowed);
        if allowed < turn.state.cluster.widest() {
            self.hold_out(turn, id);
        }
    }

    fn join(&mut self, turn: &Turn, id: JobId, allowed: Tier) {
        let claim = self.options.score.claim(turn.state.job(id), &turn.state.forecast, turn.now());
        self.waiting.join(turn, id, claim, allowed);
    }

    /// Starts overdue jobs, oldest first. GPUs of the types that those left could use are saved for
    /// them: nobody else starts there.
    fn serve_overdue(&mut self, turn: &mut Turn) -> Saved {
        let mut saved = Saved::default();
        let mut from = 0;
        while !saved.everything()
            && let Some(id) = self.waiting.overdue(turn.now(), self.options.overdue_s, from)
        {
            from = id + 1;
            let job = turn.state.job(id);
            match turn.state.cluster.best_pool(job.demand(), job.pool) {
                Some((tier, pool)) if saved.leaves(job.pool) => {
                    let waited_s = turn.now() - job.since_s;
                    self.accept(turn, id, tier, pool, Why::Overdue { tier, waited_s });
                }
                _ => saved.save(job.pool),
            }
        }
        saved
    }

    // ---- network-sensitive preemption ----

    /// Waiting jobs, by claim, look for one domain of the best tier they can have in which free
    /// GPUs and those of jobs with a clearly worse claim suffice.
    fn preempt(&mut self, turn: &mut Turn) {
        let mut candidates = self.candidates(turn);
        if let Some(id) = self.waiting.overdue(turn.now(), self.options.overdue_s, 0) {
            self.preempt_for(
                turn,
                &mut candidates,
                id,
                f64::NEG_INFINITY,
                turn.state.cluster.widest(),
            );
            return;
        }
        let mut hopeless: BTreeSet<(Class, Tier)> = BTreeSet::new();
        while let Some((claim, id)) = self.waiting.first_claimant(&hopeless) {
            let allowed = self.waiting.allowed(id);
            let above = (claim * self.options.damping).max(f64::MIN_POSITIVE);
            if !self.preempt_for(turn, &mut candidates, id, above, allowed) {
                // Others of this demand that accept no more have a weaker claim and fare no better.
                hopeless.insert((class_of(turn.state.job(id)), allowed));
            }
        }
    }

    fn candidates(&self, turn: &Turn) -> Candidates {
        let now = turn.now();
        let candidate = |id: JobId| {
            turn.state.worked_s(id).filter(|&s| s >= self.options.quantum_s)?;
            let claim = self.options.score.claim(turn.state.job(id), &turn.state.forecast, now);
            Some(Candidate { id, claim, cost: turn.state.stop_cost(id) })
        };
        Candidates::new(turn.state.running.iter().copied().filter_map(candidate).collect())
    }

    fn preempt_for(
        &mut self,
        turn: &mut Turn,
        candidates: &mut Candidates,
        id: JobId,
        above: f64,
        allowed: Tier,
    ) -> bool {
        let job = turn.state.job(id);
        let (gang, best, wanted) = (job.demand(), job.best, job.pool);
        // Earlier victims of this round may have left room.
        if let Some((tier, pool)) = turn.state.cluster.best_pool(gang, wanted)
            && tier <= allowed
        {
            let why = settles_for(turn, id, tier);
            self.accept(turn, id, tier, pool, why);
            return true;
        }
        for tier in turn.state.cluster.tiers().filter(|t| (best..=allowed).contains(t)) {
            for pool in turn.state.cluster.pools_for(wanted) {
                let cheapest = candidates.cheapest(&turn.state, gang, pool, tier, above);
                let Some((_, victims)) = cheapest else { continue };
                self.evict(turn, candidates, &victims, id);
                // Others may have taken GPUs from under the victims.
                let Some(tier) = turn.state.cluster.offer_tier(gang, pool) else { continue };
                let why = Why::RoomMade { tier, victims: victims.len() as u32 };
                self.accept(turn, id, tier, pool, why);
                return true;
            }
        }
        false
    }

    fn evict(
        &mut self,
        turn: &mut Turn,
        candidates: &mut Candidates,
        victims: &[JobId],
        job: JobId,
    ) {
        for &victim in victims {
            candidates.remove(&turn.state, victim);
            turn.preempt(victim, Reason::Priority, Why::RoomFor { job });
            self.enqueue(turn, victim);
        }
    }

    // ---- upgrades ----

    /// Running jobs move to a better place, free or freed, where that saves more than it costs.
    fn upgrade(&mut self, turn: &mut Turn) {
        let mut candidates = match self.options.upgrade_evicts {
            true => self.candidates(turn),
            false => Candidates::default(),
        };
        let running: Vec<JobId> = turn.state.running.iter().copied().collect();
        for id in running {
            let settled = turn.state.worked_s(id).is_some_and(|s| s >= self.options.quantum_s);
            let job = turn.state.job(id);
            let Some(run) = job.run().filter(|run| settled && run.placement.tier > job.best) else {
                continue;
            };
            let (tier, restart_s) = (run.placement.tier, job.job.profile.restart_s);
            let pays = |saved_s: &Seconds| *saved_s > self.options.upgrade_gain * restart_s;
            let forecast = &turn.state.forecast;
            let Some(saved_s) = forecast.saving_s(&turn.state, id, None).filter(pays) else {
                continue;
            };
            if let Some(offer) = turn.offer_instead(id).filter(|offer| offer.tier < tier) {
                let saved_s = turn.state.forecast.saving_s(&turn.state, id, Some(&offer));
                if let Some(saved_s) = saved_s.filter(pays) {
                    move_to(turn, &mut candidates, id, offer, saved_s);
                    continue;
                }
            }
            if self.options.upgrade_evicts {
                self.make_room(turn, &mut candidates, id, saved_s);
            }
        }
    }

    /// Frees a domain of the job's best tier for it, if that pays for all who must restart.
    fn make_room(
        &mut self,
        turn: &mut Turn,
        candidates: &mut Candidates,
        id: JobId,
        saved_s: Seconds,
    ) {
        let job = turn.state.job(id);
        let (gang, best, pool) = (job.demand(), job.best, turn.state.pool_of_run(id));
        let above =
            self.options.damping * self.options.score.claim(job, &turn.state.forecast, turn.now());
        let cheapest = candidates.cheapest(&turn.state, gang, pool, best, above);
        let Some((victims_cost, victims)) = cheapest else { return };
        let cost = turn.state.stop_cost(id) + victims_cost;
        if f64::from(gang.gpus) * saved_s > self.options.upgrade_gain * cost {
            self.evict(turn, candidates, &victims, id);
            if let Some(place) = turn.state.cluster.place_at(gang, pool, best) {
                move_to(turn, candidates, id, place, saved_s);
            }
        }
    }
}

/// A job that has moved has only just begun there: nobody's victim.
fn move_to(
    turn: &mut Turn,
    candidates: &mut Candidates,
    id: JobId,
    place: Placement,
    saved_s: Seconds,
) {
    let why = Why::Saves { tier: place.tier, saved_s };
    candidates.remove(&turn.state, id);
    turn.preempt(id, Reason::Upgrade, why);
    turn.start(id, place, why);
}

/// The reason to start a job on free GPUs of this tier.
fn settles_for(turn: &Turn, id: JobId, tier: Tier) -> Why {
    let job = turn.state.job(id);
    match tier > job.best {
        true => Why::Relented { tier, wanted: job.best, waited_s: turn.now() - job.since_s },
        false => Why::Turn { tier },
    }
}

impl Policy for Dally {
    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        let best = turn.state.job(id).best;
        self.join(turn, id, best);
        if self.options.clock == Clock::SinceReleased && best < turn.state.cluster.widest() {
            self.hold_out(turn, id);
        }
    }

    fn forget(&mut self, turn: &mut Turn, id: JobId) {
        if let Some(left) = self.waiting.leave(turn, id) {
            self.note_wait(turn.state.job(id).gpus(), left, false);
        }
    }

    fn reconsider(&mut self, turn: &mut Turn, id: JobId) {
        if self.waiting.leave(turn, id).is_some() {
            self.enqueue(turn, id);
        }
    }

    fn timer(&mut self, turn: &mut Turn, timer: Timer) {
        match timer {
            Timer::Round => {
                self.round_set = false;
                self.round_due = true;
            }
            Timer::Job(id) => {
                if self.waiting.is_time(turn, id) {
                    self.relent(turn, id);
                }
            }
        }
    }

    fn schedule(&mut self, turn: &mut Turn) {
        self.offer(turn);
        if std::mem::take(&mut self.round_due) {
            if self.options.preempt {
                self.preempt(turn);
            }
            if self.options.upgrade {
                self.upgrade(turn);
            }
            self.offer(turn);
        }
        let wanted = self.options.preempt || self.options.upgrade;
        if wanted && !self.round_set && turn.state.unfinished > 0 {
            self.round_set = true;
            turn.set_timer(Timer::Round, turn.now() + self.options.round_s);
        }
    }

    fn save(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("policies are plain values")
    }

    fn load(&mut self, saved: serde_json::Value) -> Result<(), serde_json::Error> {
        let Self { tuner, waiting, .. } = Self::new(self.options.clone());
        let options = std::mem::take(&mut self.options);
        *self = Self { options, ..serde_json::from_value(saved)? };
        self.tuner.options = tuner.options;
        self.waiting.pausing = waiting.pausing;
        Ok(())
    }

    fn overtaking_s_max(&self) -> Option<Seconds> {
        self.options.overdue_s.is_finite().then_some(self.options.overdue_s)
    }
}
