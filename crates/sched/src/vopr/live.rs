//! A cluster that answers like a real one: it carries decisions out late and refuses some, its
//! acknowledgements are lost, late or doubled, others use its GPUs, machines come and go, and the
//! scheduler is killed and started again between any two steps.
//!
//! The world keeps books of its own: which job holds which GPUs. It judges what it is asked to do by
//! these alone, and in the end every job must be over.

mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::seed::stream;
use hither_core::topology::{Machine, Tier};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use super::Case;
use crate::cluster::{MachineId, PlaceId, Placement, Status};
use crate::decide::Scheduler;
use crate::event::{Action, Decision, DecisionId, End, Event, Timer};
use crate::forecast::Forecast;
use crate::job::{Demand, JobId};
use crate::network::Network;
use crate::state::State;

/// Trouble comes until then; afterwards the world is good and all jobs must end.
const TROUBLE_S: Seconds = 10_000.0;
/// No scenario needs as long as this once the trouble is over: jobs may hold out until they are overdue.
const END_S: Seconds = 5e6;
const STEPS_MAX: u32 = 400_000;
/// How often the driver compares the scheduler's decisions in flight with the world.
const RECONCILE_S: Seconds = 300.0;

/// A bug that the scheduler does not have, to show that it would be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// GPUs of a job that is being stopped count as free.
    FreedTooEarly,
    /// A start in flight is forgotten, so that the gang is started again.
    StartedTwice,
    /// A restart loses the timers.
    TimerLost,
}

/// A job as the world sees it.
#[derive(Debug, Clone)]
struct Real {
    /// Among the jobs of the scenario.
    index: usize,
    demand: Demand,
    left_s: Seconds,
    run: Option<RealRun>,
    over: bool,
}

#[derive(Debug, Clone)]
struct RealRun {
    placement: Arc<Placement>,
    since_s: Seconds,
    /// Ends are told apart from those of earlier runs.
    serial: u32,
}

#[derive(Debug, Clone)]
enum Due {
    Submit(usize),
    CarryOut(Decision),
    Tell(Event),
    Timer(Timer, u32),
    End(JobId, u32),
    Machine(Status),
    Foreign,
    Resize,
    Join,
    Cancel,
    TakeAway,
    Reconcile,
}

/// A scenario run as on a live cluster: orders are slow, refused, lost or told twice.
pub struct Live<'a> {
    case: &'a Case,
    bug: Option<Bug>,
    rng: Pcg64Mcg,
    now: Seconds,
    scheduler: Scheduler,
    /// By time and serial number.
    agenda: BTreeMap<(u64, u64), Due>,
    serial: u64,
    jobs: Vec<Real>,
    used: Vec<u32>,
    foreign: Vec<u32>,
    gpus: Vec<u32>,
    /// The most that each ever had.
    gpus_max: Vec<u32>,
    status: Vec<Status>,
    /// What became of a decision; the driver tells it again where the news was lost.
    outcome: BTreeMap<DecisionId, Event>,
    /// Decisions that the driver has in hand.
    in_hand: BTreeSet<DecisionId>,
    timer_version: BTreeMap<Timer, u32>,
    /// Timers that the driver has set.
    armed: BTreeSet<Timer>,
    /// Timers that were set when the scheduler was killed.
    owed: BTreeSet<Timer>,
    /// Machines that have joined, and where.
    joined: Vec<(Machine, PlaceId)>,
    /// Kinds of news that the scheduler was told.
    pub told: BTreeSet<&'static str>,
}

type Verdict = Result<(), String>;

