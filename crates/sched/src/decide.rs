//! The one entry to the scheduler, for the simulator and for a real cluster alike.
//!
//! [`Scheduler::observe`] takes news and brings the books up to date; [`Scheduler::decide`] passes over the line
//! of waiting jobs and asks the policy. A driver reports all that it has learned, then asks once.

use std::sync::Arc;

use hither_core::Seconds;
use hither_core::topology::Topology;
use serde::{Deserialize, Serialize};

use crate::cluster::{MachineId, Placement, Status};
use crate::event::{Action, Decision, DecisionId, End, Event, Timer, Why};
use crate::job::{Job, JobId};
use crate::network::Network;
use crate::pass::pass;
use crate::policy::Policy;
use crate::state::{Phase, State, Turn};

/// A policy and the books that it decides by.
pub struct Scheduler {
    pub state: State,
    policy: Box<dyn Policy>,
    /// What the policy said while it was told news.
    said: Vec<Decision>,
}

/// News that cannot be true. The books are as they were before.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("the time is {0}; expected a finite number of seconds")]
    NoTime(Seconds),
    #[error("no job has the id {0}; submit it first")]
    UnknownJob(JobId),
    #[error("job {0} does not wait; settle its decisions first")]
    NotWaiting(JobId),
    #[error("job {0} is said to run on another number of GPUs than it wants")]
    NotAGang(JobId),
    #[error("no decision has the id {0}")]
    UnknownDecision(DecisionId),
    #[error("no machine has the id {0}; add it first")]
    UnknownMachine(MachineId),
    #[error("decision {decision} is not a {expected}")]
    WrongAnswer { decision: DecisionId, expected: &'static str },
    #[error("decision {decision} was carried out before {before}, which it waits for")]
    TooEarly { decision: DecisionId, before: DecisionId },
    #[error("job {name} cannot be right: {what}")]
    Flawed { name: String, what: &'static str },
    #[error("machine {machine} is said to have {gpus} GPUs; expected at most {GPUS_MAX}")]
    TooManyGpus { machine: String, gpus: u32 },
    #[error("job {name} wants {gpus} GPUs, which no part of the cluster could ever hold")]
    NeverFits { name: String, gpus: u32 },
    #[error(
        "job {job} reports {done} iterations at {rate} per second; expected finite numbers of at least 0"
    )]
    NoProgress { job: JobId, done: f64, rate: f64 },
}

/// GPUs of one machine; more are a mistake, and their sums could overflow.
const GPUS_MAX: u32 = 1 << 16;

/// All that a scheduler knows, for a file. The policy's options and the network are not part of it:
/// they come from the configuration.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Snapshot {
    state: State,
    policy: serde_json::Value,
}

/// A snapshot that does not go with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("the snapshot is of a cluster of {found} machines, the configuration of {expected}")]
    OtherCluster { found: usize, expected: usize },
    #[error("the policy cannot read what it had learned: {0}")]
    OtherPolicy(#[from] serde_json::Error),
}

impl Scheduler {
    /// What a scheduler that is started again needs to go on.
    pub fn save(&self) -> Snapshot {
        Snapshot { state: self.state.clone(), policy: self.policy.learned() }
    }

    /// Goes on where the snapshot was made. `fresh` is the cluster as configured, and `policy` one
    /// of the same name as the saved one. The next `decide` arms all timers anew; the driver settles
    /// what [`State::decisions_in_flight`] lists.
    pub fn restore(
        fresh: State,
        mut policy: Box<dyn Policy>,
        snapshot: Snapshot,
    ) -> Result<Self, RestoreError> {
        policy.learn(snapshot.policy)?;
        let mut scheduler = Self::new(restored(fresh, snapshot.state)?, policy);
        let mut turn = Turn::new(&mut scheduler.state, &mut scheduler.said);
        for (timer, at_s) in turn.state.timers.clone() {
            turn.set_timer(timer, at_s);
        }
        Ok(scheduler)
    }

