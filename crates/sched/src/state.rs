//! What the scheduler knows: the cluster, every job's phase, and how far each has come.
//!
//! The books are kept as if every decision in flight were carried out: GPUs of a job that is being
//! stopped count as free, those of a job that is being started as taken. So a policy plans on one
//! cluster, and [`Turn::start`] works out which stops a start has to wait for.

mod line;
mod phase;
mod storage;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_core::topology::Topology;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, MachineId, Placement, PoolId};
use crate::contention::Contention;
use crate::event::{Action, Decision, DecisionId, Timer, Why};
use crate::forecast::{Estimate, Forecast, Spent};
use crate::history::History;
use crate::job::{Job, JobId};
use crate::jobs::Jobs;
use crate::network::Network;
use crate::order::pairs;
use crate::waits::Waits;

use storage::Storage;

pub use line::{Ask, Claim, Line, Spot};
pub(crate) use line::{Declined, await_giving_in};
pub use phase::{Checkpoints, JobState, Pace, Phase, Run, Start, Stop};
pub use turn::{Books, Turn};

/// Resuming after a time slice: the job's state never left its machines' memory (Gandiva reports
/// switches of up to a second).
pub const SLICE_RESUME_S: Seconds = 1.0;

/// All that the scheduler knows: policies read it, events change it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    pub now: Seconds,
    pub cluster: Cluster,
    /// Closed forms of what a placement costs on an otherwise idle network.
    #[serde(skip)]
    pub network: Network,
    /// The jobs that hold GPUs or are promised some, and how they slow each other, as believed. It follows
    /// from their placements.
    #[serde(skip)]
    traffic: Contention,
    pub forecast: Forecast,
    /// Every job that is not over.
    pub jobs: Jobs,
    /// Jobs that hold their GPUs and may be stopped.
    pub running: BTreeSet<JobId>,
    /// Jobs that may start, even if the last of them is still being stopped.
    #[serde(default)]
    pub line: Line,
    /// What waiting has brought.
    #[serde(default)]
    pub waits: Waits,
    /// Jobs that are not over.
    pub unfinished: usize,
    /// Starts and stops that the world has not settled yet, and whose they are.
    pub in_flight: BTreeMap<DecisionId, JobId>,
    next_decision: DecisionId,
    /// The policy's alarms that have not gone off.
    #[serde(with = "pairs")]
    pub timers: BTreeMap<Timer, Seconds>,
    /// Those that went off since the policy was last asked.
    #[serde(skip)]
    due: BTreeSet<Timer>,
    #[serde(skip)]
    passes: u64,
    /// Counts what happened to jobs without a decision: ends, failures, refusals, jobs that were found to run.
    #[serde(skip)]
    pub surprises: u64,
    /// GPU time of the jobs that have ended.
    #[serde(default)]
    pub services: History,
    pub checkpoints: Checkpoints,
    #[serde(default)]
    storage: Storage,
}

impl State {
    pub fn new(topology: &Topology, network: Network, checkpoints: Checkpoints) -> Self {
        Self {
            now: 0.0,
            cluster: Cluster::new(topology),
            traffic: Contention::new(&network),
            network,
            forecast: Forecast::exact(),
            jobs: Jobs::default(),
            running: BTreeSet::new(),
            line: Line::default(),
            waits: Waits::default(),
            unfinished: 0,
            in_flight: BTreeMap::new(),
            next_decision: 0,
            timers: BTreeMap::new(),
            due: BTreeSet::new(),
            passes: 0,
            surprises: 0,
            services: History::default(),
            checkpoints,
            storage: Storage::default(),
        }
    }

    /// Whether the cluster could ever hold the job.
    pub fn admits(&self, job: &Job) -> bool {
        let pool = match &job.gpu_type {
            None => None,
            Some(name) => match self.cluster.pool_named(name) {
                Some(pool) => Some(pool),
                None => return false,
            },
        };
        self.cluster.best_tier(job.demand(), pool).is_some()
    }

