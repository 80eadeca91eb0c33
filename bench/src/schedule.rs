//! Measurements of the scheduler and its simulator.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use hither_core::seed::stream;
use hither_core::topology::Topology;
use hither_sched::compat::muri;
use hither_sched::decide::Scheduler;
use hither_sched::event::{Action, End, Event, Timer};
use hither_sched::forecast::Forecast;
use hither_sched::job::{Job, JobId};
use hither_sched::network::Network;
use hither_sched::policy::{self, Policy, Settings};
use hither_sched::profile::Library;
use hither_sched::sim::{Options, Scenario, simulate};
use hither_sched::state::{Checkpoints, State};
use hither_sched::trace::{self, Generate, ReadOptions};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use serde_json::json;

use crate::machine;

#[derive(Parser)]
pub struct Args {
    /// Folder with the public traces (muri/, philly.csv); without it those rows are left out.
    #[arg(long)]
    traces: Option<PathBuf>,
    /// The largest generated workload of the growth curve.
    #[arg(long, default_value_t = 1_000_000)]
    jobs_max: u64,
    /// Measure this part alone.
    #[arg(long)]
    part: Option<Part>,
    /// Time the decisions of this policy alone, and nothing else.
    #[arg(long)]
    decisions_of: Option<String>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// Single decisions of every policy on a large cluster.
    Decisions,
    /// Whole public traces.
    Traces,
    /// Cost against the number of jobs.
    Growth,
}

pub fn run(args: &Args) -> Result<()> {
    println!("{}", json!({ "bench": "machine", "facts": machine::facts() }));
    let only = args.decisions_of.as_ref().map_or(args.part, |_| Some(Part::Decisions));
    let is_wanted = |part: Part| only.is_none_or(|only| only == part);
    if is_wanted(Part::Decisions) {
        decisions(args.decisions_of.as_deref())?;
    }
    if let Some(traces) = args.traces.as_ref().filter(|_| is_wanted(Part::Traces)) {
        muri_traces(&traces.join("muri"))?;
        philly(&traces.join("philly.csv"))?;
    }
    if is_wanted(Part::Growth) {
        growth(args.jobs_max)?;
    }
    Ok(())
}

fn dally() -> Box<dyn Policy> {
    policy::find("dally").expect("it is in the table").build(&Settings::default())
}

/// Muri's own simulator takes 4.3 to 7.1 CPU seconds for trace1 and 1.7 to 1.9 for trace3 on a
/// machine of two cores.
fn muri_traces(folder: &Path) -> Result<()> {
    for (file, peer_s) in
        [("trace1.csv", Some(4.3)), ("trace3.csv", Some(1.7)), ("trace3_pr.csv", None)]
    {
        let bytes = fs::read(folder.join(file)).with_context(|| format!("{file} in --traces"))?;
        let rows: Vec<muri::Row> =
            trace::muri_rows(&bytes, file)?.into_iter().map(muri::Row::from).collect();
        let policies = [
            ("srtf", muri::Policy::Srtf),
            ("srsf", muri::Policy::Srsf),
            ("tiresias", muri::Policy::Tiresias),
        ];
        for (name, policy) in policies {
            const TIMES: u32 = 20;
            let before_s = machine::cpu_s();
            let mut mean_jct_s = 0.0;
            for _ in 0..TIMES {
                mean_jct_s = muri::run(&rows, 8, 8, policy)?.mean_jct_s;
            }
            let cpu_s = (machine::cpu_s() - before_s) / f64::from(TIMES);
            println!(
                "{}",
                json!({
                    "bench": "muri-compat", "trace": file, "policy": name, "jobs": rows.len(),
                    "cpu_s": cpu_s, "mean_jct_s": mean_jct_s,
                    "peer_cpu_s": peer_s, "times_faster": peer_s.map(|p| p / cpu_s),
                })
            );
        }
    }
    Ok(())
}

