//! The simulator: plays a workload against the scheduler, event by event, exactly. Its world
//! carries out every decision at once.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::{Reason, RunRecord};
use hither_core::seed::stream;
use hither_core::topology::Topology;
use rand_distr::{Distribution, Exp};
use rand_pcg::Pcg64Mcg;

use crate::check::Checker;
use crate::cluster::{MachineId, Placement, Status};
use crate::contention::Contention;
use crate::decide::Scheduler;
use crate::event::{Action, Decision, DecisionId, End, Event, Timer, Why};
use crate::forecast::Forecast;
use crate::job::{Job, JobId};
use crate::network::Network;
use crate::outcome::Recorder;
use crate::policy::Policy;
use crate::state::{Checkpoints, State};
use crate::world::{Beliefs, World};

/// What happens to the cluster while it runs the workload.
#[derive(Debug, Clone, Default)]
pub struct Scenario {
    /// In order of submission.
    pub jobs: Vec<Arc<Job>>,
    /// Where the first of the jobs run already when they are submitted, at the first moment.
    pub running: Vec<Arc<Placement>>,
    /// (when, index into `jobs`): the user takes the job back.
    pub cancels: Vec<(Seconds, JobId)>,
    /// (when, machine, whether it comes up again or goes down).
    pub machines: Vec<(Seconds, MachineId, bool)>,
    /// Machines that also fail at random.
    pub faults: Option<Faults>,
}

/// Failures and repairs, exponentially distributed. Each machine draws from a stream of its own, so
/// that every policy meets the same failures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    pub seed: u64,
    /// Mean time of a machine between a repair and the next failure.
    pub between_s: Seconds,
    pub repair_s: Seconds,
}

/// How to simulate a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The seed that the scenario was drawn from, for the record.
    pub seed: u64,
    /// Divides the bandwidth of all links outside the machines.
    pub congestion: f64,
    pub checkpoints: Checkpoints,
    /// Keep a row for every job and event, for files and the report; without, only the summary.
    pub record: bool,
    /// What the scheduler is told of the jobs.
    pub beliefs: Beliefs,
    /// Let the outside checkers look at the state after every event.
    pub check: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            congestion: 1.0,
            checkpoints: Checkpoints::default(),
            record: false,
            beliefs: Beliefs::default(),
            check: false,
        }
    }
}

/// Why a simulation ended early.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Error {
    #[error(
        "job {name} wants {gpus} GPUs{}, and the cluster holds at most {most}; \
         hint: give a larger --cluster, or --drop-impossible",
        kind.as_deref().map(|k| format!(" of type {k}")).unwrap_or_default()
    )]
    NeverFits { name: String, gpus: u32, kind: Option<String>, most: u64 },
    #[error("{policy}: {waiting} jobs wait and nothing can happen any more (at {now} s)")]
    Stuck { policy: String, waiting: usize, now: Seconds },
    #[error(
        "{policy}: no end in sight after {now} s: jobs fail faster than they get on; \
         hint: checkpoint more often (--checkpoint-s) or let machines fail less often (--mtbf-h)"
    )]
    Endless { policy: String, now: Seconds },
    #[error("{policy}: invariant broken at {now} s: {what}")]
    Invariant { policy: String, now: Seconds, what: String },
}

/// Timers may go off in vain this many times in a row while nothing runs before we call it stuck.
const IDLE_TIMERS_MAX: u32 = 100_000;

/// A workload may take this many times as long as all its jobs one after the other at their worst
/// places, and as many repairs. Only failures that outrun the checkpoints make it longer.
const SERIAL_TIMES_MAX: f64 = 50.0;

/// Who takes a machine down and brings it up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Script,
    Chance,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Finish(JobId, u32),
    Machine(MachineId, bool, Cause),
    Cancel(JobId),
    /// The next group of arrivals.
    Arrive,
    Timer(Timer, u32),
}

