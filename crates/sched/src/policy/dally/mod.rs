//! Network-proximity scheduling: delay scheduling, network-sensitive preemption, upgrades, and an
//! auto-tuner of the delays.
//!
//! After "GPU Cluster Scheduling for Network-Sensitive Deep Learning" (Dally). The paper publishes
//! the parts and not all their rules; what it leaves open is a reconstruction of ours, and each
//! such point is a named field of [`Options`]. docs/policies.md tells the choices and docs/
//! results-schedule.md the measurements behind the defaults.

use std::collections::{BTreeMap, BTreeSet};

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_core::topology::Tier;

use crate::event::{Timer, Why};
use crate::job::JobId;
use crate::network::Shape;
use crate::pass::{Answer, Offer};
use crate::policy::{Policy, best_place};
use crate::state::{Ask, Claim, State, Turn};

mod options;
mod score;
mod victims;
mod worth;

pub use options::{Options, TIMERS, Timers};
pub use score::Score;
use victims::{Candidate, Candidates};
use worth::{move_saves_s, place_costs_s, stop_costs};

pub const ABOUT: &str = "delay scheduling, network-sensitive preemption, upgrades, tuned delays";
pub const ABOUT_NO_WAIT: &str = "dally that takes the best place on offer at once (timers 0)";
pub const ABOUT_CONSOLIDATE: &str = "dally that waits for its best tier for ever (timers ∞)";
pub const ABOUT_MANUAL: &str = "dally with timers fixed at 12 h and 24 h";
pub const ABOUT_NO_PREEMPT: &str = "dally without preemption and upgrades";

/// A job is overdue only after so many times the usual wait. Where the cluster is overloaded for months every
/// long job would be overdue otherwise, and the bound alone would decide who runs.
const OVERDUE_WAITS: f64 = 8.0;

pub struct Dally {
    options: Options,
    /// What a gang of each ask would have if the cluster were empty, and for which layout that holds.
    best_shapes: (u64, BTreeMap<Ask, Shape>),
}

impl Dally {
    pub fn new(options: &Options) -> Self {
        Self { options: options.clone(), best_shapes: (0, BTreeMap::new()) }
    }

    // ---- delay scheduling ----

    /// What the job and its neighbours would lose at the place on offer; `None`: nobody knows, or fixed timers
    /// stand for it.
    fn place_costs_s(&mut self, turn: &mut Turn, id: JobId, offer: Offer) -> Option<Seconds> {
        if self.options.timers == Timers::Fixed {
            return None;
        }
        let ask = Ask::of(turn.state.job(id));
        let place = turn.state.cluster.place_at(ask.gang, offer.pool, offer.tier)?;
        let best = self.best_shape(turn, ask)?;
        place_costs_s(turn, id, &place, &best, self.options.anticipate)
    }

    /// The shape that a gang of the ask has on the empty cluster: no better one will come.
    fn best_shape(&mut self, turn: &Turn, ask: Ask) -> Option<Shape> {
        let cluster = &turn.state.cluster;
        if self.best_shapes.0 != cluster.layout {
            self.best_shapes = (cluster.layout, BTreeMap::new());
        }
        if let Some(&shape) = self.best_shapes.1.get(&ask) {
            return Some(shape);
        }
        let place = cluster.emptied().best_offer(ask.gang, ask.pool)?;
        let shape = turn.state.network.shape(cluster, &place);
        self.best_shapes.1.insert(ask, shape);
        Some(shape)
    }

    /// The expected wait from which on it is better to take the place.
    fn worth_waiting_s(
        &self,
        turn: &Turn,
        id: JobId,
        tier: Tier,
        lost_s: Option<Seconds>,
    ) -> Seconds {
        let is_best = tier <= turn.state.job(id).best;
        match (lost_s, tier.level().checked_sub(1)) {
            (Some(lost_s), _) => lost_s,
            (None, Some(level)) if !is_best => {
                self.options.fixed_s(level, &turn.state.cluster.levels[level])
            }
            (None, _) => 0.0,
        }
    }

    // ---- network-sensitive preemption ----

    /// Waiting jobs, by claim, look for one domain of the best tier they can have in which free
    /// GPUs and those of jobs with a clearly worse claim suffice.
    fn preempt(&mut self, turn: &mut Turn) {
        if turn.state.line.is_empty() {
            return;
        }
        let overdue_s = self.overdue_after_s(&turn.state);
        if let Some(id) = turn.overdue(overdue_s, 0) {
            let (above, allowed) = (f64::NEG_INFINITY, turn.state.cluster.widest());
            let mut candidates = self.candidates(turn, above);
            self.preempt_for(turn, &mut candidates, id, above, allowed);
            return;
        }
        let mut hopeless: BTreeSet<Ask> = BTreeSet::new();
        let damping = self.options.damping;
        let above = |claim: Claim| (claim.value.0 * damping).max(f64::MIN_POSITIVE);
        // Whoever is asked later, a victim of this round too, has a weaker claim than the first.
        let first = turn.state.line.first_but(&hopeless).map_or(Claim::default(), |first| first.0);
        let mut candidates = self.candidates(turn, above(first));
        while let Some((claim, id)) = turn.state.line.first_but(&hopeless) {
            let job = turn.state.job(id);
            let (ask, best) = (Ask::of(job), job.best);
            if !self.preempt_for(turn, &mut candidates, id, above(claim), best) {
                // Others of this ask have a weaker claim and fare no better.
                hopeless.insert(ask);
            }
        }
    }

