//! What the scheduler knows: the cluster, every job's phase, and how far each has come.

use std::collections::BTreeSet;
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_core::topology::{Tier, Topology};

use crate::cluster::{Cluster, MachineId, Placement, PoolId};
use crate::event::{Action, Timer};
use crate::job::{Job, JobId, Length};
use crate::network::Network;

#[derive(Debug, Clone)]
pub struct State {
    pub now: Seconds,
    pub cluster: Cluster,
    /// Closed forms of what a placement costs on an otherwise idle network.
    pub network: Network,
    /// By id: every job that ever arrived.
    pub jobs: Vec<JobState>,
    pub running: BTreeSet<JobId>,
    pub waiting: usize,
    pub checkpoints: Checkpoints,
}

#[derive(Debug, Clone)]
pub struct JobState {
    pub job: Arc<Job>,
    /// The GPU type it asks for.
    pub pool: Option<PoolId>,
    /// The lowest tier that could ever hold it.
    pub best: Tier,
    /// Iteration time of a compact placement at each tier on an idle network; tiers below the best
    /// count as the best.
    pub iteration_s: [Seconds; 3],
    pub iterations: f64,
    pub phase: Phase,
    /// Iterations done when the phase began; they survive a preemption.
    pub done: f64,
    /// Time spent holding GPUs before the phase began.
    pub held_s: Seconds,
    /// When the phase began: submission, preemption or start.
    pub since_s: Seconds,
    pub starts: u32,
    /// What the next start costs before iterations go on.
    pub restart_s: Seconds,
}

#[derive(Debug, Clone)]
pub enum Phase {
    Waiting,
    Running(Run),
    Over,
}

#[derive(Debug, Clone)]
pub struct Run {
    pub placement: Arc<Placement>,
    /// When the restart was over and iterations began.
    pub begin_s: Seconds,
    /// From when `rate` holds and how many iterations were done then; the driver moves both
    /// whenever the rate changes. Iterations begin after the restart, so this may lie ahead.
    pub rate_since_s: Seconds,
    pub rate_done: f64,
    /// Iterations a second.
    pub rate: f64,
    /// Iterations in the last periodic checkpoint before `rate_since_s`.
    pub checkpoint_done: f64,
}

/// How progress is kept when a job stops before its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Checkpoints {
    /// Running time between periodic checkpoints; a failure loses what came after the last.
    pub interval_s: Seconds,
    /// Whether a job that is preempted writes a checkpoint first, or falls back as at a failure.
    pub on_preempt: bool,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { interval_s: 1800.0, on_preempt: true }
    }
}

impl JobState {
    pub fn run(&self) -> Option<&Run> {
        match &self.phase {
            Phase::Running(run) => Some(run),
            _ => None,
        }
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting)
    }

    pub fn gpus(&self) -> u32 {
        self.job.gpus
    }

    /// Iterations done by `now`.
    pub fn done_at(&self, now: Seconds) -> f64 {
        match &self.phase {
            Phase::Running(run) => {
                let ran = (now - run.rate_since_s).max(0.0);
                (run.rate_done + ran * run.rate).min(self.iterations)
            }
            _ => self.done,
        }
    }

    /// Iterations in the last periodic checkpoint by `now`.
    pub fn checkpointed_at(&self, now: Seconds, interval_s: Seconds) -> f64 {
        match &self.phase {
            Phase::Running(run) => {
                let periods = ((now - run.begin_s) / interval_s).floor().max(0.0);
                let last_s = run.begin_s + periods * interval_s;
                if last_s < run.rate_since_s { run.checkpoint_done } else { self.done_at(last_s) }
            }
            _ => self.done,
        }
    }

    /// Time holding GPUs by `now`.
    pub fn held_at(&self, now: Seconds) -> Seconds {
        match self.phase {
            Phase::Running(_) => self.held_s + (now - self.since_s),
            _ => self.held_s,
        }
    }

    /// Time spent computing what was kept, as if the network were free.
    pub fn useful_at(&self, now: Seconds) -> Seconds {
        self.done_at(now) * self.job.profile.compute_s
    }

    /// What is left at its best place, if nothing disturbs it.
    pub fn remaining_at(&self, now: Seconds) -> Seconds {
        (self.iterations - self.done_at(now)) * self.iteration_s[0]
    }

    /// What the whole job takes at its best place on an idle network.
    pub fn ideal_s(&self) -> Seconds {
        self.iterations * self.iteration_s[0]
    }

    /// How much longer an iteration takes at the worst tier than at the best.
    pub fn sensitivity(&self) -> f64 {
        self.iteration_s[2] / self.iteration_s[0]
    }
}