impl<'a> Live<'a> {
    pub fn new(case: &'a Case, bug: Option<Bug>) -> Self {
        let machines = &case.topology.machines;
        let mut live = Self {
            case,
            bug,
            rng: stream(case.options.seed, "vopr live"),
            now: 0.0,
            scheduler: Scheduler::new(fresh(case), (case.policy.build)(&case.settings)),
            agenda: BTreeMap::new(),
            serial: 0,
            jobs: Vec::new(),
            used: vec![0; machines.len()],
            foreign: vec![0; machines.len()],
            gpus: machines.iter().map(|m| m.gpus).collect(),
            gpus_max: machines.iter().map(|m| m.gpus).collect(),
            status: vec![Status::Up; machines.len()],
            outcome: BTreeMap::new(),
            in_hand: BTreeSet::new(),
            timer_version: BTreeMap::new(),
            armed: BTreeSet::new(),
            owed: BTreeSet::new(),
            joined: Vec::new(),
            told: BTreeSet::new(),
        };
        for (index, job) in case.scenario.jobs.iter().enumerate() {
            live.at(job.submit_s, Due::Submit(index));
        }
        let (gone, draining) = (Due::Machine(Status::Gone), Due::Machine(Status::Draining));
        let often = [Due::Cancel, Due::Foreign, Due::Resize, gone].map(|what| (what, 4));
        let rarely = [(draining, 2), (Due::Join, 3), (Due::TakeAway, 3)];
        for (what, times) in often.into_iter().chain(rarely) {
            for _ in 0..live.rng.random_range(0..times) {
                let at_s = live.rng.random_range(0.0..TROUBLE_S);
                live.at(at_s, what.clone());
            }
        }
        // Whatever is left of the trouble goes.
        live.at(TROUBLE_S + 1.0, Due::Foreign);
        live.at(TROUBLE_S + 1.0, Due::Resize);
        live.at(TROUBLE_S + 1.0, Due::Machine(Status::Up));
        live.at(RECONCILE_S, Due::Reconcile);
        live
    }

    /// Runs to the end; when and what went wrong otherwise.
    pub fn run(&mut self) -> Result<(), (Seconds, String)> {
        self.run_to_end().map_err(|what| (self.now, what))
    }

    fn run_to_end(&mut self) -> Verdict {
        for _ in 0..STEPS_MAX {
            let Some(((at, _), what)) = self.agenda.pop_first() else {
                return Err("nothing can happen any more".into());
            };
            self.now = f64::from_bits(at);
            self.happens(what)?;
            if self.in_trouble() && self.rng.random_bool(0.02) {
                self.tell_nonsense()?;
            }
            self.maybe_die()?;
            self.decide()?;
            self.maybe_die()?;
            let all_in = self.jobs.len() == self.case.scenario.jobs.len();
            if all_in && self.jobs.iter().all(|j| j.over) && self.scheduler.state.unfinished == 0 {
                return self.all_is_free();
            }
            if self.now > END_S {
                break;
            }
        }
        let state = &self.scheduler.state;
        let (waiting, unfinished) = (state.waiting, state.unfinished);
        Err(format!("{unfinished} jobs are not over, {waiting} of them wait"))
    }

    fn all_is_free(&self) -> Verdict {
        let state = &self.scheduler.state;
        if !state.in_flight.is_empty() || state.jobs.remembered() > 0 || state.waiting > 0 {
            return Err("all jobs are over, and the scheduler still has some".into());
        }
        for (id, machine) in state.cluster.machines.iter().enumerate() {
            if machine.taken > 0 || !machine.stopping.is_empty() {
                return Err(format!("all jobs are over, and machine {id} is not empty"));
            }
        }
        Ok(())
    }

    fn in_trouble(&self) -> bool {
        self.now < TROUBLE_S
    }

    fn at(&mut self, at_s: Seconds, what: Due) {
        self.serial += 1;
        // Bits of positive floats are in the order of the floats.
        self.agenda.insert((at_s.max(self.now).to_bits(), self.serial), what);
    }

    /// A moment soon, or now.
    fn soon(&mut self) -> Seconds {
        let late = self.in_trouble() && self.rng.random_bool(0.7);
        self.now + if late { self.rng.random_range(0.0..120.0) } else { 0.0 }
    }

    // ---- the scheduler's side ----

    fn observe(&mut self, event: Event) -> Verdict {
        let now = self.clock();
        self.told.insert(kind(&event));
        let told = self.scheduler.observe(now, event.clone());
        told.map_err(|error| format!("true news were refused: {event:?}: {error}"))
    }

    /// What the driver's clock says: now and then it steps back.
    fn clock(&mut self) -> Seconds {
        match self.in_trouble() && self.rng.random_bool(0.05) {
            true => self.now - self.rng.random_range(0.0..1000.0),
            false => self.now,
        }
    }