impl What {
    /// Order of things that happen at the same moment: what frees GPUs first, timers last.
    fn rank(self) -> u8 {
        match self {
            What::Finish(..) => 0,
            What::Machine(..) => 1,
            What::Arrive => 2,
            What::Cancel(_) => 3,
            What::Timer(..) => 4,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Pending {
    at_s: Seconds,
    /// Breaks ties in the order of creation.
    serial: u64,
    what: What,
}

impl Eq for Pending {}
impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pending {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |p: &Self| (p.what.rank(), p.serial);
        self.at_s.total_cmp(&other.at_s).then(key(self).cmp(&key(other)))
    }
}

/// Runs the workload under the policy to its end.
pub fn simulate(
    name: &str,
    policy: Box<dyn Policy>,
    topology: &Topology,
    scenario: &Scenario,
    options: &Options,
) -> Result<RunRecord, Error> {
    let network = Network::new(topology, options.congestion);
    let clairvoyant = policy.is_clairvoyant();
    let beliefs = if clairvoyant { Beliefs::default() } else { options.beliefs };
    let told = match beliefs.congestion {
        true => network.clone(),
        false => Network::new(topology, 1.0),
    };
    let mut state = State::new(topology, told, options.checkpoints);
    if !beliefs.are_true() {
        state.forecast = Forecast::default();
    }
    for job in &scenario.jobs {
        if !state.admits(job) {
            return Err(Error::NeverFits {
                name: job.name.clone(),
                gpus: job.gpus,
                kind: job.gpu_type.clone(),
                most: state.cluster.most_gpus(job.gpu_type.as_deref()),
            });
        }
    }
    let mut sim = Sim {
        name,
        world: World::new(beliefs, options.seed, options.checkpoints),
        contention: Contention::new(&network),
        network,
        recorder: Recorder::new(scenario.jobs.len(), topology.levels.len(), options.record),
        checker: options.check.then(|| Checker::new(&state)),
        scheduler: Scheduler::new(state, policy),
        pending: BinaryHeap::new(),
        serial: 0,
        finish_version: vec![0; scenario.jobs.len()],
        timer_version: HashMap::new(),
        idle_timers: 0,
        faults: scenario.faults.map(|faults| FaultStreams::new(faults, topology.machines.len())),
        held_down: BTreeSet::new(),
        running: Vec::new(),
        worst_s: excused_until_s(scenario),
    };
    sim.run(scenario)?;
    let mut record = sim.recorder.record(name, options.seed, &sim.world, &sim.scheduler.state);
    record.summary.clairvoyant = clairvoyant;
    Ok(record)
}

/// Until then jobs may have to wait for submissions and repairs, whatever their length.
fn excused_until_s(scenario: &Scenario) -> Seconds {
    let submitted_s = scenario.jobs.last().map_or(0.0, |job| job.submit_s);
    let last_s = scenario.machines.iter().map(|m| m.0).fold(submitted_s, f64::max);
    last_s + SERIAL_TIMES_MAX * scenario.faults.map_or(0.0, |faults| faults.repair_s)
}

struct Sim<'a> {
    name: &'a str,
    scheduler: Scheduler,
    world: World,
    network: Network,
    contention: Contention,
    recorder: Recorder,
    checker: Option<Checker>,
    pending: BinaryHeap<Reverse<Pending>>,
    serial: u64,
    /// The finish that counts; earlier ones were overtaken by a change of rate.
    finish_version: Vec<u32>,
    timer_version: HashMap<Timer, u32>,
    idle_timers: u32,
    faults: Option<FaultStreams>,
    /// Machines that are down, and who holds them down.
    held_down: BTreeSet<(MachineId, Cause)>,
    /// Where the first jobs run when they arrive.
    running: Vec<Arc<Placement>>,
    /// When the workload should be over by any measure.
    worst_s: Seconds,
}

struct FaultStreams {
    between: Exp<f64>,
    repair: Exp<f64>,
    machines: Vec<Pcg64Mcg>,
}

impl FaultStreams {
    fn new(faults: Faults, machines: usize) -> Self {
        let exponential = |mean_s: Seconds| Exp::new(1.0 / mean_s).expect("a positive mean");
        let named = |id| stream(faults.seed, &format!("faults of machine {id}"));
        Self {
            between: exponential(faults.between_s),
            repair: exponential(faults.repair_s),
            machines: (0..machines).map(named).collect(),
        }
    }

