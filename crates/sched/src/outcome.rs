//! Turns what happens in a simulation into the rows of [`hither_core::record`].

mod links;

use std::collections::BTreeSet;
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::{EventRow, Happening, JobRow, JobState, Reason, RunRecord, Summary};
use hither_core::summary::Quantiles;

use crate::cluster::{Placement, Status};
use crate::contention::LinkLoad;
use crate::event::{Action, Decision, End, Event};
use crate::job::JobId;
use crate::network::{Shape, measured_step_s};
use crate::state::State;
use crate::world::{Truth, World};
use links::LinkMeter;

/// Measures one job.
#[derive(Debug, Clone, Default)]
struct Meter {
    first_start_s: Option<Seconds>,
    finish_s: Option<(Seconds, bool)>,
    /// Time holding GPUs by the end.
    held_s: Seconds,
    /// Since when the current share of communication holds.
    pace_since_s: Seconds,
    comm_share: f64,
    comm_s: Seconds,
    run_since_s: Seconds,
    running: bool,
    placement: Option<Arc<Placement>>,
    preemptions: u32,
    failures: u32,
}

/// Integrals over time of what the whole cluster does.
#[derive(Debug, Default)]
struct Gauge {
    last_s: Seconds,
    busy: u64,
    fragmentation: f64,
    busy_gpu_s: f64,
    fragmentation_s: f64,
}

/// Collects rows and figures while a simulation runs.
#[derive(Debug)]
pub struct Recorder {
    /// Whether events and jobs are wanted, or the summary alone.
    keep_rows: bool,
    events: Vec<EventRow>,
    meters: Vec<Meter>,
    gauge: Gauge,
    links: LinkMeter,
    tier_gpu_s: Vec<f64>,
    event_count: u64,
    extrapolated: BTreeSet<String>,
}

impl Recorder {
    pub fn new(jobs: usize, levels: usize, keep_rows: bool) -> Self {
        Self {
            keep_rows,
            events: Vec::new(),
            meters: vec![Meter::default(); jobs],
            gauge: Gauge::default(),
            links: LinkMeter::default(),
            tier_gpu_s: vec![0.0; levels],
            event_count: 0,
            extrapolated: BTreeSet::new(),
        }
    }

    /// Whether rows for jobs and events are wanted.
    pub fn keeps_rows(&self) -> bool {
        self.keep_rows
    }

    /// From now on the links of each level are loaded so.
    pub fn links(&mut self, now: Seconds, loads: Vec<LinkLoad>) {
        self.links.set(now, loads);
    }

    pub fn before(&mut self, now: Seconds, event: &Event, state: &State) {
        self.event_count += 1;
        let gauge = &mut self.gauge;
        let elapsed = now - gauge.last_s;
        gauge.busy_gpu_s += elapsed * gauge.busy as f64;
        gauge.fragmentation_s += elapsed * gauge.fragmentation;
        gauge.last_s = now;
        match event {
            Event::Submitted(jobs) => {
                let first = state.jobs.next_id();
                for (id, job) in (first..).zip(jobs) {
                    self.note(now, Happening::Arrive { job: id, gpus: job.gpus });
                }
            }
            &Event::Ended { job, how } => {
                let finished = how == End::Finished;
                self.stop(now, job, state);
                let meter = &mut self.meters[job as usize];
                if meter.finish_s.is_none() {
                    meter.finish_s = Some((now, finished));
                    meter.held_s = state.job(job).held_at(now);
                    let happening = if finished {
                        Happening::Finish { job }
                    } else {
                        Happening::Cancel { job }
                    };
                    self.note(now, happening);
                }
            }
            &Event::Machine { machine, status } => match status {
                Status::Up => self.note(now, Happening::MachineUp { machine }),
                Status::Draining => {}
                Status::Gone => self.note(now, Happening::MachineDown { machine }),
            },
            _ => {}
        }
    }