    /// News that cannot be true must be refused, and change nothing.
    fn tell_nonsense(&mut self) -> Verdict {
        let (job, machine) = (self.jobs.len() as JobId, self.status.len() as MachineId);
        let all = [
            Event::Ended { job, how: End::Failed },
            Event::Progress { job, done: 1.0, rate: 1.0 },
            Event::Timer(Timer::Job(job)),
            Event::Started(DecisionId::MAX),
            Event::Stopped { decision: DecisionId::MAX, kept: Some(f64::NAN) },
            Event::Refused(DecisionId::MAX),
            Event::Foreign { machine, gpus: 1 },
            Event::Machine { machine, status: Status::Gone },
            Event::Resized { machine: 0, gpus: u32::MAX },
            Event::Lost { job },
            Event::Found { job, placement: Arc::new(Placement { slots: vec![], tier: Tier(0) }) },
            Event::Added { machine: nowhere(), around: 0 },
        ];
        let event = all[self.rng.random_range(0..all.len())].clone();
        let now = self.clock();
        let books = |scheduler: &Scheduler| {
            let state = &scheduler.state;
            (
                state.waiting,
                state.running.len(),
                state.in_flight.clone(),
                state.cluster.free_total(),
            )
        };
        let before = books(&self.scheduler);
        match self.scheduler.observe(now, event.clone()) {
            Err(_) if books(&self.scheduler) == before => Ok(()),
            _ => Err(format!("impossible news were taken for true: {event:?}")),
        }
    }

    fn decide(&mut self) -> Verdict {
        let now = self.clock();
        for decision in self.scheduler.decide(now) {
            match decision.action {
                Action::Start { .. } | Action::Stop { .. } => self.take_in_hand(decision),
                Action::SetTimer { timer, at_s } => {
                    let version = self.timer_version.entry(timer).or_default();
                    *version += 1;
                    let version = *version;
                    self.armed.insert(timer);
                    self.at(at_s, Due::Timer(timer, version));
                }
                Action::Decline { .. } | Action::Failed { .. } | Action::Tuned { .. } => {}
            }
        }
        self.play_bug();
        let lives = |timer: &Timer| match timer {
            Timer::Job(id) => self.scheduler.state.jobs.get(*id).is_some(),
            Timer::Round => true,
        };
        let owed = std::mem::take(&mut self.owed);
        match owed.difference(&self.armed).find(|timer| lives(timer)) {
            Some(timer) => Err(format!("the restart lost {timer:?}")),
            None => Ok(()),
        }
    }

    fn take_in_hand(&mut self, decision: Decision) {
        self.in_hand.insert(decision.id);
        let at_s = self.soon();
        self.at(at_s, Due::CarryOut(decision));
    }

    /// Kills the scheduler and its driver, now and then, and starts them again.
    fn maybe_die(&mut self) -> Verdict {
        if !(self.in_trouble() && self.rng.random_bool(0.02)) {
            return Ok(());
        }
        // The driver's timers and intentions die with it; the world's own doings go on.
        self.agenda.retain(|_, what| !matches!(what, Due::Timer(..) | Due::CarryOut(_)));
        self.in_hand.clear();
        // Its memory is lost too, now and then. Then its timers are no longer owed to anybody.
        if self.rng.random_bool(0.1) {
            self.armed.clear();
            self.owed.clear();
            self.start_anew()?;
            return self.reconcile();
        }
        let saved = serde_json::to_string(&self.scheduler.save()).map_err(|e| e.to_string())?;
        let snapshot = serde_json::from_str(&saved).map_err(|e| e.to_string())?;
        let policy = (self.case.policy.build)(&self.case.settings);
        let restored = Scheduler::restore(fresh(self.case), policy, snapshot);
        self.scheduler = restored.map_err(|e| e.to_string())?;
        self.owed.append(&mut self.armed);
        if self.bug == Some(Bug::TimerLost) {
            self.scheduler.state.timers.clear();
            self.scheduler.forget_what_was_said();
        }
        self.reconcile()
    }

    /// Does what is decided and not in hand, and tells again what has become of the rest.
    fn reconcile(&mut self) -> Verdict {
        for decision in self.scheduler.state.decisions_in_flight() {
            match self.outcome.get(&decision.id) {
                Some(outcome) => self.observe(outcome.clone())?,
                None if self.in_hand.contains(&decision.id) => {}
                None => self.take_in_hand(decision),
            }
        }
        // Ends whose news was lost, and jobs that were taken away unseen.
        for id in 0..self.jobs.len() {
            let job = id as JobId;
            if self.jobs[id].over {
                self.observe(Event::Ended { job, how: End::Finished })?;
            } else if self.jobs[id].run.is_none() && self.scheduler.state.running.contains(&job) {
                self.observe(Event::Lost { job })?;
            }
        }
        Ok(())
    }

