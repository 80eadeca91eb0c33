//! What the scheduler has to show: jobs, machines, timers and the latest decisions, as plain values
//! for tables, JSON, metrics and the page.

use std::collections::HashMap;
use std::fmt::Write as _;

use hither_core::Seconds;
use hither_sched::event::{Timer, Why};
use hither_sched::job::JobId;
use hither_sched::state::{JobState, Phase, State};
use serde::{Deserialize, Serialize};

use crate::drive::Counters;
use crate::engine::{Key, Seen, Stands};
use crate::jobs;
use crate::journal::{Said, Setup};
use crate::places::{Places, tier_name};
use crate::say;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Unix time.
    pub at_s: Seconds,
    pub partitions: Vec<String>,
    pub policy: String,
    /// Whether decisions are carried out.
    pub acts: bool,
    pub jobs: Vec<JobRow>,
    pub machines: Vec<MachineRow>,
    /// The latest decisions, oldest first.
    pub log: Vec<Said>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRow {
    /// The engine's id.
    pub job: String,
    pub name: String,
    pub user: String,
    pub gpus: u32,
    pub model: String,
    /// waiting, barred, starting, running, stopping.
    pub phase: String,
    /// The tier that it has or is promised; empty while it waits.
    pub tier: String,
    /// The best tier that it could ever have.
    pub best: String,
    /// Node and GPUs there.
    pub nodes: Vec<(String, u32)>,
    /// Seconds in this phase.
    pub since_s: Seconds,
    /// Seconds until its delay timer runs out.
    pub timer_s: Option<Seconds>,
    /// Iterations done; `None`: nobody knows.
    pub done: Option<f64>,
    pub starts: u32,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineRow {
    pub node: String,
    pub rack: String,
    pub gpus: u32,
    pub gpu_type: String,
    pub free: u32,
    /// GPUs that jobs hold which Hither does not manage.
    pub foreign: u32,
    /// The engine's word for its state.
    pub state: String,
    /// Managed jobs and their GPUs here.
    pub jobs: Vec<(String, u32)>,
}

/// Where the rows are made from.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub state: &'a State,
    pub places: &'a Places,
    pub racks: &'a [String],
    pub setup: &'a Setup,
    /// `None`: nobody looks at the cluster at present.
    pub seen: Option<&'a Seen>,
    /// Why jobs may not start now.
    pub bars: Option<&'a HashMap<Key, String>>,
    pub acts: bool,
}

/// Of each waiting job its number in line, and who stands before it.
type Ahead = HashMap<JobId, (usize, Option<JobId>)>;

pub fn status(source: Source<'_>, log: Vec<Said>, at_s: Seconds) -> Status {
    let now = at_s - source.setup.epoch_s;
    let mut ids: Vec<JobId> = jobs::managed(source.state).into_values().collect();
    ids.sort_unstable();
    let line = source.state.line.by_claim();
    // Behind whom each waiting job stands, and where.
    let ahead = line
        .iter()
        .zip(1usize..)
        .map(|(&id, at)| (id, (at, line.get(at.wrapping_sub(2)).copied())));
    let ahead: Ahead = ahead.collect();
    Status {
        at_s,
        partitions: source.setup.partitions.clone(),
        policy: source.setup.policy.clone(),
        acts: source.acts,
        jobs: ids.iter().map(|&id| job_row(source, &ahead, id, now)).collect(),
        machines: machine_rows(source, &ids),
        log,
    }
}

fn job_row(source: Source<'_>, ahead: &Ahead, id: JobId, now: Seconds) -> JobRow {
    let job = source.state.job(id);
    let phase = match &job.phase {
        Phase::Waiting => "waiting",
        Phase::Parked => "barred",
        Phase::Starting(_) => "starting",
        Phase::Running(_) => "running",
        Phase::Stopping(_) => "stopping",
        Phase::Over => "over",
    };
    let run = job.run();
    let place = |(machine, gpus): (u32, u32)| (source.places.name(machine).to_owned(), gpus);
    let slots = run.map_or(&[][..], |run| &run.placement.slots);
    let timer = source.state.timers.get(&Timer::Job(id));
    let seen = source.seen.and_then(|seen| seen.jobs.get(&job.job.name));
    JobRow {
        job: job.job.name.clone(),
        name: seen.map_or_else(String::new, |seen| seen.name.clone()),
        user: job.job.user.clone(),
        gpus: job.gpus(),
        model: job.job.profile.name.clone(),
        phase: phase.into(),
        tier: run.map_or_else(String::new, |run| tier_name(source.state, run.placement.tier)),
        best: tier_name(source.state, job.best),
        nodes: slots.iter().map(|slot| place((slot.machine, slot.gpus))).collect(),
        since_s: (now - job.since_s).max(0.0),
        timer_s: timer.map(|at_s| (at_s - now).max(0.0)),
        done: has_pace(job).then(|| job.done_at(now)),
        starts: job.starts,
        why: why(source, ahead, id, job),
    }
}

