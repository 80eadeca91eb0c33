//! The same small workload three times: simulated, on a private Slurm where Hither decides, and on the
//! same Slurm with its own scheduler, topology/tree and `--switches=1@T`. Jobs run as long as their
//! model takes at the tier that they got, so placement decides how long they take.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hither_core::Seconds;
use hither_core::seed::stream;
use hither_core::topology::Topology;
use hither_live::slurm::testbed::{Shape, Testbed};
use hither_sched::cluster::Cluster;
use hither_sched::forecast::Estimate;
use hither_sched::job::{Job, Length, Profile, Terms};
use hither_sched::network::Network;
use hither_sched::policy::{self, Settings};
use hither_sched::sim::{Options, Scenario, simulate};
use hither_sched::world::{Beliefs, Lengths};
use rand::RngExt as _;
use serde_json::json;

use crate::live::epilog;
use crate::machine;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The binary that decides
    #[arg(long, default_value = "target/release/hither")]
    hither: PathBuf,
    /// Empty folder for the clusters
    #[arg(long)]
    folder: PathBuf,
    /// Who runs the jobs beside the simulator: hither, slurm, or both
    #[arg(long, value_delimiter = ',', default_value = "hither,slurm")]
    by: Vec<String>,
    #[arg(long, default_value_t = 24)]
    jobs: u32,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Times, lengths and timers are this much longer, against delays of Slurm, which are not
    #[arg(long, default_value_t = 1.0)]
    stretch: f64,
    /// Let Slurm run examples/slurm/epilog.sh at the end of every job that Hither placed
    #[arg(long)]
    epilog: bool,
}

/// Two racks of four machines of four GPUs.
const SHAPE: Shape = Shape { racks: 2, machines: 4, gpus: 4 };
/// Delay timers, short enough for jobs of half a minute.
const MACHINE_S: Seconds = 8.0;
const RACK_S: Seconds = 12.0;
/// Simulated starts that differ by less may be in any order: Slurm 22.05 starts jobs at a tick of one
/// second.
const TICK_S: Seconds = 1.0;
/// Latency of one step of the all-reduce by level. Costs that come from latency alone do not depend on
/// what else uses the network, so a job that sleeps can stand for them.
const LATENCY_US: [f64; 3] = [0.0, 10_000.0, 60_000.0];

