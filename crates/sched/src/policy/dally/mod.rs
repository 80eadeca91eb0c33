//! Network-proximity scheduling: delay scheduling, network-sensitive preemption, upgrades, and an
//! auto-tuner of the delays.
//!
//! After "GPU Cluster Scheduling for Network-Sensitive Deep Learning" (Dally). The paper publishes
//! the parts and not all their rules; what it leaves open is a reconstruction of ours, and each
//! such point is a named field of [`Options`]. docs/policies.md tells the choices and docs/
//! results-schedule.md the measurements behind the defaults.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_core::topology::Tier;
use serde::{Deserialize, Serialize};

use crate::cluster::{Placement, PoolId};
use crate::event::{Action, Timer, Why};
use crate::job::JobId;
use crate::network::Shape;
use crate::order::pairs;
use crate::policy::Policy;
use crate::policy::queue::{Class, class_of};
use crate::state::Turn;

mod options;
mod score;
mod tuner;
mod victims;
mod waiting;
mod worth;

pub use options::{Clock, Options, Timers};
pub use score::Score;
use tuner::Tuner;
use victims::{Candidate, Candidates};
use waiting::{Answer, Reserved, UsualWait, Waiting};
use worth::{move_saves_s, place_costs_s, stop_costs};

pub const ABOUT: &str = "delay scheduling, network-sensitive preemption, upgrades, tuned delays";
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

/// A job is overdue only after so many times the usual wait. Where the cluster is overloaded for months every
/// long job would be overdue otherwise, and the bound alone would decide who runs.
const OVERDUE_WAITS: f64 = 8.0;

/// Of each demand so many jobs are asked whether they take a place.
const ASKED_MAX: u32 = 16;

#[derive(Debug, Serialize, Deserialize)]
struct Dally {
    #[serde(skip)]
    options: Options,
    tuner: Tuner,
    waiting: Waiting,
    #[serde(default)]
    usual_wait: UsualWait,
    round_set: bool,
    round_due: bool,
    /// What a gang of each demand would have if the cluster were empty, and for which layout that holds.
    #[serde(skip)]
    best_shapes: (u64, BTreeMap<Class, Shape>),
    /// The expected wait last reported for each demand.
    #[serde(default, with = "pairs")]
    reported: BTreeMap<Class, Seconds>,
}

impl Dally {
    fn new(options: Options) -> Self {
        Self {
            tuner: Tuner::default(),
            waiting: Waiting::new(options.clock == Clock::WhileDeclining),
            options,
            usual_wait: UsualWait::default(),
            round_set: false,
            round_due: false,
            best_shapes: (0, BTreeMap::new()),
            reported: BTreeMap::new(),
        }
    }

    // ---- delay scheduling ----

    /// Offers what is free to the waiting jobs, by claim. Whoever is offered a tier that it does
    /// not accept yet declines, and the next is asked: no head of the line blocks the others.
    fn offer(&mut self, turn: &mut Turn) {
        let reserved = self.serve_overdue(turn);
        match self.options.timers {
            Timers::Auto => self.offer_to_weigh(turn, &reserved),
            Timers::Fixed => self.offer_by_timers(turn, &reserved),
        }
    }

    fn offer_by_timers(&mut self, turn: &mut Turn, reserved: &Reserved) {
        while let Some((id, tier, pool)) =
            self.waiting.first_acceptor(&turn.state.cluster, reserved)
        {
            let why = settles_for(turn, id, tier);
            self.accept(turn, id, tier, pool, why);
        }
        for id in self.waiting.decline(turn, reserved) {
            self.hold_out(turn, id);
        }
        self.waiting.set_alarms(turn);
    }

    /// Asks the first jobs of every demand, by claim over all demands, whether they take what there is.
    fn offer_to_weigh(&mut self, turn: &mut Turn, reserved: &Reserved) {
        let (asked, idle) = self.waiting.demands_to_ask(turn, reserved, self.options.round_s);
        let now = turn.now();
        idle.into_iter().for_each(|demand| self.tuner.hold_out(demand, now, false));
        let mut answers: BTreeMap<Class, (u32, Answer)> = BTreeMap::new();
        let mut heads: BinaryHeap<_> =
            asked.into_iter().map(|(d, head)| Reverse((head, d))).collect();
        while let Some(Reverse((head, demand))) = heads.pop() {
            let (gang, wanted) = demand;
            let Some((tier, pool)) = turn.state.cluster.best_pool(gang, wanted) else {
                self.tuner.hold_out(demand, now, false);
                answers.remove(&demand);
                continue;
            };
            let next = self.waiting.after(demand, head);
            let gives_in_s = self.ask(turn, head.1, tier, pool);
            let mut count = 0;
            if let Some(gives_in_s) = gives_in_s {
                let answer = Answer { tier, at_s: now, first: head.1, gives_in_s };
                let (declined, earliest) = answers.entry(demand).or_insert((0, answer));
                if gives_in_s < earliest.gives_in_s {
                    *earliest = answer;
                }
                *declined += 1;
                count = *declined;
            }
            if let Some(next) = next.filter(|_| count < ASKED_MAX) {
                heads.push(Reverse((next, demand)));
            }
        }
        for (demand, (_, answer)) in answers {
            self.tuner.hold_out(demand, now, true);
            self.waiting.answered(turn, demand, answer);
            self.report_wait(turn, demand);
        }
    }