    /// Running jobs that may be preempted now and have a claim above `above`.
    fn candidates(&self, turn: &mut Turn, above: f64) -> Candidates {
        let now = turn.now();
        let running: Vec<JobId> = turn.state.running.iter().copied().collect();
        let candidate = |id: JobId| {
            turn.state.worked_s(id).filter(|&s| s >= self.options.quantum_s)?;
            let claim = self.options.score.claim(turn.state.job(id), &turn.state.forecast, now);
            let claim = claim.value.0;
            if claim <= above {
                return None;
            }
            Some(Candidate { id, claim, cost: stop_costs(turn, id, self.options.anticipate) })
        };
        Candidates::new(running.into_iter().filter_map(candidate).collect())
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
        let (Ask { gang, pool: wanted }, best) = (Ask::of(job), job.best);
        // Earlier victims of this round may have left room.
        if let Some((tier, pool)) = turn.state.cluster.best_pool(gang, wanted)
            && tier <= allowed
        {
            let place = turn.state.cluster.place_at(gang, pool, tier).expect("it is free");
            turn.accept(id, place, settles_for(turn, id, tier));
            return true;
        }
        for tier in turn.state.cluster.tiers().filter(|t| (best..=allowed).contains(t)) {
            for pool in turn.state.cluster.pools_for(wanted) {
                let cheapest = candidates.cheapest(&turn.state, gang, pool, tier, above);
                let Some((_, victims)) = cheapest else { continue };
                for &victim in &victims {
                    candidates.remove(&turn.state, victim);
                    turn.preempt(victim, Reason::Priority, Why::RoomFor { job: id });
                }
                turn.enlist(self);
                // Others may have taken GPUs from under the victims.
                let Some(tier) = turn.state.cluster.offer_tier(gang, pool) else { continue };
                let place = turn.state.cluster.place_at(gang, pool, tier).expect("it is free");
                turn.accept(id, place, Why::RoomMade { tier, victims: victims.len() as u32 });
                return true;
            }
        }
        false
    }

    // ---- upgrades ----

    /// Running jobs move to a better place that is free, where that saves more than it costs.
    fn upgrade(&mut self, turn: &mut Turn) {
        let running: Vec<JobId> = turn.state.running.iter().copied().collect();
        for id in running {
            let settled = turn.state.worked_s(id).is_some_and(|s| s >= self.options.quantum_s);
            let job = turn.state.job(id);
            let Some(run) = job.run().filter(|run| settled && run.placement.tier > job.best) else {
                continue;
            };
            let (tier, restart_s) = (run.placement.tier, turn.state.move_s(id));
            let pays = |saved_s: &Seconds| *saved_s > self.options.upgrade_gain * restart_s;
            let saved_s = turn.state.forecast.saving_s(job, turn.now(), self.options.anticipate);
            if !saved_s.as_ref().is_some_and(pays) {
                continue;
            }
            let Some(place) = turn.offer_instead(id).filter(|place| place.tier < tier) else {
                continue;
            };
            let saved_s = move_saves_s(turn, id, &place, self.options.anticipate);
            if let Some(saved_s) = saved_s.filter(pays) {
                let why = Why::Saves { tier: place.tier, saved_s };
                turn.preempt(id, Reason::Upgrade, why);
                turn.start(id, place, why);
            }
        }
    }

    /// A job that has waited so long is overdue.
    fn overdue_after_s(&self, state: &State) -> Seconds {
        self.options.overdue_s.max(OVERDUE_WAITS * state.waits.usual_s())
    }
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
    fn claim(&self, state: &State, id: JobId) -> Claim {
        self.options.score.claim(state.job(id), &state.forecast, state.now)
    }

    /// The job takes the place if it would lose less there than a better one takes to come.
    fn answer(&mut self, turn: &mut Turn, id: JobId, offer: Offer) -> Answer {
        let (tier, now) = (offer.tier, turn.now());
        let job = turn.state.job(id);
        let (ask, best) = (Ask::of(job), job.best);
        // Inside a machine nobody shares links: nothing to weigh.
        if tier <= best && tier == Tier::MACHINE {
            return Answer::Take(best_place(turn, id, offer), Why::Turn { tier });
        }
        let lost_s = self.place_costs_s(turn, id, offer);
        let wait_s = turn.state.waits.wait_s(ask, now);
        let enough_s = self.worth_waiting_s(turn, id, tier, lost_s);
        if wait_s >= enough_s {
            let is_settling = tier > best || lost_s.is_none_or(|lost_s| lost_s > 0.0);
            let settles = Why::Settles { tier, lost_s, wait_s };
            let why = if is_settling { settles } else { Why::Turn { tier } };
            return Answer::Take(best_place(turn, id, offer), why);
        }
        let why = Why::Weighs { tier, lost_s, wait_s };
        match turn.state.job(id).why {
            Why::Weighs { .. } => turn.still_declines(id, why),
            _ => turn.decline(id, why),
        }
        // What the place costs changes all the time: looking again more often than once a round is in vain. A
        // fixed timer stands still.
        let until_s = now + self.options.round_s;
        let again_s = if lost_s.is_some() { until_s } else { now + 1.0 };
        let gives_in_s = turn.state.waits.grown_at_s(ask, now, enough_s).max(again_s);
        Answer::HoldOut { until_s, gives_in_s }
    }

    fn round(&mut self, turn: &mut Turn) -> bool {
        let is_due = turn.take_due(Timer::Round);
        if is_due && self.options.preempt {
            self.preempt(turn);
        }
        if is_due && self.options.upgrade {
            self.upgrade(turn);
        }
        let wanted = self.options.preempt || self.options.upgrade;
        if wanted && turn.state.unfinished > 0 {
            turn.await_round(self.options.round_s);
        }
        is_due
    }

    fn overtaking_s_max(&self, state: &State) -> Option<Seconds> {
        Some(self.overdue_after_s(state)).filter(|overdue_s| overdue_s.is_finite())
    }
}