    /// The same with another policy, which has not learned anything yet: whoever runs goes on, and whoever waits
    /// gets a new claim.
    pub fn restore_books(
        fresh: State,
        policy: Box<dyn Policy>,
        snapshot: Snapshot,
    ) -> Result<Self, RestoreError> {
        let mut scheduler = Self::new(restored(fresh, snapshot.state)?, policy);
        scheduler.state.timers.clear();
        scheduler.state.line.rejoin_all();
        Ok(scheduler)
    }

    /// The cluster's network is another. Machines keep their numbers; new ones come after them.
    pub fn rearrange(&mut self, topology: &Topology, network: Network) {
        self.state.rearrange(topology, network);
        self.estimate_anew();
    }

    /// Takes over decisions that were made before, by this program or an earlier version of it, in place of
    /// deciding. What is wrong with one that the books do not allow.
    pub fn apply(&mut self, now: Seconds, decisions: &[Decision]) -> Result<(), String> {
        self.state.tick(now);
        for decision in decisions {
            self.check_applies(decision)?;
            self.state.apply(decision);
        }
        self.state.forget_due();
        // The next decision gets the next number, whatever the policy has said meanwhile.
        if let Some(last) = decisions.last() {
            self.state.number_from(last.id + 1);
        }
        self.said.clear();
        Ok(())
    }

    fn check_applies(&self, decision: &Decision) -> Result<(), String> {
        let Decision { id, action, .. } = decision;
        let is_known = |job: JobId| self.state.jobs.get(job).is_some();
        let fits = match action {
            Action::Start { job, placement } => {
                let machines = self.state.cluster.machines.len();
                is_known(*job)
                    && self.state.job(*job).is_waiting()
                    && placement.slots.iter().all(|slot| (slot.machine as usize) < machines)
            }
            Action::Stop { job, .. } => {
                is_known(*job) && matches!(self.state.job(*job).phase, Phase::Running(_))
            }
            _ => true,
        };
        fits.then_some(()).ok_or_else(|| format!("decision {id} does not go with the books"))
    }

    pub fn new(state: State, policy: Box<dyn Policy>) -> Self {
        Self { state, policy, said: Vec::new() }
    }

    /// How long a job may wait until no younger one overtakes it; `None`: the policy has no bound.
    pub fn overtaking_s_max(&self) -> Option<Seconds> {
        self.policy.overtaking_s_max(&self.state)
    }

    /// What to do now. Starts and stops stay in flight until an event settles them; the policy
    /// leaves the jobs and GPUs concerned alone until then.
    pub fn decide(&mut self, now: Seconds) -> Vec<Decision> {
        self.state.tick(now);
        self.state.waits.begin_turn();
        let mut decisions = std::mem::take(&mut self.said);
        let mut turn = Turn::new(&mut self.state, &mut decisions);
        loop {
            pass(&mut *self.policy, &mut turn);
            if !self.policy.round(&mut turn) {
                break;
            }
        }
        self.state.forget_due();
        decisions
    }

    /// Takes news. Late and doubled news change nothing; impossible news are an error and change
    /// nothing either. A clock that steps back stands still until it has caught up.
    pub fn observe(&mut self, now: Seconds, event: Event) -> Result<(), Error> {
        if !now.is_finite() {
            return Err(Error::NoTime(now));
        }
        self.state.tick(now);
        match event {
            Event::Submitted(jobs) => self.submitted(&jobs),
            Event::Timer(timer) => self.timer(timer),
            Event::Started(decision) => self.started(decision),
            Event::Stopped { decision, kept } => self.stopped(decision, kept),
            Event::Refused(decision) => self.refused(decision),
            Event::Found { job, placement } => self.found(job, placement),
            Event::Lost { job } => {
                if matches!(self.job(job)?, Phase::Running(_)) {
                    self.failed(job, Why::TakenAway);
                }
                Ok(())
            }
            Event::Ended { job, how } => self.ended(job, how),
            Event::Progress { job, done, rate } => self.progress(job, done, rate),
            Event::Foreign { machine, gpus } => {
                self.known(machine)?;
                self.state.cluster.set_foreign(machine, gpus);
                Ok(())
            }
            Event::Machine { machine, status } => self.machine(machine, status),
            Event::Resized { machine, gpus } => {
                self.known(machine)?;
                check_gpus(&machine.to_string(), gpus)?;
                self.state.cluster.resize(machine, gpus);
                self.estimate_anew();
                Ok(())
            }
            Event::Host { machine, host, foreign } => {
                self.known(machine)?;
                let is_other = self.state.cluster.machines[machine as usize].host != host;
                self.state.cluster.set_host(machine, host, foreign);
                if is_other {
                    self.estimate_anew();
                }
                Ok(())
            }
            Event::Closed { machine, split, is_closed } => {
                self.known(machine)?;
                self.state.cluster.set_closed(machine, split, is_closed);
                Ok(())
            }
            Event::Parked { job } => self.parked(job),
            Event::Unparked { job } => {
                if matches!(self.job(job)?, Phase::Parked) {
                    self.state.park(job, false);
                }
                Ok(())
            }
            Event::Pinned { job } => {
                if !matches!(self.job(job)?, Phase::Over) {
                    self.state.pin(job);
                }
                Ok(())
            }
        }
    }

