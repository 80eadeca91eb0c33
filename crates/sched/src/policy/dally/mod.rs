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
use serde::Deserialize;

use crate::cluster::PoolId;
use crate::event::{Action, Timer};
use crate::job::JobId;
use crate::order::Total;
use crate::policy::Policy;
use crate::policy::queue::{Class, class_of};
use crate::state::Turn;

mod score;
mod tuner;
mod victims;

pub use score::Score;
use tuner::{Tuner, Wait};
use victims::Candidates;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    pub timers: Timers,
    /// The timers where `timers` is "fixed".
    pub machine_s: Seconds,
    pub rack_s: Seconds,
    pub clock: Clock,
    /// Let a job wait no longer for a better tier than running on the worse one would cost it.
    pub wait_while_worth: bool,
    pub score: Score,
    pub preempt: bool,
    pub upgrade: bool,
    /// How often preemption and upgrades are considered.
    pub round_s: Seconds,
    /// A running job is safe for so long after its start.
    pub quantum_s: Seconds,
    /// A victim's claim must be worse by this factor: damping against jobs taking turns.
    pub damping: f64,
    /// An upgrade must save this many times what it costs.
    pub upgrade_gain: f64,
    /// A job that has waited so long goes before all younger ones, at any tier.
    pub overdue_s: Seconds,
    pub tuner: tuner::Options,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timers {
    Auto,
    Fixed,
}

/// When a job's delay begins to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// While there is an offer that it declines: time in a queue for any GPUs at all is not
    /// counted.
    WhileDeclining,
    /// From the first offer that it declines on.
    SinceDeclined,
    /// At its arrival or preemption.
    SinceReleased,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timers: Timers::Auto,
            machine_s: 12.0 * 3600.0,
            rack_s: 24.0 * 3600.0,
            clock: Clock::WhileDeclining,
            wait_while_worth: true,
            score: Score::TwoDLas,
            preempt: true,
            upgrade: true,
            round_s: 300.0,
            quantum_s: 600.0,
            damping: 2.0,
            upgrade_gain: 2.0,
            overdue_s: 30.0 * 86_400.0,
            tuner: tuner::Options::default(),
        }
    }
}

pub const ABOUT: &str = "delay scheduling, network-sensitive preemption, upgrades, tuned timers";
pub const ABOUT_NO_WAIT: &str = "dally that takes the best place on offer at once (timers 0)";
pub const ABOUT_CONSOLIDATE: &str = "dally that waits for its best tier for ever (timers ∞)";
pub const ABOUT_MANUAL: &str = "dally with timers fixed at 12 h and 24 h";
pub const ABOUT_NO_PREEMPT: &str = "dally without preemption and upgrades";

pub fn auto(options: &Options) -> Box<dyn Policy> {
    Box::new(Dally::new(options.clone()))
}

fn fixed(options: &Options, machine_s: Seconds, rack_s: Seconds) -> Box<dyn Policy> {
    let timers = Timers::Fixed;
    auto(&Options { timers, machine_s, rack_s, wait_while_worth: false, ..options.clone() })
}

pub fn no_wait(options: &Options) -> Box<dyn Policy> {
    fixed(options, 0.0, 0.0)
}

pub fn consolidate(options: &Options) -> Box<dyn Policy> {
    fixed(options, f64::INFINITY, f64::INFINITY)
}

pub fn manual(options: &Options) -> Box<dyn Policy> {
    fixed(options, options.machine_s, options.rack_s)
}

pub fn no_preempt(options: &Options) -> Box<dyn Policy> {
    auto(&Options { preempt: false, upgrade: false, ..options.clone() })
}

struct Dally {
    options: Options,
    tuner: Tuner,
    lines: BTreeMap<Class, Line>,
    /// By job, while it waits.
    patience: Vec<Option<Patience>>,
    /// (since when, job), of all that wait and are not overdue.
    by_release: BTreeSet<(Total, JobId)>,
    overdue: BTreeSet<JobId>,
    round_set: bool,
    round_due: bool,
    /// Timers last reported for each demand.
    reported: BTreeMap<u32, [Seconds; 2]>,
}