    pub fn after(&mut self, now: Seconds, decisions: &[Decision], state: &State) {
        let keep_rows = self.keep_rows;
        for decision in decisions {
            let why = || keep_rows.then(|| decision.why.told(&state.cluster.levels).to_string());
            match &decision.action {
                Action::Start { job, placement } => {
                    self.start(now, *job, placement, why(), state);
                }
                &Action::Stop { job, reason } => {
                    self.stop(now, job, state);
                    self.meters[job as usize].preemptions += 1;
                    self.note(now, Happening::Preempt { job, reason, why: why() });
                }
                &Action::Failed { job } => {
                    self.stop(now, job, state);
                    self.meters[job as usize].failures += 1;
                    let reason = Reason::Failure;
                    self.note(now, Happening::Preempt { job, reason, why: why() });
                }
                &Action::Decline { job } => {
                    if let Some(why) = why() {
                        self.note(now, Happening::Decline { job, why });
                    }
                }
                Action::Tuned { gpus, timers_s } => {
                    let names = state.cluster.levels.iter().map(|level| format!("{level}_s"));
                    let timers_s = names.zip(timers_s.iter().copied()).collect();
                    self.note(now, Happening::Timers { gpus: *gpus, timers_s });
                }
                Action::SetTimer { .. } => {}
            }
        }
        let free = state.cluster.free_total();
        let fragmented = state.cluster.fragmented;
        self.gauge.fragmentation =
            if free == 0 { 0.0 } else { f64::from(fragmented) / f64::from(free) };
    }

    /// From now on this share of the job's running time is exposed communication.
    pub fn pace(&mut self, now: Seconds, id: JobId, share: f64, truth: &Truth, shape: &Shape) {
        let meter = &mut self.meters[id as usize];
        if meter.running {
            bank(meter, now);
        }
        meter.pace_since_s = now.max(truth.pace.map_or(now, |pace| pace.begin_s));
        meter.comm_share = share;
        let profile = &truth.job.profile;
        if !profile.table.is_empty() && shape.gpus > 1 && measured_step_s(profile, shape).1 {
            self.extrapolated.insert(profile.name.clone());
        }
    }

    fn start(
        &mut self,
        now: Seconds,
        id: JobId,
        placement: &Arc<Placement>,
        why: Option<String>,
        state: &State,
    ) {
        let meter = &mut self.meters[id as usize];
        meter.first_start_s.get_or_insert(now);
        meter.running = true;
        meter.run_since_s = now;
        meter.placement = Some(placement.clone());
        self.gauge.busy += u64::from(state.job(id).gpus());
        if self.keep_rows {
            let machines = machines(placement);
            let tier = placement.tier.0;
            self.note(now, Happening::Start { job: id, tier, machines, why });
        }
    }

    fn stop(&mut self, now: Seconds, id: JobId, state: &State) {
        let meter = &mut self.meters[id as usize];
        if !std::mem::take(&mut meter.running) {
            return;
        }
        bank(meter, now);
        meter.comm_share = 0.0;
        let gpus = state.job(id).gpus();
        self.gauge.busy -= u64::from(gpus);
        if let (Some(placement), true) = (&meter.placement, gpus > 1) {
            self.tier_gpu_s[placement.tier.level()] += (now - meter.run_since_s) * f64::from(gpus);
        }
    }

    fn note(&mut self, t: Seconds, what: Happening) {
        if self.keep_rows {
            self.events.push(EventRow { t, what });
        }
    }