    /// The cluster is another: so may be the best tier of a job, and what the others would cost it.
    fn estimate_anew(&mut self) {
        for id in self.state.jobs.ids().collect::<Vec<JobId>>() {
            self.state.estimate_anew(id);
        }
        self.state.line.ask_again();
    }

    fn submitted(&mut self, jobs: &[Arc<Job>]) -> Result<(), Error> {
        for job in jobs {
            if let Some(what) = job.flaw() {
                return Err(Error::Flawed { name: job.name.clone(), what });
            }
        }
        if let Some(job) = jobs.iter().find(|job| !self.state.admits(job)) {
            return Err(Error::NeverFits { name: job.name.clone(), gpus: job.gpus });
        }
        for job in jobs {
            self.state.admit(job.clone());
        }
        Ok(())
    }

    fn parked(&mut self, id: JobId) -> Result<(), Error> {
        match self.job(id)? {
            Phase::Waiting => {
                self.state.timers.remove(&Timer::Job(id));
                self.state.park(id, true);
                Ok(())
            }
            Phase::Parked | Phase::Over => Ok(()),
            _ => Err(Error::NotWaiting(id)),
        }
    }

    fn timer(&mut self, timer: Timer) -> Result<(), Error> {
        if let Timer::Job(id) = timer {
            self.job(id)?;
        }
        self.state.goes_off(timer);
        Ok(())
    }

    fn started(&mut self, decision: DecisionId) -> Result<(), Error> {
        let Some(id) = self.in_flight(decision)? else { return Ok(()) };
        let expected = "start that is in flight";
        match &self.state.job(id).phase {
            Phase::Starting(start) => {
                let open = |stop: &&DecisionId| self.state.in_flight.contains_key(stop);
                if let Some(&before) = start.after.iter().find(open) {
                    return Err(Error::TooEarly { decision, before });
                }
            }
            Phase::Stopping(stop) if stop.decision != decision => {
                return Err(Error::TooEarly { decision, before: stop.decision });
            }
            _ => return Err(Error::WrongAnswer { decision, expected }),
        }
        self.state.started(id);
        // A machine that went while the start was in flight takes the job along.
        let run = self.state.job(id).run().expect("it has just started");
        let machines = &self.state.cluster.machines;
        let is_gone = |machine: u32| machines[machine as usize].status == Status::Gone;
        if run.placement.slots.iter().any(|slot| is_gone(slot.machine)) {
            self.failed(id, Why::MachineGone);
        }
        Ok(())
    }

    fn stopped(&mut self, decision: DecisionId, kept: Option<f64>) -> Result<(), Error> {
        let Some(id) = self.in_flight(decision)? else { return Ok(()) };
        match &self.state.job(id).phase {
            Phase::Stopping(stop) if stop.decision == decision => {
                self.state.stopped(id, kept.filter(|kept| kept.is_finite()));
                Ok(())
            }
            _ => Err(Error::WrongAnswer { decision, expected: "stop" }),
        }
    }

    fn refused(&mut self, decision: DecisionId) -> Result<(), Error> {
        let Some(id) = self.in_flight(decision)? else { return Ok(()) };
        match &self.state.job(id).phase {
            Phase::Stopping(stop) if stop.decision == decision => {
                for waiting in self.state.starts_after(decision) {
                    self.state.unstart(waiting);
                }
                self.state.unstop(id);
            }
            _ => self.state.unstart(id),
        }
        Ok(())
    }