    /// The caller has made sure that the cluster can hold the job.
    pub(crate) fn admit(&mut self, job: Arc<Job>) -> JobId {
        let Estimate { pool, best, iteration_s, iterations } =
            Estimate::new(&job, &self.cluster, &self.network).expect("drivers ask `admits` first");
        if self.cluster.has_many_splits() {
            let used = self.jobs.ids().map(|id| self.job(id).job.terms.split).collect();
            self.cluster.keep_splits(&used);
        }
        self.cluster.prepare(job.terms.split);
        let id = self.jobs.push(JobState {
            pool,
            best,
            iteration_s,
            iterations,
            phase: Phase::Waiting,
            done: 0.0,
            held_s: 0.0,
            since_s: self.now,
            starts: 0,
            paced: Spent::default(),
            heard: Spent::default(),
            restart_s: 0.0,
            reads: None,
            why: Why::Submitted,
            job,
        });
        self.join_line(id);
        self.unfinished += 1;
        id
    }

    /// A waiting job may not start for now, or may again.
    pub(crate) fn park(&mut self, id: JobId, is_parked: bool) {
        self.surprises += 1;
        let job = &mut self.jobs[id];
        (job.phase, job.why) = match is_parked {
            true => (Phase::Parked, Why::Barred),
            false => (Phase::Waiting, Why::Submitted),
        };
        match is_parked {
            true => self.leave_line(id),
            false => self.join_line(id),
        }
    }

    fn join_line(&mut self, id: JobId) {
        self.line.join(id, self.jobs[id].since_s);
    }

    /// An ask of which nobody waits does not hold out.
    fn leave_line(&mut self, id: JobId) {
        if let Some(ask) = self.line.leave(id) {
            self.waits.hold_out(ask, self.now, false);
        }
    }

    /// Books of an earlier version may have no line.
    pub(crate) fn find_line(&mut self) {
        for id in self.jobs.ids().collect::<Vec<JobId>>() {
            if self.job(id).is_waiting() && !self.line.contains(id) {
                self.join_line(id);
            }
        }
    }

    /// The policy hears of the timer when it is asked next. One that has gone off before, or whose job is over, is
    /// not set any more.
    pub(crate) fn goes_off(&mut self, timer: Timer) {
        if self.timers.remove(&timer).is_some() {
            self.due.insert(timer);
        }
    }

    pub(crate) fn forget_due(&mut self) {
        self.due.clear();
    }

    /// Nobody may stop the job.
    pub(crate) fn pin(&mut self, id: JobId) {
        Arc::make_mut(&mut self.jobs[id].job).terms.preemptible = false;
    }

    /// Machines joined or changed their size. A job that fits nowhere any more keeps the estimate that it had.
    pub(crate) fn estimate_anew(&mut self, id: JobId) {
        let estimate = Estimate::new(&self.job(id).job, &self.cluster, &self.network);
        let Some(Estimate { best, iteration_s, .. }) = estimate else { return };
        let job = &mut self.jobs[id];
        (job.best, job.iteration_s) = (best, iteration_s);
    }

    pub fn job(&self, id: JobId) -> &JobState {
        &self.jobs[id]
    }

    /// The GPU type that a running job uses.
    pub fn pool_of_run(&self, id: JobId) -> PoolId {
        let run = self.job(id).run().expect("asked of running jobs only");
        self.cluster.machines[run.placement.slots[0].machine as usize].pool
    }

    /// GPUs that others could have if a running job stopped: not those of draining machines.
    pub fn would_free(&self, id: JobId) -> u32 {
        let slots = self.job(id).run().map_or(&[][..], |run| &run.placement.slots);
        let is_up = |machine: MachineId| self.cluster.machines[machine as usize].is_up();
        slots.iter().filter(|s| is_up(s.machine)).map(|s| s.gpus).sum()
    }

    /// Running jobs that hold GPUs of the machine, in order of id.
    pub fn jobs_on(&self, machine: MachineId) -> Vec<JobId> {
        let holds = |id: &JobId| {
            let run = self.job(*id).run();
            run.is_some_and(|run| run.placement.slots.iter().any(|s| s.machine == machine))
        };
        self.running.iter().copied().filter(holds).collect()
    }