/// The reason of a job in words. One that waits is told what it waits for: GPUs are free for it or not, and whom it
/// stands behind.
fn why(source: Source<'_>, ahead: &Ahead, id: JobId, job: &JobState) -> String {
    let state = source.state;
    let reason = say::why(job.why, state);
    match (&job.phase, job.why) {
        (Phase::Parked, _) => {
            let words = source.bars.and_then(|bars| bars.get(&job.job.name));
            words.cloned().unwrap_or(reason)
        }
        (Phase::Waiting, why) => {
            let gang = job.demand();
            let fits = state.cluster.best_pool(gang, job.pool).is_some();
            let free: u32 = state
                .cluster
                .pools_for(job.pool)
                .map(|p| state.cluster.free_gpus(p))
                .max()
                .unwrap_or(0);
            let what = match fits {
                true => String::new(),
                false if free >= gang.gpus => {
                    format!("{} GPUs, and the {free} free ones do not fit it together", gang.gpus)
                }
                false => format!("{} GPUs, of which {free} are free", gang.gpus),
            };
            let key = |other: JobId| state.job(other).job.name.clone();
            let place = match ahead.get(&id) {
                Some((_, None)) => "; first in line".to_owned(),
                Some(&(at, Some(other))) => {
                    format!("; number {at} in line, behind job {}", key(other))
                }
                None => String::new(),
            };
            match why {
                Why::Submitted if what.is_empty() => format!("{reason}{place}"),
                _ if what.is_empty() => format!("{reason}{place}"),
                Why::Submitted => format!("waits for {what}{place}"),
                _ => format!("waits for {what}{place}; {reason}"),
            }
        }
        _ => reason,
    }
}

fn has_pace(job: &JobState) -> bool {
    job.done > 0.0 || job.run().is_some_and(|run| run.pace.rate > 0.0)
}

fn machine_rows(source: Source<'_>, ids: &[JobId]) -> Vec<MachineRow> {
    let mut on: HashMap<u32, Vec<(String, u32)>> = HashMap::new();
    for &id in ids {
        let job = source.state.job(id);
        // A job that is being stopped still holds what it had.
        let run = match &job.phase {
            Phase::Stopping(stop) => Some(&stop.run),
            _ => job.run(),
        };
        for slot in run.map_or(&[][..], |run| &run.placement.slots) {
            on.entry(slot.machine).or_default().push((job.job.name.clone(), slot.gpus));
        }
    }
    let row = |(id, machine): (u32, &hither_sched::cluster::MachineState)| {
        let node = source.places.name(id);
        let seen = source.seen.and_then(|seen| seen.nodes.get(node));
        let cluster = &source.state.cluster;
        MachineRow {
            node: node.into(),
            rack: source.racks.get(machine.within[1] as usize).cloned().unwrap_or_default(),
            gpus: machine.gpus,
            gpu_type: cluster.pool_names[machine.pool as usize].clone(),
            free: machine.free,
            foreign: machine.foreign,
            state: seen.map_or("unknown", |seen| &seen.state).into(),
            jobs: on.remove(&id).unwrap_or_default(),
        }
    };
    (0..).zip(&source.state.cluster.machines).map(row).collect()
}

/// Metrics in Prometheus' text form.
pub fn metrics(source: Source<'_>, counters: &Counters, looked_s: Option<Seconds>) -> String {
    let state = source.state;
    let mut text = String::new();
    let mut say = |name: &str, kind: &str, help: &str, rows: &[(&str, f64)]| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    };
    let machines = &state.cluster.machines;
    let sum = |of: fn(&hither_sched::cluster::MachineState) -> u32| {
        machines.iter().map(of).map(f64::from).sum::<f64>()
    };
    let gpus = [
        ("{state=\"free\"}", sum(|m| m.free)),
        ("{state=\"taken\"}", sum(|m| m.taken)),
        ("{state=\"foreign\"}", sum(|m| m.foreign)),
        ("{state=\"total\"}", sum(|m| m.gpus)),
    ];
    say("hither_gpus", "gauge", "GPUs of the managed partitions.", &gpus);
    let jobs = [
        ("{phase=\"waiting\"}", state.line.len() as f64),
        ("{phase=\"running\"}", state.running.len() as f64),
        ("{phase=\"in_flight\"}", state.in_flight.len() as f64),
    ];
    say("hither_jobs", "gauge", "Managed jobs, and decisions in flight.", &jobs);
    let held = source.seen.map_or(0, |seen| {
        seen.jobs.values().filter(|job| job.managed && job.stands == Stands::Held).count()
    });
    say("hither_jobs_held", "gauge", "Held jobs of the managed partitions.", &[("", held as f64)]);
    let total = [
        ("hither_looks_total", "Looks at the cluster.", counters.looks),
        ("hither_turns_total", "Decisions asked for.", counters.turns),
        ("hither_starts_total", "Starts decided.", counters.starts),
        ("hither_stops_total", "Stops decided.", counters.stops),
        (
            "hither_refusals_total",
            "Decisions that the cluster did not carry out.",
            counters.refusals,
        ),
        ("hither_orders_total", "Orders given to the cluster.", counters.orders),
        ("hither_complaints_total", "Orders that the cluster rejected.", counters.complaints),
        ("hither_failures_total", "Looks and orders without an answer.", counters.failures),
    ];
    for (name, help, value) in total {
        say(name, "counter", help, &[("", value as f64)]);
    }
    if let Some(looked_s) = looked_s {
        let name = "hither_last_look_seconds";
        say(name, "gauge", "Unix time of the last answer.", &[("", looked_s)]);
    }
    text
}