    /// Says how long a demand expects to wait, when that has changed by a quarter.
    fn report_wait(&mut self, turn: &mut Turn, demand: Class) {
        let wait_s = self.tuner.wait_s(demand, turn.now());
        let gpus = demand.0.gpus;
        let reported_s = self.reported.get(&demand).copied().unwrap_or(0.0);
        if (wait_s - reported_s).abs() > 0.25 * reported_s {
            self.reported.insert(demand, wait_s);
            let timers_s = vec![wait_s; turn.state.cluster.levels.len() - 1];
            turn.say(Action::Tuned { gpus, timers_s }, Why::Learned);
        }
    }

    /// Offers a place to a job. Returns when it gives in, if it declines.
    fn ask(&mut self, turn: &mut Turn, id: JobId, tier: Tier, pool: PoolId) -> Option<Seconds> {
        let job = turn.state.job(id);
        let (demand, best) = (class_of(job), job.best);
        // Inside a machine nobody shares links: nothing to weigh.
        if tier <= best && tier == Tier::MACHINE {
            self.accept(turn, id, tier, pool, Why::Turn { tier });
            return None;
        }
        let place = turn.state.cluster.place_at(demand.0, pool, tier).expect("it was on offer");
        let best_shape = self.best_shape(turn, demand);
        let lost_s = best_shape
            .and_then(|best| place_costs_s(turn, id, &place, &best, self.options.anticipate));
        let wait_s = self.tuner.wait_s(demand, turn.now());
        let enough_s = self.worth_waiting_s(turn, id, tier, lost_s);
        if wait_s >= enough_s {
            let why = match tier > best || lost_s.is_none_or(|lost_s| lost_s > 0.0) {
                true => Why::Settles { tier, lost_s, wait_s },
                false => Why::Turn { tier },
            };
            self.accept(turn, id, tier, pool, why);
            return None;
        }
        let why = Why::Weighs { tier, lost_s, wait_s };
        match turn.state.job(id).why {
            Why::Weighs { .. } => turn.still_declines(id, why),
            _ => turn.decline(id, why),
        }
        // What the place costs changes all the time: looking again more often than once a round is in vain.
        let again_s = turn.now() + self.options.round_s;
        Some(self.tuner.grown_at_s(demand, turn.now(), enough_s).max(again_s))
    }

    /// The shape that a gang of the demand has on the empty cluster: no better one will come.
    fn best_shape(&mut self, turn: &Turn, demand: Class) -> Option<Shape> {
        let cluster = &turn.state.cluster;
        if self.best_shapes.0 != cluster.layout {
            self.best_shapes = (cluster.layout, BTreeMap::new());
        }
        if let Some(&shape) = self.best_shapes.1.get(&demand) {
            return Some(shape);
        }
        let place = cluster.emptied().best_offer(demand.0, demand.1)?;
        let shape = turn.state.network.shape(cluster, &place);
        self.best_shapes.1.insert(demand, shape);
        Some(shape)
    }

    /// The expected wait from which on it is better to take the place. A job without a profile holds out as
    /// if its timer were fixed.
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

    fn accept(&mut self, turn: &mut Turn, id: JobId, tier: Tier, pool: PoolId, why: Why) {
        let demand = class_of(turn.state.job(id));
        let placement = turn.state.cluster.place_at(demand.0, pool, tier).expect("it was on offer");
        self.waiting.leave(turn, id);
        self.usual_wait.add(turn.now() - turn.state.job(id).since_s);
        if tier <= turn.state.job(id).best {
            self.tuner.got_place(demand, turn.now());
        }
        self.settle_demand(turn, demand);
        turn.start(id, placement, why);
    }

    /// A demand of which nobody waits does not hold out.
    fn settle_demand(&mut self, turn: &Turn, demand: Class) {
        if !self.waiting.has(demand) {
            self.tuner.hold_out(demand, turn.now(), false);
        }
    }

    /// The job's clock starts: from now on it holds out for its tier, for so long.
    fn hold_out(&mut self, turn: &mut Turn, id: JobId) {
        let tier = self.waiting.allowed(id);
        let job = turn.state.job(id);
        // Holding out longer than the worse tier would cost the job cannot pay for itself.
        let forecast = &turn.state.forecast;
        let cost = forecast.step_cost(job, tier.wider());
        let worth_s = match (cost, forecast.left(job, turn.now())) {
            (Some((step_s, _)), Some(left)) if self.options.wait_while_worth => left * step_s,
            _ => f64::INFINITY,
        };
        let cost = cost.map(|(_, share)| share);
        let name = &turn.state.cluster.levels[tier.level()];
        let timer_s = self.options.fixed_s(tier.level(), name);
        let until_s = self.waiting.start_clock(turn, id, timer_s.min(worth_s));
        turn.decline(id, Why::HoldsOut { tier, until_s, cost });
    }