    /// How long the job has been at work since its last start, if it may be stopped now and would
    /// keep some of that work. A policy that preempts jobs before can keep all of them from getting on.
    pub fn worked_s(&self, id: JobId) -> Option<Seconds> {
        let job = self.job(id);
        let Phase::Running(run) = &job.phase else { return None };
        let keeps = self.checkpoints.on_preempt
            || job.checkpointed_at(self.now, self.checkpoints.interval_s) > job.done;
        (job.job.terms.preemptible && keeps).then_some(self.now - run.pace.begin_s)
    }

    /// GPU seconds that stopping a running job now would waste: its restart, and the work that it
    /// would have to do again.
    pub fn stop_cost(&self, id: JobId) -> f64 {
        let job = self.job(id);
        let (kept, restart_s) = self.kept(id, Reason::Priority);
        let rate = job.run().map_or(0.0, |run| run.pace.rate);
        let lost_s = if rate > 0.0 { (job.done_at(self.now) - kept) / rate } else { 0.0 };
        f64::from(job.gpus()) * (self.checkpoints.write_s(&job.job) + restart_s + lost_s)
    }

    /// Time that moving a running job costs: it writes its checkpoint and starts again.
    pub fn move_s(&self, id: JobId) -> Seconds {
        let job = &self.job(id).job;
        self.checkpoints.write_s(job) + self.checkpoints.restart_s(job)
    }

    /// Moves the clock. One that steps back stands still.
    pub(crate) fn tick(&mut self, now: Seconds) {
        if now > self.now && now.is_finite() {
            self.now = now;
        }
    }

    /// Whether a decision of this id was ever made.
    pub(crate) fn was_made(&self, decision: DecisionId) -> bool {
        decision < self.next_decision
    }

    /// Jobs that are being stopped on the machine.
    pub(crate) fn stopping_on(&self, machine: MachineId) -> Vec<JobId> {
        let stops = &self.cluster.machines[machine as usize].stopping;
        stops.iter().map(|(stop, _)| self.in_flight[stop]).collect()
    }

    /// Jobs whose start waits for this stop.
    pub(crate) fn starts_after(&self, stop: DecisionId) -> Vec<JobId> {
        let waits = |&(&decision, &id): &(&DecisionId, &JobId)| {
            let start = match &self.job(id).phase {
                Phase::Starting(start) => Some(start),
                Phase::Stopping(stop) => stop.next.as_ref(),
                _ => None,
            };
            start.is_some_and(|s| s.decision == decision && s.after.contains(&stop))
        };
        self.in_flight.iter().filter(waits).map(|(_, &id)| id).collect()
    }

    /// The same books on a cluster whose network is another: machines keep their numbers and what they hold,
    /// new ones come after them, and all may stand in other places. What was learned of places is forgotten.
    pub(crate) fn rearrange(&mut self, topology: &Topology, network: Network) {
        let mut cluster = Cluster::new(topology);
        for id in self.jobs.ids() {
            cluster.prepare(self.job(id).job.terms.split);
        }
        cluster.inherit(&self.cluster);
        for id in self.jobs.ids().collect::<Vec<JobId>>() {
            let tier = |placement: &mut Arc<Placement>| {
                let tier = cluster.tier_of(&placement.slots);
                Arc::make_mut(placement).tier = tier;
            };
            match &mut self.jobs[id].phase {
                Phase::Running(run) | Phase::Starting(Start { run, .. }) => {
                    tier(&mut run.placement)
                }
                Phase::Stopping(stop) => {
                    tier(&mut stop.run.placement);
                    stop.next.iter_mut().for_each(|next| tier(&mut next.run.placement));
                }
                Phase::Waiting | Phase::Parked | Phase::Over => {}
            }
        }
        (self.cluster, self.network) = (cluster, network);
        self.forecast.forget_places();
        for id in self.jobs.ids().collect::<Vec<JobId>>() {
            self.estimate_anew(id);
        }
        self.find_traffic();
    }

    /// Works out anew who sends over which links.
    pub(crate) fn find_traffic(&mut self) {
        self.traffic = Contention::new(&self.network);
        for id in self.jobs.ids().collect::<Vec<JobId>>() {
            if let Some(run) = self.job(id).run() {
                let placement = run.placement.clone();
                self.take_links(id, &placement);
            }
        }
    }

    fn take_links(&mut self, id: JobId, placement: &Placement) {
        let profile = &self.jobs[id].job.profile;
        self.traffic.add(id, profile, placement, &self.cluster, &self.network);
    }