    fn found(&mut self, id: JobId, placement: Arc<Placement>) -> Result<(), Error> {
        if !matches!(self.job(id)?, Phase::Waiting | Phase::Parked) {
            return Err(Error::NotWaiting(id));
        }
        for slot in &placement.slots {
            self.known(slot.machine)?;
        }
        if placement.slots.iter().map(|s| s.gpus).sum::<u32>() != self.state.job(id).gpus() {
            return Err(Error::NotAGang(id));
        }
        self.state.found(id, placement);
        Ok(())
    }

    fn ended(&mut self, id: JobId, how: End) -> Result<(), Error> {
        if matches!(self.job(id)?, Phase::Over) {
            return Ok(());
        }
        if self.state.end(id, how == End::Finished) {
            let job = self.state.job(id);
            let service = f64::from(job.gpus()) * job.held_s;
            self.state.services.add(service);
            let job = self.state.job(id);
            // A job whose start was never told says nothing of how long jobs take.
            if how == End::Finished && job.held_s > 0.0 {
                self.state.forecast.learn(job.gpus(), job.held_s);
            }
            self.state.timers.remove(&Timer::Job(id));
            self.state.jobs.forget(id);
        }
        Ok(())
    }

    fn progress(&mut self, job: JobId, done: f64, rate: f64) -> Result<(), Error> {
        if matches!(self.job(job)?, Phase::Over) {
            return Ok(());
        }
        if !(done.is_finite() && rate.is_finite() && done >= 0.0 && rate >= 0.0) {
            return Err(Error::NoProgress { job, done, rate });
        }
        self.state.progress(job, done, rate);
        Ok(())
    }

    fn machine(&mut self, machine: MachineId, status: Status) -> Result<(), Error> {
        if self.known(machine)? == status {
            return Ok(());
        }
        if status == Status::Gone {
            for id in self.state.jobs_on(machine) {
                self.failed(id, Why::MachineGone);
            }
            // Who was being stopped there has stopped; starts in flight are for the world to refuse.
            for id in self.state.stopping_on(machine) {
                self.state.stopped(id, None);
            }
        }
        self.state.cluster.set_status(machine, status);
        Ok(())
    }

    /// A running job lost its GPUs.
    fn failed(&mut self, id: JobId, why: Why) {
        self.state.fail(id, why);
        Turn::new(&mut self.state, &mut self.said).say(Action::Failed { job: id }, why);
    }

    // ---- is it known? ----

    fn job(&self, id: JobId) -> Result<&Phase, Error> {
        if id >= self.state.jobs.next_id() {
            return Err(Error::UnknownJob(id));
        }
        Ok(self.state.jobs.get(id).map_or(&Phase::Over, |job| &job.phase))
    }

    fn known(&self, machine: MachineId) -> Result<Status, Error> {
        let known = self.state.cluster.machines.get(machine as usize);
        known.map(|m| m.status).ok_or(Error::UnknownMachine(machine))
    }

    /// The job that the decision is about; `None` if the decision is settled.
    fn in_flight(&self, decision: DecisionId) -> Result<Option<JobId>, Error> {
        match self.state.in_flight.get(&decision) {
            Some(&id) => Ok(Some(id)),
            None if self.state.was_made(decision) => Ok(None),
            None => Err(Error::UnknownDecision(decision)),
        }
    }
}

/// The books of a snapshot on the cluster as configured.
fn restored(fresh: State, mut state: State) -> Result<State, RestoreError> {
    let [found, expected] = [&state, &fresh].map(|s| s.cluster.machines.len());
    if found != expected {
        return Err(RestoreError::OtherCluster { found, expected });
    }
    state.network = fresh.network;
    state.find_traffic();
    state.find_line();
    state.checkpoints = fresh.checkpoints;
    Ok(state)
}

fn check_gpus(machine: &str, gpus: u32) -> Result<(), Error> {
    match gpus <= GPUS_MAX {
        true => Ok(()),
        false => Err(Error::TooManyGpus { machine: machine.into(), gpus }),
    }
}