/// The whole Philly trace under dally with contention, on a small and a large cluster.
fn philly(file: &Path) -> Result<()> {
    let library = Library::builtin();
    let bytes = fs::read(file).context("philly.csv in --traces")?;
    for (racks, congestion) in [(8, 1.0), (8, 4.0), (64, 1.0), (64, 4.0)] {
        let topology = Topology::uniform(racks, 8, 8);
        let before_s = machine::cpu_s();
        let options = ReadOptions { format: None, seed: 1, library: &library };
        let jobs = trace::read(&bytes, "philly.csv", &options)?.jobs;
        let read_s = machine::cpu_s() - before_s;
        let scenario =
            Scenario { jobs: jobs.into_iter().map(Arc::new).collect(), ..Scenario::default() };
        let options = Options { congestion, ..Options::default() };
        let policy = dally();
        let summary = simulate("dally", policy, &topology, &scenario, &options)?.summary;
        println!(
            "{}",
            json!({
                "bench": "philly", "policy": "dally", "gpus": topology.gpus(), "congestion": congestion,
                "jobs": summary.jobs, "finished": summary.finished, "events": summary.events,
                "read_cpu_s": read_s, "cpu_s": machine::cpu_s() - before_s - read_s,
                "peak_bytes": machine::peak_bytes(),
            })
        );
    }
    Ok(())
}

/// Cost against the number of jobs at the same load; a million of them arrive over about a year.
fn growth(jobs_max: u64) -> Result<()> {
    let library = Library::builtin();
    let topology = Topology::uniform(8, 8, 8);
    let mut jobs = 1000;
    while jobs <= jobs_max {
        let gpus = Some(topology.gpus() as u32);
        let wanted = Generate { jobs, load: Some(0.8), gpus, seed: 1, ..Generate::default() };
        let drawn = trace::generate(&wanted, &library)?;
        let scenario =
            Scenario { jobs: drawn.into_iter().map(Arc::new).collect(), ..Scenario::default() };
        let before_s = machine::cpu_s();
        let policy = dally();
        let summary = simulate("dally", policy, &topology, &scenario, &Options::default())?.summary;
        let cpu_s = machine::cpu_s() - before_s;
        println!(
            "{}",
            json!({
                "bench": "growth", "policy": "dally", "gpus": topology.gpus(), "load": 0.8,
                "jobs": jobs, "events": summary.events, "cpu_s": cpu_s,
                "days": summary.makespan_s / 86_400.0,
                "cpu_us_per_job": 1e6 * cpu_s / jobs as f64,
                "cpu_ns_per_job_log_job": 1e9 * cpu_s / (jobs as f64 * (jobs as f64).log2()),
                "peak_bytes": machine::peak_bytes(),
            })
        );
        jobs *= 10;
    }
    Ok(())
}

/// GPUs of the cluster, and jobs that wait, while decisions are timed.
const GPUS: usize = 10_000;
const WAITING: usize = 5000;
/// Decisions that are timed, and the seconds of the world between two of them: enough rounds for a
/// 99th percentile.
const DECISIONS: usize = 8000;
const STEP_S: f64 = 10.0;
/// A policy that is slow is timed for fewer decisions.
const CPU_S_MAX: f64 = 20.0;

/// Times single decisions of every policy on the same jobs, once with gangs of all sizes running and
/// once with 10,000 jobs of one GPU each.
fn decisions(only: Option<&str>) -> Result<()> {
    let topology = Topology::uniform(25, 50, 8);
    let library = Library::builtin();
    let drawn = |demand, jobs| {
        let wanted = Generate { jobs, span_s: Some(1e6), seed: 1, demand, ..Generate::default() };
        let jobs = trace::generate(&wanted, &library)?;
        Ok::<_, anyhow::Error>(jobs.into_iter().map(Arc::new).collect::<Vec<_>>())
    };
    let gangs = drawn(trace::Demand::Heavy, 30_000)?;
    let ones = trace::Demand::Custom(trace::Weights { gpus: vec![1], weights: vec![1.0] });
    let ones = drawn(ones, 20_000)?;
    for (running, first, then) in [("gangs", &gangs[..0], &gangs), ("ones", &ones[..GPUS], &ones)] {
        for entry in policy::TABLE.iter().filter(|e| only.is_none_or(|name| name == e.name)) {
            let mut world = World::new(&topology, entry);
            world.arrive(first.to_vec());
            for jobs in gangs.chunks(100) {
                if world.scheduler.state.line.len() >= WAITING {
                    break;
                }
                world.arrive(jobs.to_vec());
            }
            let (events, rounds) = world.time(then);
            for (what, times_us) in [("event", events), ("round", rounds)] {
                if let Some(figures) = figures(times_us) {
                    println!(
                        "{}",
                        json!({
                            "bench": "decision", "policy": entry.name, "what": what, "gpus": topology.gpus(),
                            "fill": running, "waiting": world.scheduler.state.line.len(),
                            "running": world.scheduler.state.running.len(), "cpu_us": figures,
                        })
                    );
                }
            }
        }
    }
    Ok(())
}

