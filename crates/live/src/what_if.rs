//! A simulation that begins where a live cluster stands: who runs where, who waits, and how much of
//! each job is left, as far as anybody can tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::topology::Topology;
use hither_sched::cluster::{MachineId, Placement};
use hither_sched::decide::Scheduler;
use hither_sched::event::Event;
use hither_sched::job::{Job, JobId, Length, Profile};
use hither_sched::policy::{self, Settings};
use hither_sched::profile::Library;
use hither_sched::state::{JobState, Phase, State};

use crate::attempts::Limits;
use crate::engine::{Obstacle, Seen, SeenJob, Stands};
use crate::jobs::{self, Managed, Memory, View};
use crate::learn::Learnt;
use crate::machines;
use crate::places::Places;
use crate::replay;

/// Machines that take no jobs are believed to be back after so long.
const REPAIR_S: Seconds = 86_400.0;

#[derive(Debug, Clone)]
pub struct Start {
    pub topology: Topology,
    /// All submitted at time zero; those that run come first.
    pub jobs: Vec<Job>,
    /// Where the first jobs run.
    pub running: Vec<Arc<Placement>>,
    /// (when, machine, whether it comes up again or goes down).
    pub machines: Vec<(Seconds, MachineId, bool)>,
    /// What had to be assumed.
    pub notes: Vec<String>,
}

/// `topology` has the machines in the order of the books.
pub fn start(state: &State, topology: &Topology) -> Start {
    let mut topology = topology.clone();
    let (mut machines, mut down) = (Vec::new(), 0);
    for (id, machine) in (0..).zip(&state.cluster.machines) {
        let ours = machine.taken + machine.stopping.iter().map(|stop| stop.1).sum::<u32>();
        let usable = machine.gpus.saturating_sub(machine.foreign).max(ours);
        if (machine.is_up() && usable > 0) || ours > 0 {
            topology.machines[id as usize].gpus = usable;
        } else {
            down += 1;
            machines.extend([(0.0, id, false), (REPAIR_S, id, true)]);
        }
    }
    let held = |id: &JobId| match &state.job(*id).phase {
        Phase::Running(run) => Some(run.placement.clone()),
        Phase::Stopping(stop) => Some(stop.run.placement.clone()),
        _ => None,
    };
    let (running, waiting): (Vec<JobId>, Vec<JobId>) =
        state.jobs.ids().partition(|id| held(id).is_some());
    let ids: Vec<JobId> = running.iter().chain(&waiting).copied().collect();
    let all = || ids.iter().map(|id| state.job(*id));
    let notes = [
        (
            all().filter(|job| told_left(job, state.now).is_none()).count(),
            "jobs are of unknown length: as long as others of their size still took",
        ),
        (
            all().filter(|job| !job.job.profile.is_known()).count(),
            "jobs are of unknown models: no place is better than another for them",
        ),
        (down, "machines take no jobs: they are back after a day"),
        (
            state.cluster.machines.iter().filter(|m| m.foreign > 0).count(),
            "machines have GPUs that others hold: those stay with them",
        ),
    ];
    Start {
        topology,
        jobs: all().map(|job| what_is_left(job, state)).collect(),
        running: running.iter().filter_map(held).collect(),
        machines,
        notes: notes.iter().filter(|n| n.0 > 0).map(|(n, what)| format!("{n} {what}")).collect(),
    }
}

/// What is left by the user's word.
fn told_left(job: &JobState, now: Seconds) -> Option<Length> {
    match job.job.length {
        Length::Iterations(all) => {
            let left = all - job.done_at(now);
            (left > 0.0 && job.job.profile.is_known()).then_some(Length::Iterations(left))
        }
        Length::Seconds(all_s) => {
            let left_s = all_s - job.held_at(now);
            (left_s > 0.0).then_some(Length::Seconds(left_s))
        }
        Length::Unknown => None,
    }
}

/// The books of a scheduler that would manage all jobs with GPUs of the partitions, held or not. A
/// job of unknown length takes as long as its time limit allows.
pub fn books(seen: &Seen, topology: &Topology, library: &Library, now_s: Seconds) -> State {
    let fifo = policy::find("fifo").expect("it is in the table");
    let mut scheduler = Scheduler::new(replay::fresh(topology), fifo.build(&Settings::default()));
    let places = Places::new(topology.machines.iter().map(|m| m.name.clone()).collect());
    let (learnt, limits) = (Learnt::default(), Limits::default());
    let look = |state: &State, managed: &Managed, about: &mut dyn FnMut(View<'_>)| {
        about(View {
            now: 0.0,
            state,
            managed,
            places: &places,
            seen,
            library,
            learnt: &learnt,
            epoch_s: now_s,
            engine: "",
            limits: &limits,
        });
    };
    let is_here = |job: &SeenJob| {
        let is_early = job.obstacle == Obstacle::Early;
        job.managed && !is_early && !matches!(job.stands, Stands::Over(_))
    };
    let mut jobs: Vec<Arc<Job>> = Vec::new();
    look(&scheduler.state, &Managed::new(), &mut |view| {
        for (key, seen) in seen.jobs.iter().filter(|(_, job)| is_here(job)) {
            let Ok(mut job) = jobs::placeable(view, key, seen) else { continue };
            if let (Length::Unknown, Some(limit_s)) = (job.length, seen.limit_s) {
                let ran_s = seen.started_s.map_or(0.0, |started_s| now_s - started_s);
                job.length = Length::Seconds((limit_s - ran_s).max(1.0));
            }
            jobs.push(Arc::new(job));
        }
    });
    jobs.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s));
    // What cannot be true of a job leaves it waiting.
    let _ = scheduler.observe(0.0, Event::Submitted(jobs));
    // Progress is news only of jobs that are known to run.
    for _ in 0..2 {
        let managed = jobs::managed(&scheduler.state);
        let mut events = Vec::new();
        look(&scheduler.state, &managed, &mut |view| {
            let told = jobs::news(view, &mut Memory::default());
            events.extend(machines::news(view, &told.left, &BTreeMap::new()).0);
            events.extend([told.freed, told.settled, told.jobs].into_iter().flatten());
        });
        for event in events {
            // The engine's own waiting jobs are not over, and whoever is held may be released.
            if !matches!(event, Event::Ended { .. } | Event::Parked { .. }) {
                let _ = scheduler.observe(0.0, event);
            }
        }
    }
    scheduler.state
}

fn what_is_left(job: &JobState, state: &State) -> Job {
    let length = told_left(job, state.now)
        .unwrap_or_else(|| Length::Seconds(state.forecast.left_s(job, state.now)));
    let profile = match job.job.profile.is_known() {
        true => job.job.profile.clone(),
        false => Arc::new(Profile { compute_s: 1.0, ..Profile::clone(&job.job.profile) }),
    };
    Job { submit_s: 0.0, length, profile, ..Job::clone(&job.job) }
}