    /// The record of a run that is over. `sim_cpu_s` is the driver's to fill in.
    pub fn record(self, policy: &str, seed: u64, world: &World, state: &State) -> RunRecord {
        let first_s = world.jobs.first().map_or(0.0, |truth| truth.job.submit_s);
        let (mut jct_s, mut queue_s, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        let (mut last_s, mut comm_s_total, mut run_s_total) = (first_s, 0.0, 0.0);
        let (mut preemptions, mut failures, mut comm_gpu_s) = (0, 0, 0.0);
        for (id, (truth, meter)) in (0..).zip(world.jobs.iter().zip(&self.meters)) {
            let row = job_row(id, truth, meter, state.now);
            last_s = f64::max(last_s, row.finish_s);
            comm_s_total += row.comm_s.unwrap_or(0.0);
            comm_gpu_s += row.comm_s.unwrap_or(0.0) * f64::from(row.gpus);
            run_s_total += row.run_s;
            preemptions += u64::from(row.preemptions);
            failures += u64::from(row.failures);
            if row.state == JobState::Finished {
                jct_s.push(row.jct_s());
                queue_s.push(row.queue_s);
            }
            if self.keep_rows {
                rows.push(row);
            }
        }
        let jobs = world.jobs.len();
        let makespan_s = last_s - first_s;
        let gpus: u64 = state.cluster.machines.iter().map(|m| u64::from(m.gpus)).sum();
        let tier_total: f64 = self.tier_gpu_s.iter().sum();
        let summary = Summary {
            policy: policy.into(),
            clairvoyant: false,
            seed,
            jobs: jobs as u64,
            finished: jct_s.len() as u64,
            cancelled: (jobs - jct_s.len()) as u64,
            jct_s: Quantiles::from_values(&jct_s),
            queue_s: Quantiles::from_values(&queue_s),
            makespan_s,
            gpu_utilisation: ratio(self.gauge.busy_gpu_s, makespan_s * gpus as f64),
            useful_utilisation: Some(ratio(
                self.gauge.busy_gpu_s - comm_gpu_s,
                makespan_s * gpus as f64,
            )),
            fragmentation: Some(ratio(self.gauge.fragmentation_s, makespan_s)),
            comm_s_total: Some(comm_s_total),
            comm_share: Some(ratio(comm_s_total, run_s_total)),
            tier_share: self.tier_gpu_s.iter().map(|&t| ratio(t, tier_total)).collect(),
            preemptions,
            failures,
            events: self.event_count,
            sim_cpu_s: 0.0,
            notes: self.extrapolated.iter().map(|name| extrapolation_note(name)).collect(),
        };
        let mut events = self.events;
        events.extend(self.links.rows());
        events.sort_by(|a, b| a.t.total_cmp(&b.t)); // stable: what happened at one moment keeps its order
        RunRecord { summary, jobs: rows, events }
    }
}

fn extrapolation_note(profile: &str) -> String {
    format!(
        "profile {profile}: some placements lie beyond the measured ones; \
         their step time was taken from the nearest measured number of GPUs"
    )
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn bank(meter: &mut Meter, now: Seconds) {
    meter.comm_s += (now - meter.pace_since_s).max(0.0) * meter.comm_share;
}

fn machines(placement: &Placement) -> Vec<(u32, u32)> {
    placement.slots.iter().map(|s| (s.machine, s.gpus)).collect()
}

fn job_row(id: u32, truth: &Truth, meter: &Meter, now: Seconds) -> JobRow {
    let job = &truth.job;
    let (finish_s, finished) = meter.finish_s.unwrap_or((now, false));
    JobRow {
        job: id,
        name: job.name.clone(),
        user: job.user.clone(),
        model: job.profile.name.clone(),
        gpus: job.gpus,
        submit_s: job.submit_s,
        start_s: meter.first_start_s,
        finish_s,
        run_s: meter.held_s,
        // Rounding may leave a job that never waited a hair below zero.
        queue_s: (finish_s - job.submit_s - meter.held_s).max(0.0),
        comm_s: Some(meter.comm_s),
        ideal_s: truth.ideal_s(),
        tier: meter.placement.as_ref().map_or(0, |p| p.tier.0),
        preemptions: meter.preemptions,
        failures: meter.failures,
        state: if finished { JobState::Finished } else { JobState::Cancelled },
        machines: meter.placement.as_ref().map_or_else(Vec::new, |p| machines(p)),
    }
}