/// `None` if nothing was timed.
fn figures(mut times_us: Vec<f64>) -> Option<serde_json::Value> {
    times_us.sort_by(f64::total_cmp);
    let at = |q: f64| times_us[((q * times_us.len() as f64) as usize).min(times_us.len() - 1)];
    let max = *times_us.last()?;
    Some(json!({ "count": times_us.len(), "p50": at(0.5), "p99": at(0.99), "max": max }))
}

/// A driver that is not a simulator: jobs end at random.
struct World {
    scheduler: Scheduler,
    rng: Pcg64Mcg,
    now: f64,
    timers: BTreeMap<Timer, f64>,
    /// Time of each decision: of those that a round's timer caused, and of all others.
    rounds_us: Vec<f64>,
    events_us: Vec<f64>,
}

impl World {
    fn new(topology: &Topology, policy: &policy::Entry) -> Self {
        let mut state = State::new(topology, Network::new(topology, 1.0), Checkpoints::default());
        let policy = policy.build(&Settings::default());
        // Clairvoyant policies take lengths for the truth, as in every simulation.
        state.forecast = match policy.is_clairvoyant() {
            true => Forecast::exact(),
            false => Forecast::default(),
        };
        Self {
            scheduler: Scheduler::new(state, policy),
            rng: stream(1, "decisions"),
            now: 0.0,
            timers: BTreeMap::new(),
            rounds_us: Vec::new(),
            events_us: Vec::new(),
        }
    }

    /// Jobs end and arrive in turns. Returns the times of events and of rounds.
    fn time(&mut self, jobs: &[Arc<Job>]) -> (Vec<f64>, Vec<f64>) {
        (self.events_us, self.rounds_us) = Default::default();
        let until_s = machine::cpu_s() + CPU_S_MAX;
        for nth in 0..DECISIONS / 2 {
            if machine::cpu_s() > until_s {
                break;
            }
            self.end_one();
            self.arrive(vec![jobs[nth % jobs.len()].clone()]);
        }
        (std::mem::take(&mut self.events_us), std::mem::take(&mut self.rounds_us))
    }

    fn decide(&mut self, event: Event) {
        let is_round = event == Event::Timer(Timer::Round);
        let before_s = machine::cpu_s();
        self.tell(event);
        let decisions = self.scheduler.decide(self.now);
        let took_us = 1e6 * (machine::cpu_s() - before_s);
        if is_round { &mut self.rounds_us } else { &mut self.events_us }.push(took_us);
        for decision in decisions {
            match decision.action {
                Action::Start { job, .. } => {
                    self.tell(Event::Started(decision.id));
                    let done = self.scheduler.state.job(job).done;
                    self.tell(Event::Progress { job, done, rate: 1.0 });
                }
                Action::Stop { .. } => {
                    self.tell(Event::Stopped { decision: decision.id, kept: None });
                }
                Action::SetTimer { timer, at_s } => {
                    self.timers.insert(timer, at_s);
                }
                Action::Decline { .. } | Action::Failed { .. } | Action::Tuned { .. } => {}
            }
        }
    }

    fn tell(&mut self, event: Event) {
        self.scheduler.observe(self.now, event).expect("this world tells the truth");
    }

    /// Time goes by; timers that are due go off.
    fn tick(&mut self) {
        self.now += STEP_S;
        let due: Vec<_> = self.timers.iter().filter(|t| *t.1 <= self.now).map(|t| *t.0).collect();
        for timer in due {
            self.timers.remove(&timer);
            // Its job may be over.
            if self.scheduler.state.timers.contains_key(&timer) {
                self.decide(Event::Timer(timer));
            }
        }
    }

    fn arrive(&mut self, jobs: Vec<Arc<Job>>) {
        self.tick();
        if !jobs.is_empty() {
            self.decide(Event::Submitted(jobs));
        }
    }

    fn end_one(&mut self) {
        self.tick();
        let running = &self.scheduler.state.running;
        if running.is_empty() {
            return;
        }
        let nth = self.rng.random_range(0..running.len());
        let id: JobId = *running.iter().nth(nth).expect("as many run");
        self.decide(Event::Ended { job: id, how: End::Finished });
    }
}