    /// Time until the machine, which is up or not, changes.
    fn next_s(&mut self, machine: MachineId, up: bool) -> Seconds {
        let rng = &mut self.machines[machine as usize];
        if up { self.between.sample(rng) } else { self.repair.sample(rng) }
    }
}

impl Sim<'_> {
    fn run(&mut self, scenario: &Scenario) -> Result<(), Error> {
        for &(at_s, machine, up) in &scenario.machines {
            self.push(at_s, What::Machine(machine, up, Cause::Script));
        }
        for &(at_s, job) in &scenario.cancels {
            // A job cannot be taken back before it was given.
            let at_s = at_s.max(scenario.jobs[job as usize].submit_s);
            self.push(at_s, What::Cancel(job));
        }
        if self.faults.is_some() {
            for machine in 0..self.scheduler.state.cluster.machines.len() as MachineId {
                self.push_fault(0.0, machine, true);
            }
        }
        self.running = scenario.running.clone();
        let mut arrivals = &scenario.jobs[..];
        if let Some(first) = arrivals.first() {
            self.push(first.submit_s, What::Arrive);
        }
        while let Some(Reverse(next)) = self.pending.pop() {
            let event = match next.what {
                What::Finish(id, version) if self.finish_version[id as usize] == version => {
                    Event::Ended { job: id, how: End::Finished }
                }
                What::Timer(timer, version) if self.timer_version.get(&timer) == Some(&version) => {
                    Event::Timer(timer)
                }
                What::Finish(..) | What::Timer(..) => continue,
                What::Machine(machine, up, cause) => {
                    if cause == Cause::Chance {
                        self.push_fault(next.at_s, machine, up);
                    }
                    if !self.changes_machine(machine, up, cause) {
                        continue;
                    }
                    let status = if up { Status::Up } else { Status::Gone };
                    Event::Machine { machine, status }
                }
                What::Cancel(id) => Event::Ended { job: id, how: End::Cancelled },
                What::Arrive => {
                    let together = arrivals.iter().take_while(|j| j.submit_s == next.at_s).count();
                    let (now, later) = arrivals.split_at(together);
                    arrivals = later;
                    if let Some(first) = later.first() {
                        self.push(first.submit_s, What::Arrive);
                    }
                    let (cluster, network) = (&self.scheduler.state.cluster, &self.network);
                    let submit = |job| self.world.submit(job, cluster, network);
                    Event::Submitted(now.iter().map(submit).collect())
                }
            };
            self.step(next.at_s, event)?;
            if arrivals.is_empty() && self.over() {
                return Ok(());
            }
            if next.at_s > self.worst_s {
                return Err(Error::Endless { policy: self.name.into(), now: next.at_s });
            }
        }
        match self.scheduler.state.line.len() {
            0 => Ok(()),
            _ => Err(self.stuck()),
        }
    }

    /// All arrived jobs are over: machines that fail from here on concern nobody.
    fn over(&self) -> bool {
        self.scheduler.state.unfinished == 0
    }

    fn stuck(&self) -> Error {
        let state = &self.scheduler.state;
        Error::Stuck { policy: self.name.into(), waiting: state.line.len(), now: state.now }
    }

    fn step(&mut self, now: Seconds, event: Event) -> Result<(), Error> {
        self.recorder.before(now, &event, &self.scheduler.state);
        let invariant = |what| Error::Invariant { policy: self.name.into(), now, what };
        if let Some(checker) = &mut self.checker {
            checker.before(now, &event, &self.scheduler.state).map_err(invariant)?;
        }
        // Jobs that leave give their bandwidth back before anyone else starts.
        if let Event::Ended { job, .. } = event {
            self.halt(now, job, Reason::TimeSlice);
        }
        if let Event::Submitted(jobs) = &event {
            let arrived = self.world.jobs.iter().rev().take(jobs.len()).rev();
            let serial_s: f64 =
                arrived.map(|t| t.iterations * t.iteration_s[1] + t.job.profile.restart_s).sum();
            self.worst_s += SERIAL_TIMES_MAX * serial_s;
        }
        let is_timer = matches!(event, Event::Timer(_));
        let has_arrived = matches!(event, Event::Submitted(_));
        self.tell(now, event)?;
        let mut decisions = match has_arrived {
            true => self.find_running(now)?,
            false => Vec::new(),
        };
        let found = decisions.len();
        decisions.extend(self.scheduler.decide(now));
        for decision in &decisions[found..] {
            self.carry_out(now, decision)?;
        }
        // Before the new rates: a job that moves stops at its old one first.
        self.recorder.after(now, &decisions, &self.scheduler.state);
        self.set_rates(now)?;
        self.meter_links(now);
        let started = decisions.iter().any(|d| matches!(d.action, Action::Start { .. }));
        let idle = is_timer && !started && self.scheduler.state.running.is_empty();
        self.idle_timers = if idle { self.idle_timers + 1 } else { 0 };
        if let Some(checker) = &mut self.checker {
            let bound = self.scheduler.overtaking_s_max();
            let checked = checker.after(now, &decisions, &self.scheduler.state, bound);
            checked.and_then(|()| self.check_links()).map_err(invariant)?;
        }
        if self.idle_timers > IDLE_TIMERS_MAX { Err(self.stuck()) } else { Ok(()) }
    }

    /// Iterations per second; a job that is starting counts as if it had started.
    fn rate(&self, id: JobId) -> f64 {
        self.world.job(id).pace.map_or(0.0, |pace| pace.rate)
    }

    fn meter_links(&mut self, now: Seconds) {
        if self.recorder.keeps_rows() {
            let loads = self.contention.link_loads(|id| self.rate(id));
            self.recorder.links(now, loads);
        }
    }

    /// No link carries more than it can.
    fn check_links(&self) -> Result<(), String> {
        match self.contention.overload(|id| self.rate(id), 1e-6) {
            Some((level, share)) => {
                let name = &self.scheduler.state.cluster.levels[level];
                Err(format!("a link of level {name} carries {share} times what it can"))
            }
            None => Ok(()),
        }
    }