    /// A running job has done so many iterations by now and does `rate` per second from now on.
    pub(crate) fn progress(&mut self, id: JobId, done: f64, rate: f64) {
        self.note_pace(id, done);
        self.learn_pace(id, false);
        let (now, interval_s) = (self.now, self.checkpoints.interval_s);
        let job = &mut self.jobs[id];
        if let Phase::Running(run) = &mut job.phase {
            run.pace.change(now, done, rate, interval_s, job.iterations);
            if !self.forecast.exact && done > job.iterations {
                job.iterations = f64::INFINITY; // what was told is wrong
            }
        }
    }

    /// A running job has done so many iterations by now: what did they take, and what on idle links?
    fn note_pace(&mut self, id: JobId, done: f64) {
        let job = &self.jobs[id];
        let Phase::Running(Run { placement, pace }) = &job.phase else { return };
        let (spent_s, iterations) = (self.now - pace.since_s, done - pace.done);
        if spent_s > 0.0 && iterations > 0.0 && job.job.profile.is_known() {
            let shape = self.network.shape(&self.cluster, placement);
            let ideal_s = iterations * self.network.iteration_s(&job.job.profile, &shape);
            self.jobs[id].paced.add(spent_s, ideal_s);
        }
    }

    /// The forecast learns what the place costs a run: at its end, and before that whenever the run has
    /// become twice as long. The end of a long run would be late news, and hearing of it all the time would
    /// drown the others.
    fn learn_pace(&mut self, id: JobId, is_over: bool) {
        let job = &self.jobs[id];
        let news = job.paced.since(&job.heard);
        if let (Phase::Running(run), Some(ratio)) = (&job.phase, news.ratio())
            && (is_over || news.is_as_long_as(&job.heard))
        {
            let place = self.cluster.domain_of(&run.placement);
            self.forecast.learn_pace(&job.job, run.placement.tier, place, ratio);
            self.jobs[id].heard = self.jobs[id].paced;
        }
    }

    /// What a running job would keep if it stopped now, and what its next start would cost.
    fn kept(&self, id: JobId, reason: Reason) -> (f64, Seconds) {
        let job = self.job(id);
        let done = match self.checkpoints.keeps_all(reason) {
            true => job.done_at(self.now),
            false => job.checkpointed_at(self.now, self.checkpoints.interval_s),
        };
        let restart_s = match reason {
            Reason::TimeSlice | Reason::Migration => SLICE_RESUME_S,
            _ => self.checkpoints.restart_s(&job.job),
        };
        (done, restart_s)
    }

    /// A running job leaves its GPUs with `done` iterations kept. Returns the run that ends.
    fn leave(&mut self, id: JobId, done: f64, next: Phase) -> Option<Run> {
        let now = self.now;
        self.note_pace(id, self.job(id).done_at(now));
        self.learn_pace(id, true);
        let job = &mut self.jobs[id];
        (job.paced, job.heard) = Default::default();
        job.held_s = job.held_at(now);
        job.done = done;
        job.since_s = now;
        let Phase::Running(run) = std::mem::replace(&mut job.phase, next) else { return None };
        // Who has one machine sends nothing between machines.
        if run.placement.slots.len() > 1 {
            self.traffic.stop(id);
        }
        let split = self.jobs[id].job.terms.split;
        self.cluster.release(&run.placement, split);
        self.running.remove(&id);
        Some(run)
    }

    /// A running job lost its GPUs: it waits again.
    pub(crate) fn fail(&mut self, id: JobId, why: Why) {
        self.surprises += 1;
        let (done, restart_s) = self.kept(id, Reason::Failure);
        self.leave(id, done, Phase::Waiting);
        self.join_line(id);
        let now = self.now;
        let job = &mut self.jobs[id];
        job.restart_s = restart_s;
        job.reads = Some(now);
        job.why = why;
    }