/// Waiting jobs of one demand, by the worst tier that they accept now and then by claim.
#[derive(Debug, Default)]
struct Line {
    by_allowed: [BTreeSet<(Total, JobId)>; 3],
    /// Those whose clock has not started: nothing was offered to them yet.
    unoffered: [BTreeSet<JobId>; 3],
    /// When the others relent, in the time of the level's watch.
    deadlines: [BTreeSet<(Total, JobId)>; 3],
    watches: [Stopwatch; 3],
}

/// Time that passes only while it runs.
#[derive(Debug, Default, Clone, Copy)]
struct Stopwatch {
    total_s: Seconds,
    since_s: Option<Seconds>,
}

impl Stopwatch {
    fn read(&self, now: Seconds) -> Seconds {
        self.total_s + self.since_s.map_or(0.0, |since| now - since)
    }

    fn run(&mut self, now: Seconds, running: bool) {
        self.total_s = self.read(now);
        self.since_s = running.then_some(now);
    }
}

/// How a job waits.
#[derive(Debug, Clone, Copy)]
struct Patience {
    claim: Total,
    allowed: Tier,
    /// Since when it holds out for the tier, and until when, in the time of its level's watch.
    clock: Option<(Seconds, Seconds)>,
}

impl Dally {
    fn new(options: Options) -> Self {
        Self {
            tuner: Tuner::new(&options.tuner),
            options,
            lines: BTreeMap::new(),
            patience: Vec::new(),
            by_release: BTreeSet::new(),
            overdue: BTreeSet::new(),
            round_set: false,
            round_due: false,
            reported: BTreeMap::new(),
        }
    }

    // ---- delay scheduling ----

    /// Offers what is free to the waiting jobs, by claim. Whoever is offered a tier that it does
    /// not accept yet declines, and the next is asked: no head of the line blocks the others.
    fn offer(&mut self, turn: &mut Turn) {
        if !self.serve_overdue(turn) {
            return;
        }
        while let Some((id, tier, pool)) = self.first_acceptor(turn) {
            self.accept(turn, id, tier, pool);
        }
        self.decline(turn);
    }

    /// The job with the best claim that accepts what its demand can be offered.
    fn first_acceptor(&self, turn: &Turn) -> Option<(JobId, Tier, PoolId)> {
        let cluster = &turn.state.cluster;
        let mut first: Option<(Total, JobId, Tier, PoolId)> = None;
        for (&(gpus, wanted), line) in &self.lines {
            let Some((tier, pool)) = cluster.best_pool(gpus, wanted) else {
                continue;
            };
            let heads = line.by_allowed[tier as usize..].iter().filter_map(BTreeSet::first);
            if let Some(&(claim, id)) = heads.min()
                && first.is_none_or(|f| (claim, id) < (f.0, f.1))
            {
                first = Some((claim, id, tier, pool));
            }
        }
        first.map(|(_, id, tier, pool)| (id, tier, pool))
    }

    fn accept(&mut self, turn: &mut Turn, id: JobId, tier: Tier, pool: PoolId) {
        let gpus = turn.state.job(id).gpus();
        let placement = turn.state.cluster.place_at(gpus, pool, tier).expect("it was on offer");
        let patience = self.patience[id as usize].expect("it waits");
        if let Some(waited_s) = self.held_out_s(turn, id, &patience) {
            let got = tier <= patience.allowed;
            self.tuner.observe(gpus, patience.allowed, Wait { waited_s, got });
        }
        self.leave(turn, id);
        turn.start(id, placement);
    }