    /// The scheduler believes all that its own world tells it.
    fn tell(&mut self, now: Seconds, event: Event) -> Result<(), Error> {
        self.scheduler.observe(now, event).map_err(|error| {
            let what = error.to_string();
            Error::Invariant { policy: self.name.into(), now, what }
        })
    }

    /// The jobs that run already have their GPUs. To those who watch they start now.
    fn find_running(&mut self, now: Seconds) -> Result<Vec<Decision>, Error> {
        let mut starts = Vec::new();
        for (job, placement) in (0..).zip(std::mem::take(&mut self.running)) {
            self.tell(now, Event::Found { job, placement: placement.clone() })?;
            self.begin(now, job, &placement);
            let action = Action::Start { job, placement };
            starts.push(Decision {
                id: DecisionId::MAX,
                action,
                after: Vec::new(),
                why: Why::Found,
            });
        }
        Ok(starts)
    }

    /// The job has these GPUs, and its share of the network.
    fn begin(&mut self, now: Seconds, job: JobId, placement: &Placement) {
        let state = &self.scheduler.state;
        let profile = &self.world.job(job).job.profile;
        self.contention.start(job, profile, placement, &state.cluster, &self.network);
        let begin_s = state.job(job).run().map_or(now, |run| run.pace.begin_s);
        self.world.start(job, begin_s);
    }

    fn carry_out(&mut self, now: Seconds, decision: &Decision) -> Result<(), Error> {
        match &decision.action {
            Action::Start { job, placement } => {
                self.tell(now, Event::Started(decision.id))?;
                self.begin(now, *job, placement);
                Ok(())
            }
            Action::Stop { job, reason } => {
                let kept = Some(self.halt(now, *job, *reason));
                self.tell(now, Event::Stopped { decision: decision.id, kept })
            }
            Action::Failed { job } => {
                self.halt(now, *job, Reason::Failure);
                Ok(())
            }
            Action::SetTimer { timer, at_s } => {
                let version = self.timer_version.entry(*timer).or_default();
                *version += 1;
                let version = *version;
                self.push(at_s.max(now), What::Timer(*timer, version));
                Ok(())
            }
            Action::Decline { .. } | Action::Tuned { .. } => Ok(()),
        }
    }

    /// The job iterates no more and sends nothing. Returns the iterations that it keeps.
    fn halt(&mut self, now: Seconds, id: JobId, reason: Reason) -> f64 {
        self.finish_version[id as usize] += 1;
        self.contention.stop(id);
        self.world.stop(id, now, reason)
    }

    /// Jobs whose share of the network changed go on at another pace, and end at another time.
    fn set_rates(&mut self, now: Seconds) -> Result<(), Error> {
        for (id, shape) in self.contention.settle() {
            let truth = self.world.job(id);
            let pace = truth.pace.expect("only running jobs have a share");
            let profile = &truth.job.profile;
            let exposed_s = self.network.exposed_s(profile, &shape);
            let iteration_s = profile.compute_s + exposed_s;
            let rate = 1.0 / iteration_s;
            if rate == pace.rate {
                continue;
            }
            self.recorder.pace(now, id, exposed_s / iteration_s, truth, &shape);
            let done = truth.done_at(now);
            self.tell(now, Event::Progress { job: id, done, rate })?;
            let finish_s = self.world.set_rate(id, now, rate);
            self.finish_version[id as usize] += 1;
            let version = self.finish_version[id as usize];
            self.push(finish_s, What::Finish(id, version));
        }
        Ok(())
    }

    /// The machine is up or down from `now` on; when will that change?
    fn push_fault(&mut self, now: Seconds, machine: MachineId, up: bool) {
        if let Some(faults) = &mut self.faults {
            let after_s = faults.next_s(machine, up);
            self.push(now + after_s, What::Machine(machine, !up, Cause::Chance));
        }
    }

    /// Notes who holds the machine down. Returns whether it goes down or comes up: it is up while neither
    /// the script nor chance holds it down.
    fn changes_machine(&mut self, machine: MachineId, up: bool, cause: Cause) -> bool {
        let is_down = |held: &BTreeSet<(MachineId, Cause)>| {
            [Cause::Script, Cause::Chance].iter().any(|&cause| held.contains(&(machine, cause)))
        };
        let was_down = is_down(&self.held_down);
        match up {
            true => self.held_down.remove(&(machine, cause)),
            false => self.held_down.insert((machine, cause)),
        };
        was_down != is_down(&self.held_down)
    }

    fn push(&mut self, at_s: Seconds, what: What) {
        self.serial += 1;
        self.pending.push(Reverse(Pending { at_s, serial: self.serial, what }));
    }
}