    /// The job is over, whatever it was about to do. False if it already was.
    pub(crate) fn end(&mut self, id: JobId, finished: bool) -> bool {
        self.surprises += 1;
        let job = self.job(id);
        let done = if finished { job.iterations } else { job.done_at(self.now) };
        match &self.job(id).phase {
            Phase::Over => return false,
            Phase::Waiting | Phase::Parked => {}
            Phase::Running(_) => {
                self.leave(id, done, Phase::Over);
            }
            Phase::Starting(_) => self.unstart(id),
            Phase::Stopping(stop) => {
                if stop.next.is_some() {
                    self.unstart(id);
                }
                self.stopped(id, None);
            }
        }
        self.unfinished -= 1;
        self.leave_line(id);
        self.jobs[id].phase = Phase::Over;
        true
    }

    /// Carries a decision out in the books that was made earlier, as the record has it.
    pub(crate) fn apply(&mut self, decision: &Decision) {
        self.next_decision = decision.id;
        match &decision.action {
            Action::Start { job, placement } => {
                self.start(*job, placement.clone());
                self.jobs[*job].why = decision.why;
            }
            Action::Stop { job, reason } => {
                self.stop(*job, *reason);
                self.jobs[*job].why = decision.why;
            }
            Action::SetTimer { timer, at_s } => {
                // It may have been set before news in the same turn that the job was over.
                let is_known = match timer {
                    Timer::Job(id) => self.jobs.get(*id).is_some(),
                    Timer::Round => true,
                };
                if is_known {
                    self.timers.insert(*timer, *at_s);
                }
            }
            Action::Decline { job } => {
                if self.jobs.get(*job).is_some() {
                    self.jobs[*job].why = decision.why;
                }
            }
            Action::Failed { .. } | Action::Tuned { .. } => {}
        }
        self.next_decision = decision.id + 1;
    }

    pub(crate) fn number_from(&mut self, next: DecisionId) {
        self.next_decision = next;
    }

    fn decision(&mut self, id: JobId) -> DecisionId {
        let decision = self.next_decision;
        self.next_decision += 1;
        self.in_flight.insert(decision, id);
        decision
    }

    /// A waiting job is promised the placement.
    fn start(&mut self, id: JobId, placement: Arc<Placement>) -> (DecisionId, Vec<DecisionId>) {
        self.cluster.take(&placement, self.jobs[id].job.terms.split);
        self.take_links(id, &placement);
        let mut after = self.cluster.stops_before(&placement);
        let decision = self.decision(id);
        self.leave_line(id);
        let job = &mut self.jobs[id];
        debug_assert!(job.is_waiting());
        let begin_s = self.now + job.restart_s;
        let run = Run { placement, pace: Pace::new(begin_s, job.done) };
        match &mut job.phase {
            Phase::Stopping(stop) => {
                if !after.contains(&stop.decision) {
                    after.push(stop.decision);
                }
                stop.next = Some(Start { decision, run, after: after.clone() });
            }
            phase => *phase = Phase::Starting(Start { decision, run, after: after.clone() }),
        }
        (decision, after)
    }

    /// The job has the GPUs that were promised to it.
    pub(crate) fn started(&mut self, id: JobId) {
        let now = self.now;
        let job = &mut self.jobs[id];
        let Phase::Starting(start) = std::mem::replace(&mut job.phase, Phase::Waiting) else {
            unreachable!("the caller has looked")
        };
        self.in_flight.remove(&start.decision);
        let mut ready_s = self.storage.ready_s(now, &self.cluster, &start.run.placement);
        if let Some(written_s) = job.reads {
            let read_s = self.checkpoints.read_s(&job.job);
            ready_s = ready_s.max(written_s);
            ready_s += self.storage.read(ready_s, read_s);
        }
        let pace = Pace::new(ready_s + job.restart_s, job.done);
        job.phase = Phase::Running(Run { pace, ..start.run });
        job.since_s = now;
        job.starts += 1;
        self.running.insert(id);
    }

    /// A waiting job is found to run on these GPUs already.
    pub(crate) fn found(&mut self, id: JobId, placement: Arc<Placement>) {
        self.surprises += 1;
        self.cluster.take(&placement, self.jobs[id].job.terms.split);
        self.take_links(id, &placement);
        self.leave_line(id);
        self.running.insert(id);
        let now = self.now;
        let job = &mut self.jobs[id];
        job.phase = Phase::Running(Run { placement, pace: Pace::new(now, job.done) });
        job.why = Why::Found;
        job.since_s = now;
        job.starts += 1;
    }