    /// The clocks of those who were offered a worse tier than they accept start to run.
    fn decline(&mut self, turn: &mut Turn) {
        let now = turn.now();
        let cluster = &turn.state.cluster;
        let mut declined = Vec::new();
        for (&(gpus, wanted), line) in &mut self.lines {
            let offered = cluster.best_pool(gpus, wanted).map_or(0, |(tier, _)| tier as usize);
            for level in 0..2 {
                let declines = level < offered;
                if self.options.clock == Clock::WhileDeclining {
                    line.watches[level].run(now, declines);
                }
                if declines {
                    declined.extend(std::mem::take(&mut line.unoffered[level]));
                }
            }
        }
        for id in declined {
            self.start_clock(turn, id);
        }
        self.set_alarms(turn);
    }

    /// One alarm a level: for the job that relents first, if its clock runs.
    fn set_alarms(&mut self, turn: &mut Turn) {
        let now = turn.now();
        for line in self.lines.values() {
            for (watch, deadlines) in line.watches.iter().zip(&line.deadlines) {
                if let (Some(_), Some(&(until, id))) = (watch.since_s, deadlines.first())
                    && until.0.is_finite()
                {
                    turn.set_timer(Timer::Job(id), now + (until.0 - watch.read(now)));
                }
            }
        }
    }

    fn start_clock(&mut self, turn: &mut Turn, id: JobId) {
        let now = turn.now();
        let class = class_of(turn.state.job(id));
        let level = self.patience[id as usize].as_ref().expect("it waits").allowed;
        let hold_out_s = self.hold_out_s(turn, id, level);
        let line = self.lines.get_mut(&class).expect("it waits in a line");
        let from_s = line.watches[level as usize].read(now);
        let until_s = from_s + hold_out_s;
        line.unoffered[level as usize].remove(&id);
        line.deadlines[level as usize].insert((Total(until_s), id));
        self.patience[id as usize].as_mut().expect("it waits").clock = Some((from_s, until_s));
    }

    /// How long the job should decline anything worse than `tier`.
    fn hold_out_s(&mut self, turn: &mut Turn, id: JobId, tier: Tier) -> Seconds {
        let job = turn.state.job(id);
        let gpus = job.gpus();
        let timers = match self.options.timers {
            Timers::Fixed => [self.options.machine_s, self.options.rack_s],
            Timers::Auto => [Tier::Machine, Tier::Rack].map(|t| self.tuner.timer_s(gpus, t)),
        };
        let learned_s = timers[tier as usize];
        let left = job.iterations - job.done;
        let [here, next] = [tier as usize, tier as usize + 1].map(|t| job.iteration_s[t]);
        if self.options.timers == Timers::Auto && self.reported.get(&gpus) != Some(&timers) {
            self.reported.insert(gpus, timers);
            let [machine_s, rack_s] = timers;
            turn.actions.push(Action::Tuned { gpus, machine_s, rack_s });
        }
        match self.options.wait_while_worth {
            true => learned_s.min(left * (next - here)),
            false => learned_s,
        }
    }

    /// How long the job has held out for its tier.
    fn held_out_s(&self, turn: &Turn, id: JobId, patience: &Patience) -> Option<Seconds> {
        let (from_s, _) = patience.clock?;
        let line = self.lines.get(&class_of(turn.state.job(id)))?;
        Some(line.watches[patience.allowed as usize].read(turn.now()) - from_s)
    }

    /// The job has held out long enough for its tier and accepts the next one.
    fn relent(&mut self, turn: &mut Turn, id: JobId, waited_s: Seconds) {
        let patience = self.leave(turn, id).expect("it waits");
        let gpus = turn.state.job(id).gpus();
        self.tuner.observe(gpus, patience.allowed, Wait { waited_s, got: false });
        let allowed = if patience.allowed == Tier::Machine { Tier::Rack } else { Tier::Network };
        self.join(turn, id, allowed);
        if allowed < Tier::Network {
            self.start_clock(turn, id);
        }
    }