    /// The job has held out long enough for its tier and accepts the next one.
    fn relent(&mut self, turn: &mut Turn, id: JobId) {
        let accepted = self.waiting.leave(turn, id).expect("it waits");
        let allowed = accepted.wider();
        self.join(turn, id, allowed);
        if allowed < turn.state.cluster.widest() {
            self.hold_out(turn, id);
        }
    }

    fn join(&mut self, turn: &Turn, id: JobId, allowed: Tier) {
        let claim = self.options.score.claim(turn.state.job(id), &turn.state.forecast, turn.now());
        self.waiting.join(turn, id, claim, allowed);
    }

    /// A job that has waited so long is overdue.
    fn overdue_after_s(&self) -> Seconds {
        self.options.overdue_s.max(OVERDUE_WAITS * self.usual_wait.at_turn_s)
    }

    /// Starts overdue jobs, oldest first. GPUs of the types that those left could use are reserved for
    /// them: nobody else starts there.
    fn serve_overdue(&mut self, turn: &mut Turn) -> Reserved {
        let (mut reserved, overdue_s) = (Reserved::default(), self.overdue_after_s());
        let mut from = 0;
        while !reserved.is_everything()
            && let Some(id) = self.waiting.overdue(turn.now(), overdue_s, from)
        {
            from = id + 1;
            let job = turn.state.job(id);
            match turn.state.cluster.best_pool(job.demand(), job.pool) {
                Some((tier, pool)) if reserved.allows(job.pool) => {
                    let waited_s = turn.now() - job.since_s;
                    self.accept(turn, id, tier, pool, Why::Overdue { tier, waited_s });
                }
                _ => reserved.add(job.pool),
            }
        }
        reserved
    }

    // ---- network-sensitive preemption ----

    /// Waiting jobs, by claim, look for one domain of the best tier they can have in which free
    /// GPUs and those of jobs with a clearly worse claim suffice.
    fn preempt(&mut self, turn: &mut Turn) {
        if self.waiting.is_empty() {
            return;
        }
        let overdue_s = self.overdue_after_s();
        if let Some(id) = self.waiting.overdue(turn.now(), overdue_s, 0) {
            let (above, allowed) = (f64::NEG_INFINITY, turn.state.cluster.widest());
            let mut candidates = self.candidates(turn, above);
            self.preempt_for(turn, &mut candidates, id, above, allowed);
            return;
        }
        let mut hopeless: BTreeSet<(Class, Tier)> = BTreeSet::new();
        let damping = self.options.damping;
        let above = |claim: f64| (claim * damping).max(f64::MIN_POSITIVE);
        // Whoever is asked later, a victim of this round too, has a weaker claim than the first.
        let first = self.waiting.first_claimant(&hopeless).map_or(0.0, |first| first.0);
        let mut candidates = self.candidates(turn, above(first));
        while let Some((claim, id)) = self.waiting.first_claimant(&hopeless) {
            let (allowed, above) = (self.waiting.allowed(id), above(claim));
            if !self.preempt_for(turn, &mut candidates, id, above, allowed) {
                // Others of this demand that accept no more have a weaker claim and fare no better.
                hopeless.insert((class_of(turn.state.job(id)), allowed));
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
            true => self.candidates(turn, f64::NEG_INFINITY),
            false => Candidates::default(),
        };
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
            let Some(saved_s) = saved_s.filter(pays) else { continue };
            if let Some(offer) = turn.offer_instead(id).filter(|offer| offer.tier < tier) {
                let saved_s = move_saves_s(turn, id, &offer, self.options.anticipate);
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
        let at_once =
            self.options.timers == Timers::Fixed && self.options.clock == Clock::SinceReleased;
        if at_once && best < turn.state.cluster.widest() {
            self.hold_out(turn, id);
        }
    }

    fn forget(&mut self, turn: &mut Turn, id: JobId) {
        if self.waiting.leave(turn, id).is_some() {
            self.settle_demand(turn, class_of(turn.state.job(id)));
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
                let by_timers = self.options.timers == Timers::Fixed;
                if by_timers && self.waiting.is_time(turn, id) {
                    self.relent(turn, id);
                }
            }
        }
    }

    fn schedule(&mut self, turn: &mut Turn) {
        self.usual_wait.begin_turn();
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
        let pausing = self.waiting.pausing;
        let options = std::mem::take(&mut self.options);
        *self = Self { options, ..serde_json::from_value(saved)? };
        self.waiting.pausing = pausing;
        Ok(())
    }

    fn line(&self) -> Option<Vec<JobId>> {
        Some(self.waiting.by_claim())
    }

    fn overtaking_s_max(&self) -> Option<Seconds> {
        Some(self.overdue_after_s()).filter(|overdue_s| overdue_s.is_finite())
    }
}