impl State {
    pub fn new(topology: &Topology, network: Network, checkpoints: Checkpoints) -> Self {
        Self {
            now: 0.0,
            cluster: Cluster::new(topology),
            network,
            jobs: Vec::new(),
            running: BTreeSet::new(),
            waiting: 0,
            checkpoints,
        }
    }

    /// Whether the cluster could ever hold the job.
    pub fn admits(&self, job: &Job) -> bool {
        self.pool_of(job).is_some_and(|pool| self.cluster.best_tier(job.gpus, pool).is_some())
    }

    /// None: the cluster has no such type. Some(None): any type will do.
    fn pool_of(&self, job: &Job) -> Option<Option<PoolId>> {
        match &job.gpu_type {
            None => Some(None),
            Some(name) => self.cluster.pool_named(name).map(Some),
        }
    }

    pub(crate) fn admit(&mut self, job: Arc<Job>) -> JobId {
        let pool = self.pool_of(&job).expect("drivers admit only what `admits` allows");
        let best = self.cluster.best_tier(job.gpus, pool).expect("as above");
        let largest = self.cluster.largest_pool(job.gpus, pool, best);
        let network = &self.network;
        let iteration_s = Tier::ALL.map(|tier| {
            network.iteration_s(&job.profile, &network.typical(job.gpus, largest, tier.max(best)))
        });
        let iterations = match job.length {
            Length::Iterations(n) => n,
            // Background traffic lengthens a job: what a trace recorded is its length without.
            Length::Seconds(s) => {
                let quiet = network.quiet();
                s / quiet.iteration_s(&job.profile, &quiet.typical(job.gpus, largest, best))
            }
        };
        self.jobs.push(JobState {
            pool,
            best,
            iteration_s,
            iterations,
            phase: Phase::Waiting,
            done: 0.0,
            held_s: 0.0,
            since_s: self.now,
            starts: 0,
            restart_s: 0.0,
            job,
        });
        self.waiting += 1;
        (self.jobs.len() - 1) as JobId
    }

    pub fn job(&self, id: JobId) -> &JobState {
        &self.jobs[id as usize]
    }

    /// The GPU type that a running job uses.
    pub fn pool_of_run(&self, id: JobId) -> PoolId {
        let run = self.job(id).run().expect("asked of running jobs only");
        self.cluster.machines[run.placement.slots[0].machine as usize].pool
    }

    /// Running jobs that hold GPUs of the machine, in order of id.
    pub fn jobs_on(&self, machine: MachineId) -> Vec<JobId> {
        let holds = |id: &JobId| {
            let run = self.job(*id).run();
            run.is_some_and(|run| run.placement.slots.iter().any(|s| s.machine == machine))
        };
        self.running.iter().copied().filter(holds).collect()
    }

    /// The best offer for a running job if its own GPUs count as free.
    pub fn offer_instead(&mut self, id: JobId) -> Option<Placement> {
        let job = self.job(id);
        let (gpus, pool) = (job.gpus(), self.pool_of_run(id));
        let held = job.run()?.placement.clone();
        self.cluster.release(&held);
        let offer = self.cluster.best_offer(gpus, Some(pool));
        self.cluster.take(&held);
        offer
    }