    fn join(&mut self, turn: &mut Turn, id: JobId, allowed: Tier) {
        let job = turn.state.job(id);
        let claim = Total(self.options.score.claim(job, turn.now()));
        let line = self.lines.entry(class_of(job)).or_default();
        if self.options.clock != Clock::WhileDeclining && line.watches[0].since_s.is_none() {
            line.watches = [Stopwatch { total_s: 0.0, since_s: Some(0.0) }; 3];
        }
        line.by_allowed[allowed as usize].insert((claim, id));
        line.unoffered[allowed as usize].insert(id);
        self.by_release.insert((Total(job.since_s), id));
        self.patience.resize(turn.state.jobs.len(), None);
        self.patience[id as usize] = Some(Patience { claim, allowed, clock: None });
    }

    fn leave(&mut self, turn: &Turn, id: JobId) -> Option<Patience> {
        let patience = self.patience.get_mut(id as usize)?.take()?;
        let job = turn.state.job(id);
        let line = self.lines.get_mut(&class_of(job)).expect("it waits in a line");
        let level = patience.allowed as usize;
        line.by_allowed[level].remove(&(patience.claim, id));
        line.unoffered[level].remove(&id);
        if let Some((_, until_s)) = patience.clock {
            line.deadlines[level].remove(&(Total(until_s), id));
        }
        if line.by_allowed.iter().all(BTreeSet::is_empty) {
            self.lines.remove(&class_of(job));
        }
        self.by_release.remove(&(Total(job.since_s), id));
        self.overdue.remove(&id);
        Some(patience)
    }

    // ---- the bound on waiting ----

    /// Starts overdue jobs, oldest first. False if one of them is still left: then GPUs are saved
    /// for it and nobody else starts.
    fn serve_overdue(&mut self, turn: &mut Turn) -> bool {
        while let Some(&(Total(since_s), id)) = self.by_release.first()
            && turn.now() - since_s >= self.options.overdue_s
        {
            self.by_release.pop_first();
            self.overdue.insert(id);
        }
        while let Some(&id) = self.overdue.first() {
            let job = turn.state.job(id);
            let Some((tier, pool)) = turn.state.cluster.best_pool(job.gpus(), job.pool) else {
                return false;
            };
            self.accept(turn, id, tier, pool);
        }
        true
    }

    // ---- network-sensitive preemption ----

    /// Waiting jobs, by claim, look for one domain of the best tier they can have in which free
    /// GPUs and those of jobs with a clearly worse claim suffice.
    fn preempt(&mut self, turn: &mut Turn) {
        let mut candidates = self.candidates(turn);
        let mut hopeless: BTreeSet<Class> = BTreeSet::new();
        if let Some(&id) = self.overdue.first() {
            self.preempt_for(turn, &mut candidates, id, f64::NEG_INFINITY, Tier::Network);
            return;
        }
        while let Some((claim, id)) = self.first_claimant(&hopeless) {
            let allowed = self.patience[id as usize].as_ref().expect("it waits").allowed;
            let above = (claim.0 * self.options.damping).max(f64::MIN_POSITIVE);
            if !self.preempt_for(turn, &mut candidates, id, above, allowed) {
                // Others of this demand have a weaker claim and fare no better.
                hopeless.insert(class_of(turn.state.job(id)));
            }
        }
    }

    fn first_claimant(&self, hopeless: &BTreeSet<Class>) -> Option<(Total, JobId)> {
        let lines = self.lines.iter().filter(|(class, _)| !hopeless.contains(class));
        lines.flat_map(|(_, line)| line.by_allowed.iter().filter_map(|l| l.first())).min().copied()
    }

    fn candidates(&self, turn: &Turn) -> Candidates {
        let now = turn.now();
        Candidates::new(turn.state, |id| {
            let job = turn.state.job(id);
            let ripe = turn.state.worked_s(id).is_some_and(|s| s >= self.options.quantum_s);
            ripe.then(|| self.options.score.claim(job, now))
        })
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
        let (gpus, best, wanted) = (job.gpus(), job.best, job.pool);
        for tier in Tier::ALL.into_iter().filter(|t| (best..=allowed).contains(t)) {
            for pool in turn.state.cluster.pools_for(wanted) {
                let cluster = &turn.state.cluster;
                let Some(victims) = candidates.fewest(cluster, gpus, pool, tier, above) else {
                    continue;
                };
                self.evict(turn, candidates, &victims);
                let tier = turn.state.cluster.offer_tier(gpus, pool).expect("room was made");
                self.accept(turn, id, tier, pool);
                return true;
            }
        }
        false
    }