    /// The scheduler is started without what it knew: its driver tells it all that can be seen.
    fn start_anew(&mut self) -> Verdict {
        let policy = (self.case.policy.build)(&self.case.settings);
        self.scheduler = Scheduler::new(fresh(self.case), policy);
        // Answers to decisions that nobody remembers mean nothing.
        let is_answer = |what: &Due| {
            let Due::Tell(event) = what else { return false };
            matches!(event, Event::Started(_) | Event::Stopped { .. } | Event::Refused(_))
        };
        self.agenda.retain(|_, what| !is_answer(what));
        self.outcome.clear();
        for (machine, around) in self.joined.clone() {
            self.observe(Event::Added { machine, around })?;
        }
        let jobs = self.jobs.iter().map(|job| self.case.scenario.jobs[job.index].clone());
        let jobs = jobs.collect();
        self.observe(Event::Submitted(jobs))?;
        for at in 0..self.gpus.len() {
            let machine = at as MachineId;
            self.observe(Event::Resized { machine, gpus: self.gpus[at] })?;
            self.observe(Event::Foreign { machine, gpus: self.foreign[at] })?;
            self.observe(Event::Machine { machine, status: self.status[at] })?;
        }
        for id in 0..self.jobs.len() {
            if let Some(run) = &self.jobs[id].run {
                let placement = run.placement.clone();
                self.observe(Event::Found { job: id as JobId, placement })?;
            }
        }
        Ok(())
    }

    fn play_bug(&mut self) {
        let in_flight = self.scheduler.state.decisions_in_flight();
        for decision in in_flight {
            match (self.bug, &decision.action) {
                (Some(Bug::FreedTooEarly), Action::Stop { job, .. }) => {
                    self.scheduler.state.stopped(*job, None);
                }
                (Some(Bug::StartedTwice), Action::Start { job, .. })
                    if decision.after.is_empty() && self.rng.random_bool(0.05) =>
                {
                    self.scheduler.withdraw(*job);
                }
                _ => {}
            }
        }
    }
}

/// The kinds of news, for a test that all are told.
pub const KINDS: &[&str] = &[
    "submitted",
    "timer",
    "started",
    "stopped",
    "stopped, kept",
    "refused",
    "found",
    "lost",
    "finished",
    "failed",
    "cancelled",
    "progress",
    "foreign",
    "up",
    "draining",
    "gone",
    "resized",
    "added",
];

fn kind(event: &Event) -> &'static str {
    match event {
        Event::Submitted(_) => "submitted",
        Event::Timer(_) => "timer",
        Event::Started(_) => "started",
        Event::Stopped { kept: None, .. } => "stopped",
        Event::Stopped { kept: Some(_), .. } => "stopped, kept",
        Event::Refused(_) => "refused",
        Event::Found { .. } => "found",
        Event::Lost { .. } => "lost",
        Event::Ended { how: End::Finished, .. } => "finished",
        Event::Ended { how: End::Failed, .. } => "failed",
        Event::Ended { how: End::Cancelled, .. } => "cancelled",
        Event::Progress { .. } => "progress",
        Event::Foreign { .. } => "foreign",
        Event::Machine { status: Status::Up, .. } => "up",
        Event::Machine { status: Status::Draining, .. } => "draining",
        Event::Machine { status: Status::Gone, .. } => "gone",
        Event::Resized { .. } => "resized",
        Event::Added { .. } => "added",
    }
}

/// A machine in a place that no cluster has.
fn nowhere() -> Machine {
    Machine { name: "nowhere".into(), parent: u32::MAX, gpus: 1, gpu_type: "a".into() }
}

fn fresh(case: &Case) -> State {
    let network = Network::new(&case.topology, case.options.congestion);
    let mut state = State::new(&case.topology, network, case.options.checkpoints);
    // Jobs run for other times than they were said to.
    state.forecast = Forecast::default();
    state
}