    /// How long the job has been at work since its last start, if stopping it now would keep some
    /// of that work. A policy that preempts jobs before can keep all of them from getting on.
    pub fn worked_s(&self, id: JobId) -> Option<Seconds> {
        let job = self.job(id);
        let run = job.run()?;
        let keeps = self.checkpoints.on_preempt
            || job.checkpointed_at(self.now, self.checkpoints.interval_s) > job.done;
        keeps.then_some(self.now - run.begin_s)
    }

    /// The driver says how fast a running job goes from `from_s` on.
    pub fn set_rate(&mut self, id: JobId, from_s: Seconds, rate: f64) {
        let job = &mut self.jobs[id as usize];
        let done = job.done_at(from_s);
        let checkpoint_done = job.checkpointed_at(from_s, self.checkpoints.interval_s);
        if let Phase::Running(run) = &mut job.phase {
            run.checkpoint_done = checkpoint_done;
            // A job that is still restarting begins its iterations when it was going to.
            run.rate_since_s = run.rate_since_s.max(from_s);
            run.rate_done = done;
            run.rate = rate;
        }
    }

    /// A running job waits again, with the progress and the restart cost that the reason leaves.
    pub(crate) fn requeue(&mut self, id: JobId, reason: Reason) {
        let job = self.job(id);
        let keeps_all = match reason {
            Reason::TimeSlice => true,
            Reason::Priority | Reason::Upgrade => self.checkpoints.on_preempt,
            Reason::Failure => false,
        };
        let done = match keeps_all {
            true => job.done_at(self.now),
            false => job.checkpointed_at(self.now, self.checkpoints.interval_s),
        };
        let restart_s = match reason {
            Reason::TimeSlice => SLICE_RESUME_S,
            _ => job.job.profile.restart_s,
        };
        self.stop(id, done, Phase::Waiting);
        self.jobs[id as usize].restart_s = restart_s;
    }

    /// Ends a running phase: the GPUs are free again and `done` iterations are kept.
    pub(crate) fn stop(&mut self, id: JobId, done: f64, next: Phase) {
        let now = self.now;
        let job = &mut self.jobs[id as usize];
        job.held_s = job.held_at(now);
        job.done = done;
        job.since_s = now;
        if let Phase::Running(run) = std::mem::replace(&mut job.phase, next) {
            self.cluster.release(&run.placement);
            self.running.remove(&id);
        }
        if matches!(self.jobs[id as usize].phase, Phase::Waiting) {
            self.waiting += 1;
        }
    }
}

/// One decision in the making: the state that policies change and the actions they thereby take.
#[derive(Debug)]
pub struct Turn<'a> {
    pub state: &'a mut State,
    pub actions: &'a mut Vec<Action>,
}

/// Resuming after a time slice: the job's state never left its machines' memory (Gandiva reports
/// switches of up to a second).
pub const SLICE_RESUME_S: Seconds = 1.0;

impl Turn<'_> {
    pub fn now(&self) -> Seconds {
        self.state.now
    }

    pub fn start(&mut self, id: JobId, placement: Placement) {
        let now = self.state.now;
        self.state.cluster.take(&placement);
        self.state.running.insert(id);
        self.state.waiting -= 1;
        let placement = Arc::new(placement);
        let job = &mut self.state.jobs[id as usize];
        debug_assert!(job.is_waiting());
        let begin_s = now + job.restart_s;
        job.phase = Phase::Running(Run {
            placement: placement.clone(),
            begin_s,
            rate_since_s: begin_s,
            rate_done: job.done,
            rate: 0.0,
            checkpoint_done: job.done,
        });
        job.since_s = now;
        job.starts += 1;
        self.actions.push(Action::Start { job: id, placement });
    }

    /// The job gives its GPUs back and waits again.
    pub fn preempt(&mut self, id: JobId, reason: Reason) {
        self.state.requeue(id, reason);
        self.actions.push(Action::Preempt { job: id, reason });
    }

    pub fn set_timer(&mut self, timer: Timer, at_s: Seconds) {
        self.actions.push(Action::SetTimer { timer, at_s });
    }
}