    fn evict(&mut self, turn: &mut Turn, candidates: &mut Candidates, victims: &[JobId]) {
        for &victim in victims {
            let run = turn.state.job(victim).run().expect("candidates run");
            let machines: Vec<_> = run.placement.slots.iter().map(|s| s.machine).collect();
            candidates.remove(victim, machines.into_iter());
            turn.preempt(victim, Reason::Priority);
            self.enqueue(turn, victim);
        }
    }

    // ---- upgrades ----

    /// Running jobs move to a better place where that saves more than the restart costs.
    fn upgrade(&mut self, turn: &mut Turn) {
        let now = turn.now();
        let spread: Vec<JobId> = turn.state.running.iter().copied().collect();
        for id in spread {
            let job = turn.state.job(id);
            let Some(run) = job.run() else { continue };
            let settled = turn.state.worked_s(id).is_some_and(|s| s >= self.options.quantum_s);
            if run.placement.tier <= job.best || !settled || run.rate <= 0.0 {
                continue;
            }
            let left = job.iterations - job.done_at(now);
            let cost_s = self.options.upgrade_gain * job.job.profile.restart_s;
            let saves_s = |iteration_s: Seconds| left * (1.0 / run.rate - iteration_s);
            if saves_s(job.iteration_s[job.best as usize]) <= cost_s {
                continue;
            }
            // Its own GPUs count as free when we look for a better place.
            let (gpus, pool) = (job.gpus(), turn.state.pool_of_run(id));
            let old = run.placement.clone();
            let profile = job.job.profile.clone();
            let mut cluster_after = std::mem::take(&mut turn.state.cluster);
            cluster_after.release(&old);
            let offer = cluster_after.best_offer(gpus, Some(pool));
            cluster_after.take(&old);
            turn.state.cluster = cluster_after;
            let Some(offer) = offer.filter(|o| o.tier < old.tier) else {
                continue;
            };
            let network = &turn.state.network;
            let there_s =
                network.iteration_s(&profile, &network.shape(&turn.state.cluster, &offer));
            let job = turn.state.job(id);
            let rate = job.run().expect("it runs").rate;
            if left * (1.0 / rate - there_s) > cost_s {
                turn.preempt(id, Reason::Upgrade);
                turn.start(id, offer);
            }
        }
    }
}

impl Policy for Dally {
    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        let best = turn.state.job(id).best;
        self.join(turn, id, best);
        if self.options.clock == Clock::SinceReleased && best < Tier::Network {
            self.start_clock(turn, id);
        }
    }

    fn forget(&mut self, turn: &mut Turn, id: JobId) {
        self.leave(turn, id);
    }

    fn timer(&mut self, turn: &mut Turn, timer: Timer) {
        match timer {
            Timer::Round => {
                self.round_set = false;
                self.round_due = true;
            }
            Timer::Job(id) => {
                let Some(patience) = self.patience.get(id as usize).copied().flatten() else {
                    return;
                };
                if let (Some((from_s, until_s)), Some(held_out_s)) =
                    (patience.clock, self.held_out_s(turn, id, &patience))
                    && held_out_s >= (until_s - from_s) * (1.0 - 1e-9) - 1e-6
                {
                    self.relent(turn, id, held_out_s);
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
        if wanted && !self.round_set && turn.state.waiting + turn.state.running.len() > 0 {
            self.round_set = true;
            turn.set_timer(Timer::Round, turn.now() + self.options.round_s);
        }
    }

    fn overtaking_s_max(&self) -> Option<Seconds> {
        self.options.overdue_s.is_finite().then_some(self.options.overdue_s)
    }
}
