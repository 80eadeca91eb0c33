//! Measurements of the scheduler and its simulator.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use hither_core::seed::stream;
use hither_core::topology::Topology;
use hither_sched::compat::muri;
use hither_sched::decide::Scheduler;
use hither_sched::event::{Action, End, Event, Timer};
use hither_sched::job::{Job, JobId};
use hither_sched::network::Network;
use hither_sched::policy::{self, Settings};
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
}

pub fn run(args: &Args) -> Result<()> {
    println!("{}", json!({ "bench": "machine", "facts": machine::facts() }));
    decisions()?;
    if let Some(traces) = &args.traces {
        muri_traces(&traces.join("muri"))?;
        philly(&traces.join("philly.csv"))?;
    }
    growth(args.jobs_max)
}

fn settings_of(policy: &str) -> Result<&'static policy::Entry> {
    policy::find(policy).context("the policy is in the table")
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
        let policy = (settings_of("dally")?.build)(&Settings::default());
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

/// Cost against the number of jobs at the same load.
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
        let policy = (settings_of("dally")?.build)(&Settings::default());
        let summary = simulate("dally", policy, &topology, &scenario, &Options::default())?.summary;
        let cpu_s = machine::cpu_s() - before_s;
        println!(
            "{}",
            json!({
                "bench": "growth", "policy": "dally", "gpus": topology.gpus(), "load": 0.8,
                "jobs": jobs, "events": summary.events, "cpu_s": cpu_s,
                "cpu_us_per_job": 1e6 * cpu_s / jobs as f64,
                "cpu_ns_per_job_log_job": 1e9 * cpu_s / (jobs as f64 * (jobs as f64).log2()),
                "peak_bytes": machine::peak_bytes(),
            })
        );
        jobs *= 10;
    }
    Ok(())
}

/// Time of one decision on 10,000 GPUs while 5,000 jobs wait: a job ends, another arrives, and now
/// and then a timer or a round.
fn decisions() -> Result<()> {
    const WAITING: usize = 5000;
    const DECISIONS: u32 = 20_000;
    let topology = Topology::uniform(25, 50, 8);
    let library = Library::builtin();
    let wanted = Generate {
        jobs: 60_000,
        span_s: Some(1e6),
        seed: 1,
        demand: trace::Demand::Heavy,
        ..Generate::default()
    };
    let mut jobs = trace::generate(&wanted, &library)?.into_iter().map(Arc::new);
    for name in ["dally", "fifo", "first-fit", "srtf", "tiresias"] {
        let mut world = World::new(&topology, settings_of(name)?);
        while world.scheduler.state.waiting < WAITING {
            world.arrive(jobs.next().context("enough jobs were drawn")?);
        }
        let before_s = machine::cpu_s();
        for _ in 0..DECISIONS / 2 {
            world.end_one();
            let job = world.again();
            world.arrive(job);
        }
        let decisions = world.decisions;
        let cpu_s = machine::cpu_s() - before_s;
        println!(
            "{}",
            json!({
                "bench": "decision", "policy": name, "gpus": topology.gpus(),
                "waiting": world.scheduler.state.waiting, "running": world.scheduler.state.running.len(),
                "decisions": decisions, "cpu_us_mean": 1e6 * cpu_s / f64::from(decisions),
            })
        );
    }
    Ok(())
}

/// A driver that is not a simulator: jobs end at random.
struct World {
    scheduler: Scheduler,
    rng: Pcg64Mcg,
    now: f64,
    timers: BTreeMap<Timer, f64>,
    decisions: u32,
    seen: Vec<Arc<Job>>,
}

impl World {
    fn new(topology: &Topology, policy: &policy::Entry) -> Self {
        let state = State::new(topology, Network::new(topology, 1.0), Checkpoints::default());
        Self {
            scheduler: Scheduler::new(state, (policy.build)(&Settings::default())),
            rng: stream(1, "decisions"),
            now: 0.0,
            timers: BTreeMap::new(),
            decisions: 0,
            seen: Vec::new(),
        }
    }

    fn decide(&mut self, event: Event) {
        self.decisions += 1;
        self.tell(event);
        for decision in self.scheduler.decide(self.now) {
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

    /// A second goes by; timers that are due go off.
    fn tick(&mut self) {
        self.now += 1.0;
        let due: Vec<_> = self.timers.iter().filter(|t| *t.1 <= self.now).map(|t| *t.0).collect();
        for timer in due {
            self.timers.remove(&timer);
            self.decide(Event::Timer(timer));
        }
    }

    fn arrive(&mut self, job: Arc<Job>) {
        self.tick();
        self.seen.push(job.clone());
        self.decide(Event::Submitted(vec![job]));
    }

    /// A job like one that arrived before.
    fn again(&mut self) -> Arc<Job> {
        self.seen[self.rng.random_range(0..self.seen.len())].clone()
    }

    fn end_one(&mut self) {
        self.tick();
        let running = &self.scheduler.state.running;
        let nth = self.rng.random_range(0..running.len());
        let id: JobId = *running.iter().nth(nth).expect("as many run");
        self.decide(Event::Ended { job: id, how: End::Finished });
    }
}