/// Runs for as long as its placement takes: a machine, a rack, or more.
const SCRIPT: &str = r#"#!/bin/bash
echo start $1 $(date +%s.%N) >> runs
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
racks=$(for n in $nodes; do echo $((${n#n} / 4)); done | sort -u | wc -l)
if [ $(echo $nodes | wc -w) = 1 ]; then tier=0; s=$2; elif [ $racks = 1 ]; then tier=1; s=$3; else tier=2; s=$4; fi
sleep $s
echo end $1 $(date +%s.%N) $tier >> runs
"#;

/// What became of a job, in seconds since the first submission.
#[derive(Debug, Clone, Copy)]
struct Ran {
    submit_s: Seconds,
    start_s: Seconds,
    end_s: Seconds,
    tier: u8,
}

impl Ran {
    fn jct_s(&self) -> Seconds {
        self.end_s - self.submit_s
    }
}

pub fn run(args: &Args) -> Result<()> {
    let hither = fs::canonicalize(&args.hither)
        .with_context(|| format!("{}: build it first", args.hither.display()))?;
    fs::create_dir_all(&args.folder)?;
    let folder = fs::canonicalize(&args.folder)?;
    let jobs = workload(args);
    let simulated = simulated(&jobs, args)?;
    print("simulator", args, &simulated, &simulated);
    for by in &args.by {
        let ran = match by.as_str() {
            "hither" => live(&jobs, args, Some(&hither), &folder.join("hither"))?,
            "slurm" => live(&jobs, args, None, &folder.join("slurm"))?,
            other => bail!("--by {other}: expected hither or slurm"),
        };
        print(by, args, &ran, &simulated);
    }
    Ok(())
}

/// Gangs of up to half the cluster that together offer more than it has.
fn workload(args: &Args) -> Vec<Job> {
    let rng = &mut stream(args.seed, "fidelity");
    let mut submit_s = 0.0;
    let mut jobs = Vec::new();
    for n in 0..args.jobs {
        let gpus = [1, 2, 2, 4, 4, 4, 8, 8, 12, 16][rng.random_range(0..10)];
        let profile = Profile {
            name: "half a minute".into(),
            compute_s: args.stretch,
            gradient_bytes: 0.0,
            backward_share: 0.0,
            overlap: 0.0,
            restart_s: 0.0,
            restart_gpu_s: 0.0,
            checkpoint_bytes: 0.0,
            skew: 0.0,
            table: Vec::new(),
            source: String::new(),
        };
        jobs.push(Job {
            name: n.to_string(),
            user: format!("u{}", n % 3),
            gpus,
            terms: Terms::default(),
            gpu_type: None,
            submit_s,
            length: Length::Iterations(f64::from(rng.random_range(12..36))),
            profile: Arc::new(profile),
        });
        submit_s += args.stretch * f64::from(rng.random_range(2..7));
    }
    jobs
}

fn topology(stretch: f64) -> Topology {
    let mut topology = Topology::uniform(SHAPE.racks, SHAPE.machines, SHAPE.gpus);
    for (level, latency_us) in topology.levels.iter_mut().zip(LATENCY_US) {
        level.latency_us = stretch * latency_us;
    }
    topology
}

/// The options of the policy, as flags and as settings.
fn settings(stretch: f64) -> (Vec<String>, Settings) {
    let (machine_s, rack_s) = (stretch * MACHINE_S, stretch * RACK_S);
    let options = format!(
        "timers=fixed machine_s={machine_s:.1} rack_s={rack_s:.1} \
         preempt=false upgrade=false"
    );
    let flags = options.split(' ').flat_map(|o| ["--set".to_owned(), format!("dally.{o}")]);
    let mut settings = Settings::default();
    settings.dally.timers = policy::dally::Timers::Fixed;
    (settings.dally.machine_s, settings.dally.rack_s) = (machine_s, rack_s);
    (settings.dally.preempt, settings.dally.upgrade) = (false, false);
    (flags.collect(), settings)
}

fn simulated(jobs: &[Job], args: &Args) -> Result<BTreeMap<u32, Ran>> {
    let entry = policy::find("dally").context("no dally")?;
    let scenario =
        Scenario { jobs: jobs.iter().cloned().map(Arc::new).collect(), ..Scenario::default() };
    // Live, nobody tells the scheduler anything of these jobs.
    let beliefs = Beliefs { lengths: Lengths::Unknown, profiles: false, ..Beliefs::default() };
    let options = Options { seed: args.seed, beliefs, record: true, ..Options::default() };
    let built = entry.build(&settings(args.stretch).1);
    let record = simulate(entry.name, built, &topology(args.stretch), &scenario, &options)?;
    let ran = |row: &hither_core::record::JobRow| {
        let start_s = row.start_s.unwrap_or(f64::NAN);
        (row.job, Ran { submit_s: row.submit_s, start_s, end_s: row.finish_s, tier: row.tier })
    };
    Ok(record.jobs.iter().map(ran).collect())
}

/// Seconds that the job takes at each tier; one that it cannot have counts as its best.
fn durations(job: &Job, stretch: f64) -> Result<[Seconds; 3]> {
    let topology = topology(stretch);
    let (network, cluster) = (Network::new(&topology, 1.0), Cluster::new(&topology));
    let estimate = Estimate::new(job, &cluster, &network).context("the job fits the cluster")?;
    let [machine_s, rack_s, network_s, ..] = estimate.iteration_s.context("it has a profile")?;
    Ok([machine_s, rack_s, network_s].map(|iteration_s| iteration_s * estimate.iterations))
}

struct Scheduler(Child);

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn live(
    jobs: &[Job],
    args: &Args,
    hither: Option<&Path>,
    dir: &Path,
) -> Result<BTreeMap<u32, Ran>> {
    fs::create_dir_all(dir)?;
    let script = dir.join("job.sh");
    fs::write(&script, SCRIPT)?;
    let pokes = args.epilog && hither.is_some();
    let extra = if pokes { epilog(dir)? } else { String::new() };
    let bed = Testbed::start(&dir.join("slurm"), SHAPE, &extra).map_err(anyhow::Error::msg)?;
    let _scheduler = hither.map(|hither| start(&bed, args, hither, dir)).transpose()?;
    let begin = Instant::now();
    let begin_s = hither_live::slurm::unix_s();
    let folder = dir.to_string_lossy().into_owned();
    let mut submitted: BTreeMap<u32, Seconds> = BTreeMap::new();
    let wait_s = args.stretch * RACK_S;
    for (n, job) in (0..).zip(jobs) {
        let due = Duration::from_secs_f64(job.submit_s);
        thread::sleep(due.saturating_sub(begin.elapsed()));
        let gpus = job.gpus;
        let mut options = vec!["-D".to_owned(), folder.clone()];
        match hither {
            Some(_) => options.extend(["-H".into(), format!("--gpus={gpus}")]),
            None => {
                let nodes = gpus.div_ceil(SHAPE.gpus);
                options.extend([format!("-N{nodes}"), format!("--gpus-per-node={}", gpus / nodes)]);
                if nodes > 1 {
                    options.push(format!("--switches=1@0:{wait_s:.0}"));
                }
            }
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let words: Vec<String> = [n.to_string()]
            .into_iter()
            .chain(durations(job, args.stretch)?.iter().map(|s| format!("{s:.3}")))
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        submitted.insert(n, begin.elapsed().as_secs_f64());
        bed.submit(&options, &script, &words).map_err(anyhow::Error::msg)?;
    }
    await_ends(dir, jobs.len(), args.stretch)?;
    let runs = fs::read_to_string(dir.join("runs"))?;
    let mut ran: BTreeMap<u32, Ran> = BTreeMap::new();
    for line in runs.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (n, at_s): (u32, f64) = (words[1].parse()?, words[2].parse::<f64>()? - begin_s);
        match words[0] {
            "start" => {
                let submit_s = submitted[&n];
                ran.insert(n, Ran { submit_s, start_s: at_s, end_s: f64::NAN, tier: 0 });
            }
            _ => {
                let row = ran.get_mut(&n).context("it ended without a start")?;
                (row.end_s, row.tier) = (at_s, words[3].parse()?);
            }
        }
    }
    Ok(ran)
}

fn start(bed: &Testbed, args: &Args, hither: &Path, dir: &Path) -> Result<Scheduler> {
    let mut command = bed.command(hither);
    command.args(["schedule", "--act", "--partition", "gpu", "--release-after-s", "0"]);
    command.args(settings(args.stretch).0).arg("--state").arg(dir.join("state"));
    let log = fs::File::create(dir.join("hither.log"))?;
    let child = command.stdin(Stdio::null()).stderr(log).spawn()?;
    thread::sleep(Duration::from_secs(1));
    Ok(Scheduler(child))
}

fn await_ends(dir: &Path, jobs: usize, stretch: f64) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(900).mul_f64(stretch.max(1.0));
    loop {
        let runs = fs::read_to_string(dir.join("runs")).unwrap_or_default();
        if runs.lines().filter(|line| line.starts_with("end")).count() == jobs {
            return Ok(());
        }
        if Instant::now() > limit {
            bail!("the jobs have not ended in time; see {}", dir.display());
        }
        thread::sleep(Duration::from_millis(200));
    }
}

fn print(by: &str, args: &Args, ran: &BTreeMap<u32, Ran>, simulated: &BTreeMap<u32, Ran>) {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let jct_s: Vec<f64> = ran.values().map(Ran::jct_s).collect();
    let errors: Vec<f64> =
        ran.iter().map(|(n, ran)| (ran.jct_s() / simulated[n].jct_s() - 1.0).abs()).collect();
    // Pairs whose simulated order is clear, and those of them that came about the other way round.
    let (mut pairs, mut inverted) = (0u32, 0u32);
    for (a, first) in simulated {
        for (b, second) in simulated {
            if first.start_s + TICK_S < second.start_s {
                pairs += 1;
                inverted += u32::from(ran[a].start_s >= ran[b].start_s);
            }
        }
    }
    let makespan_s = ran.values().map(|r| r.end_s).fold(0.0, f64::max);
    let tiers: Vec<usize> =
        (0..3).map(|tier| ran.values().filter(|r| r.tier == tier).count()).collect();
    let mut row = json!({
        "what": "fidelity", "by": by, "seed": args.seed, "stretch": args.stretch,
        "epilog": args.epilog, "jobs": ran.len(), "jct_mean_s": mean(&jct_s),
        "makespan_s": makespan_s, "tiers": tiers, "jct_error_mean": mean(&errors),
        "jct_error_max": errors.iter().copied().fold(0.0, f64::max),
        "pairs": pairs, "inverted": inverted,
    });
    row["machine"] = machine::facts();
    println!("{row}");
}