    /// Starts and stops that the world has not settled yet, oldest first.
    pub fn decisions_in_flight(&self) -> Vec<Decision> {
        let decision = |(&id, &job): (&DecisionId, &JobId)| {
            let state = self.job(job);
            let start = |start: &Start| {
                let placement = start.run.placement.clone();
                (Action::Start { job, placement }, start.after.clone())
            };
            let (action, after) = match &state.phase {
                Phase::Starting(starting) => start(starting),
                Phase::Stopping(stop) => match &stop.next {
                    Some(next) if next.decision == id => start(next),
                    _ => (Action::Stop { job, reason: stop.reason }, Vec::new()),
                },
                _ => unreachable!("only these phases have decisions in flight"),
            };
            Decision { id, action, after, why: state.why }
        };
        self.in_flight.iter().map(decision).collect()
    }

    /// The job is promised nothing any more and waits again.
    pub(crate) fn unstart(&mut self, id: JobId) {
        self.surprises += 1;
        let job = &mut self.jobs[id];
        let start = match &mut job.phase {
            Phase::Stopping(stop) => stop.next.take(),
            phase => match std::mem::replace(phase, Phase::Waiting) {
                Phase::Starting(start) => Some(start),
                _ => None,
            },
        };
        let start = start.expect("the caller has looked");
        job.why = Why::Refused;
        self.in_flight.remove(&start.decision);
        self.traffic.stop(id);
        let split = self.jobs[id].job.terms.split;
        self.cluster.release(&start.run.placement, split);
        self.join_line(id);
    }

    /// A running job is to give its GPUs back; it waits again.
    fn stop(&mut self, id: JobId, reason: Reason) -> DecisionId {
        let (done, restart_s) = self.kept(id, reason);
        let job = self.job(id);
        let before = (job.done, job.held_s, job.since_s);
        let run = self.leave(id, done, Phase::Waiting).expect("only running jobs are stopped");
        let decision = self.decision(id);
        self.cluster.await_stop(decision, &run.placement);
        self.join_line(id);
        let at_s = self.now;
        let job = &mut self.jobs[id];
        job.reads = match reason {
            Reason::TimeSlice | Reason::Migration => None,
            _ => {
                let write_s = self.checkpoints.write_s(&job.job);
                Some(self.storage.write(at_s, write_s, &run.placement))
            }
        };
        job.restart_s = restart_s;
        job.phase =
            Phase::Stopping(Box::new(Stop { decision, run, reason, at_s, before, next: None }));
        decision
    }

    /// The job has given its GPUs back, with so many iterations in its checkpoint.
    pub(crate) fn stopped(&mut self, id: JobId, kept: Option<f64>) {
        let now = self.now;
        let job = &mut self.jobs[id];
        let Phase::Stopping(stop) = std::mem::replace(&mut job.phase, Phase::Waiting) else {
            unreachable!("the caller has looked")
        };
        job.held_s += now - stop.at_s;
        job.done = kept.map_or(job.done, |kept| kept.clamp(0.0, job.iterations));
        if let Some(next) = stop.next {
            job.phase = Phase::Starting(next);
        }
        self.in_flight.remove(&stop.decision);
        self.cluster.settle_stop(stop.decision, &stop.run.placement);
    }

    /// The job runs on as if it had never been asked to stop. Nothing is promised to it.
    pub(crate) fn unstop(&mut self, id: JobId) {
        self.surprises += 1;
        let job = &mut self.jobs[id];
        let Phase::Stopping(stop) = std::mem::replace(&mut job.phase, Phase::Waiting) else {
            unreachable!("the caller has looked")
        };
        (job.done, job.held_s, job.since_s) = stop.before;
        job.why = Why::Refused;
        self.in_flight.remove(&stop.decision);
        self.cluster.settle_stop(stop.decision, &stop.run.placement);
        let split = self.jobs[id].job.terms.split;
        self.cluster.take(&stop.run.placement, split);
        self.take_links(id, &stop.run.placement);
        self.running.insert(id);
        self.leave_line(id);
        self.jobs[id].phase = Phase::Running(stop.run);
    }
}
