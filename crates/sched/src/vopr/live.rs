//! A cluster that answers like a real one: it carries decisions out late and refuses some, its
//! acknowledgements are lost, late or doubled, others use its GPUs, machines come and go, and the
//! scheduler is killed and started again between any two steps.
//!
//! The world keeps books of its own: which job holds which GPUs. It judges what it is asked to do by
//! these alone, and in the end every job must be over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::seed::stream;
use hither_core::topology::Machine;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use super::Case;
use crate::cluster::{MachineId, Placement, Slot, Status};
use crate::decide::Scheduler;
use crate::event::{Action, Decision, DecisionId, End, Event, Timer};
use crate::forecast::Forecast;
use crate::job::{Demand, JobId};
use crate::network::Network;
use crate::state::State;

/// Trouble comes until then; afterwards the world is good and all jobs must end.
const TROUBLE_S: Seconds = 10_000.0;
/// No scenario needs as long as this once the trouble is over.
const END_S: Seconds = 100.0 * TROUBLE_S;
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
    /// Due became of a decision; the driver tells it again where the news was lost.
    outcome: BTreeMap<DecisionId, Event>,
    /// Decisions that the driver has in hand.
    in_hand: BTreeSet<DecisionId>,
    timer_version: BTreeMap<Timer, u32>,
    /// Timers that the driver has set.
    armed: BTreeSet<Timer>,
    /// Timers that were set when the scheduler was killed.
    owed: BTreeSet<Timer>,
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
        };
        for (index, job) in case.scenario.jobs.iter().enumerate() {
            live.at(job.submit_s, Due::Submit(index));
        }
        let (gone, draining) = (Due::Machine(Status::Gone), Due::Machine(Status::Draining));
        let often = [Due::Cancel, Due::Foreign, Due::Resize, gone].map(|what| (what, 4));
        for (what, times) in often.into_iter().chain([(draining, 2), (Due::Join, 3)]) {
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
    pub fn run(mut self) -> Result<(), (Seconds, String)> {
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
        let told = self.scheduler.observe(now, event.clone());
        told.map_err(|error| format!("true news were refused: {event:?}: {error}"))
    }

    /// Due the driver's clock says: now and then it steps back.
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
        let saved = serde_json::to_string(&self.scheduler.save()).map_err(|e| e.to_string())?;
        let snapshot = serde_json::from_str(&saved).map_err(|e| e.to_string())?;
        let policy = (self.case.policy.build)(&self.case.settings);
        let restored = Scheduler::restore(fresh(self.case), policy, snapshot);
        self.scheduler = restored.map_err(|e| e.to_string())?;
        // The driver's timers and intentions died with it; the world's own doings go on.
        self.agenda.retain(|_, what| !matches!(what, Due::Timer(..) | Due::CarryOut(_)));
        self.in_hand.clear();
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
        // Ends whose news was lost.
        for id in 0..self.jobs.len() {
            if self.jobs[id].over {
                self.observe(Event::Ended { job: id as JobId, how: End::Finished })?;
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

    // ---- the world's side ----

    fn happens(&mut self, what: Due) -> Verdict {
        match what {
            Due::Submit(index) => self.submit(index),
            Due::CarryOut(decision) => self.carry_out(decision),
            Due::Tell(event) => self.observe(event),
            Due::Timer(timer, version) => match self.timer_version.get(&timer) == Some(&version) {
                true => {
                    self.armed.remove(&timer);
                    self.observe(Event::Timer(timer))
                }
                false => Ok(()),
            },
            Due::End(id, serial) => self.end(id, serial),
            Due::Machine(status) => self.machine(status),
            Due::Foreign => self.others(),
            Due::Resize => self.resize(),
            Due::Join => self.join(),
            Due::Cancel => self.cancel(),
            Due::Reconcile => {
                self.at(self.now + RECONCILE_S, Due::Reconcile);
                self.reconcile()
            }
        }
    }

    /// News goes out: at once or late, perhaps twice, perhaps not at all.
    fn tell(&mut self, event: Event) {
        if self.in_trouble() && self.rng.random_bool(0.1) {
            return; // lost
        }
        let times = if self.in_trouble() && self.rng.random_bool(0.1) { 2 } else { 1 };
        for _ in 0..times {
            let at_s = self.soon();
            self.at(at_s, Due::Tell(event.clone()));
        }
    }

    fn submit(&mut self, index: usize) -> Verdict {
        let job = self.case.scenario.jobs[index].clone();
        if !self.scheduler.state.admits(&job) {
            // Machines have shrunk: its user tries again when they are back to their size.
            if !self.in_trouble() {
                return Err(format!("job {index} fits no more"));
            }
            self.at(TROUBLE_S + 2.0, Due::Submit(index));
            return Ok(());
        }
        let left_s = 10f64.powf(self.rng.random_range(0.0..3.3));
        self.jobs.push(Real { demand: job.demand(), left_s, run: None, over: false });
        self.observe(Event::Submitted(vec![job]))
    }

    fn carry_out(&mut self, decision: Decision) -> Verdict {
        let id = decision.id;
        self.in_hand.remove(&id);
        if !self.scheduler.state.in_flight.contains_key(&id) {
            return Ok(()); // its job is over, or what it waited for was refused
        }
        // A driver obeys the order: it looks again when the stops may be done.
        if decision.after.iter().any(|stop| self.scheduler.state.in_flight.contains_key(stop)) {
            self.in_hand.insert(id);
            self.at(self.now + 30.0, Due::CarryOut(decision));
            return Ok(());
        }
        let outcome = match &decision.action {
            Action::Start { job, placement } => self.start(id, *job, placement)?,
            Action::Stop { job, .. } => self.stop(id, *job),
            _ => return Ok(()),
        };
        let Some(outcome) = outcome else { return Ok(()) };
        self.outcome.insert(id, outcome.clone());
        self.tell(outcome);
        Ok(())
    }

    /// Due happens to a start; `None`: its job is over, and that is news enough.
    fn start(
        &mut self,
        decision: DecisionId,
        id: JobId,
        placement: &Arc<Placement>,
    ) -> Result<Option<Event>, String> {
        let job = &self.jobs[id as usize];
        if job.over {
            return Ok(None);
        }
        if job.run.is_some() {
            return Err(format!("job {id} was started twice"));
        }
        let Demand { gpus, split } = job.demand;
        let is_whole = |s: &Slot| split.chunks_in(s.gpus) * split.chunk == s.gpus;
        if !placement.slots.iter().all(is_whole) {
            return Err(format!("job {id} is split otherwise than it may be"));
        }
        if placement.slots.iter().map(|s| s.gpus).sum::<u32>() != gpus {
            return Err(format!("job {id} was started in part"));
        }
        let mut room = true;
        for slot in &placement.slots {
            let at = slot.machine as usize;
            let used = self.used[at] + slot.gpus;
            let is_up = self.status[at] == Status::Up;
            if is_up && used > self.gpus_max[at] {
                return Err(format!("machine {at} is booked twice by job {id}"));
            }
            room &= is_up && used + self.foreign[at] <= self.gpus[at];
        }
        if !room || (self.in_trouble() && self.rng.random_bool(0.1)) {
            return Ok(Some(Event::Refused(decision)));
        }
        for slot in &placement.slots {
            self.used[slot.machine as usize] += slot.gpus;
        }
        self.serial += 1;
        let (serial, since_s) = (self.serial as u32, self.now);
        let job = &mut self.jobs[id as usize];
        job.run = Some(RealRun { placement: placement.clone(), since_s, serial });
        let end_s = self.now + job.left_s;
        self.at(end_s, Due::End(id, serial));
        self.tell(Event::Progress { job: id, done: 0.0, rate: 1.0 });
        Ok(Some(Event::Started(decision)))
    }

    fn stop(&mut self, decision: DecisionId, id: JobId) -> Option<Event> {
        if self.jobs[id as usize].over {
            return None;
        }
        let runs = self.jobs[id as usize].run.is_some();
        if runs && self.in_trouble() && self.rng.random_bool(0.1) {
            return Some(Event::Refused(decision));
        }
        self.halt(id, true);
        Some(Event::Stopped { decision, kept: None })
    }

    /// The job holds no GPUs any more.
    fn halt(&mut self, id: JobId, keeps: bool) {
        let job = &mut self.jobs[id as usize];
        let Some(run) = job.run.take() else { return };
        if keeps {
            job.left_s = (job.left_s - (self.now - run.since_s)).max(1.0);
        }
        for slot in &run.placement.slots {
            self.used[slot.machine as usize] -= slot.gpus;
        }
    }

    fn end(&mut self, id: JobId, serial: u32) -> Verdict {
        if self.jobs[id as usize].run.as_ref().is_none_or(|run| run.serial != serial) {
            return Ok(()); // that run was stopped
        }
        self.halt(id, true);
        self.jobs[id as usize].over = true;
        self.tell(Event::Ended { job: id, how: End::Finished });
        Ok(())
    }

    fn cancel(&mut self) -> Verdict {
        if self.jobs.is_empty() {
            return Ok(());
        }
        let id = self.rng.random_range(0..self.jobs.len()) as JobId;
        self.halt(id, true);
        self.jobs[id as usize].over = true;
        self.tell(Event::Ended { job: id, how: End::Cancelled });
        Ok(())
    }

    fn any_machine(&mut self) -> MachineId {
        self.rng.random_range(0..self.status.len()) as MachineId
    }

    /// A machine goes or drains, and comes back; jobs there die with it.
    fn machine(&mut self, status: Status) -> Verdict {
        if status == Status::Up {
            for machine in 0..self.status.len() {
                self.status[machine] = Status::Up;
                self.observe(Event::Machine { machine: machine as MachineId, status })?;
            }
            return Ok(());
        }
        let machine = self.any_machine();
        self.status[machine as usize] = status;
        if status == Status::Gone {
            for id in 0..self.jobs.len() {
                let on = |run: &RealRun| run.placement.slots.iter().any(|s| s.machine == machine);
                if self.jobs[id].run.as_ref().is_some_and(on) {
                    self.lose(id as JobId)?;
                }
            }
        }
        let back_s = self.now + self.rng.random_range(1.0..10_000.0);
        self.at(back_s, Due::Machine(Status::Up));
        self.observe(Event::Machine { machine, status })
    }

    /// The job dies with its machine. A start whose news is still out is told now: nobody learns of
    /// it otherwise.
    fn lose(&mut self, id: JobId) -> Verdict {
        self.halt(id, false);
        for decision in self.scheduler.state.decisions_in_flight() {
            if let Action::Start { job, .. } = decision.action
                && job == id
                && let Some(outcome) = self.outcome.get(&decision.id)
            {
                self.observe(outcome.clone())?;
            }
        }
        Ok(())
    }

    fn others(&mut self) -> Verdict {
        if !self.in_trouble() {
            for machine in 0..self.foreign.len() {
                self.foreign[machine] = 0;
                self.observe(Event::Foreign { machine: machine as MachineId, gpus: 0 })?;
            }
            return Ok(());
        }
        let machine = self.any_machine();
        let at = machine as usize;
        let room = self.gpus[at].saturating_sub(self.used[at]);
        self.foreign[at] = self.rng.random_range(0..=room);
        self.observe(Event::Foreign { machine, gpus: self.foreign[at] })
    }

    /// A machine grows or shrinks, also below what its jobs hold. In the end all are back to their
    /// largest size: jobs that fit nowhere would wait for ever.
    fn resize(&mut self) -> Verdict {
        if !self.in_trouble() {
            for machine in 0..self.gpus.len() {
                self.gpus[machine] = self.gpus_max[machine];
                let gpus = self.gpus[machine];
                self.observe(Event::Resized { machine: machine as MachineId, gpus })?;
            }
            return Ok(());
        }
        let machine = self.any_machine();
        let at = machine as usize;
        self.gpus[at] = self.rng.random_range(0..=self.gpus_max[at] + 1);
        self.gpus_max[at] = self.gpus_max[at].max(self.gpus[at]);
        self.observe(Event::Resized { machine, gpus: self.gpus[at] })
    }

    /// A machine joins a rack, or a new one in any place around.
    fn join(&mut self) -> Verdict {
        let cluster = &self.scheduler.state.cluster;
        let (places, around) = match cluster.levels.len() {
            2 => (1, 1),
            _ => (cluster.places(1) as u32 + 1, cluster.places(2) as u32),
        };
        let around = self.rng.random_range(0..around);
        let machine = Machine {
            name: format!("m{}", self.gpus.len()),
            parent: self.rng.random_range(0..places),
            gpus: self.rng.random_range(1..=8),
            gpu_type: self.case.topology.machines[0].gpu_type.clone(),
        };
        for counts in [&mut self.gpus, &mut self.gpus_max] {
            counts.push(machine.gpus);
        }
        self.used.push(0);
        self.foreign.push(0);
        self.status.push(Status::Up);
        self.observe(Event::Added { machine, around })
    }
}

fn fresh(case: &Case) -> State {
    let network = Network::new(&case.topology, case.options.congestion);
    let mut state = State::new(&case.topology, network, case.options.checkpoints);
    // Jobs run for other times than they were said to.
    state.forecast = Forecast::default();
    state
}
