//! Training over MPI on emulated machines: the wall-clock time to given scores, by mode, placement and speed of
//! the links, with what was computed, what was waited for, and what the counted work and bytes predict.
//!
//! All machines share the cores of this one, so times of computing are those of a crowd. The time in which the
//! run waits for messages stands apart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use hither_core::record::train::{Machine, Round, Work};
use hither_live::slurm::testnet::{Links, Network};
use serde_json::{Value, json};

use crate::machine;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The binary to measure, built with `--features mpi`
    #[arg(long, default_value = "target/release/hither")]
    hither: PathBuf,
    /// Empty folder for the graph and the runs
    #[arg(long)]
    folder: PathBuf,
    #[arg(long, value_delimiter = ',', default_value = "llcg,llcg-stale,psgd-pa,ggs")]
    modes: Vec<String>,
    /// Speeds of NICs in Gbit/s; a rack's uplink, which its machines share, is as fast as one NIC
    #[arg(long, value_delimiter = ',', default_value = "10,1,0.1")]
    gbit: Vec<f64>,
    /// Validation scores to reach
    #[arg(long, value_delimiter = ',', default_value = "0.55,0.62")]
    targets: Vec<f64>,
    #[arg(long, default_value_t = 20_000)]
    nodes: u32,
    #[arg(long, default_value_t = 30)]
    rounds: u32,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Also measure DGL's own distributed trainer with this Python (`bench/train/setup.sh` makes one); run from the
    /// root of the repository
    #[arg(long, value_name = "PYTHON")]
    dgl: Option<PathBuf>,
}

/// Workers; the server is one rank more.
const PARTS: u32 = 8;
/// Three racks, each of which has room for all ranks.
const RACKS: u32 = 3;
const MACHINES: u32 = PARTS + 1;
/// Options of every run: small batches, so that one round is short on two cores.
const TRAIN: &[&str] = &["--batch", "64", "--fanout", "5", "--hidden", "64", "--eval-every", "1"];
const GRAPH: &str = "bench.graph.safetensors";
/// What trains with DGL, with the options of `TRAIN`.
const DGL: &str = "bench/train/dgl_distributed.py";
/// How much faster matrix products are than sums, as in the default of `--machine`.
const PRODUCTS_TO_SUMS: f64 = 2.0;

/// Where the ranks are: so many on each machine, in this order.
fn placements() -> [(&'static str, Vec<(u32, u32)>); 3] {
    let ranks = PARTS + 1;
    let over_racks = (0..ranks).map(|n| (n % RACKS * MACHINES + n / RACKS, 1));
    [
        ("machine", vec![(0, ranks)]),
        ("rack", (0..ranks).map(|n| (n, 1)).collect()),
        ("network", over_racks.collect()),
    ]
}

pub fn run(args: &Args) -> Result<()> {
    let hither = fs::canonicalize(&args.hither)
        .with_context(|| format!("{}: build it first", args.hither.display()))?;
    fs::create_dir_all(&args.folder)?;
    let folder = fs::canonicalize(&args.folder)?;
    let bench = Bench { args, hither, folder };
    let sums_per_s = bench.prepare()?;
    if let Some(python) = &args.dgl {
        let (graph, cut) = (bench.path(GRAPH), bench.path("dgl"));
        done(Command::new(python).arg(DGL).arg("cut").args([graph, cut]))?;
    }
    for (at, gbit) in args.gbit.iter().enumerate() {
        let links = Links { nic_mbit: 1e3 * gbit, uplink_mbit: 1e3 * gbit };
        let network = Network::start(RACKS, MACHINES, links).map_err(anyhow::Error::msg)?;
        for (placement, ranks) in placements() {
            // On one machine links are not used: once is enough.
            if placement == "machine" && at > 0 {
                continue;
            }
            for mode in &args.modes {
                let case = Case { mode, placement, ranks: &ranks, gbit: *gbit, sums_per_s };
                println!("{}", bench.measure(&network, &case)?);
            }
            if let (Some(python), true) = (&args.dgl, placement != "machine") {
                println!("{}", bench.measure_dgl(&network, python, placement, &ranks, *gbit)?);
            }
        }
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a Args,
    hither: PathBuf,
    folder: PathBuf,
}

/// One run.
struct Case<'a> {
    mode: &'a str,
    placement: &'a str,
    ranks: &'a [(u32, u32)],
    gbit: f64,
    /// Multiply–adds per second of one core in sums.
    sums_per_s: f64,
}

impl Case<'_> {
    fn machine(&self) -> Machine {
        Machine {
            sums_per_s: self.sums_per_s,
            products_per_s: PRODUCTS_TO_SUMS * self.sums_per_s,
            link_bytes_per_s: self.gbit * 1e9 / 8.0,
        }
    }
}

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn hither(&self, words: &[&str]) -> Result<()> {
        done(Command::new(&self.hither).arg("-q").args(words))
    }

    /// Makes the graph and its parts, and returns the multiply–adds in sums per second of one core.
    fn prepare(&self) -> Result<f64> {
        let (nodes, parts) = (self.args.nodes.to_string(), PARTS.to_string());
        let (graph, cut) = (self.path(GRAPH), self.path("parts"));
        let family = ["dataset", "generate", "--family", "cut-homophily", "--features", "128"];
        let made = ["--nodes", &nodes, "--seed", "1", "--force", "-o", text(&graph)?];
        self.hither(&[&family[..], &made].concat())?;
        let into = ["--write", text(&cut)?, "--force"];
        self.hither(&[&["partition", text(&graph)?, "--parts", &parts][..], &into].concat())?;
        let out = self.path("single");
        let run = ["--threads", "1", "train", text(&cut)?, "--mode", "single", "--rounds", "10"];
        self.hither(&[&run[..], TRAIN, &["--force", "-o", text(&out)?]].concat())?;
        let rounds = rounds(&out)?;
        let work: Work = rounds.iter().map(|round| round.work.workers).sum();
        let seconds: f64 = rounds.iter().map(|round| round.time.local_s).sum();
        Ok((work.sums as f64 + work.products as f64 / PRODUCTS_TO_SUMS) / seconds)
    }

    fn measure(&self, network: &Network, case: &Case) -> Result<Value> {
        let out = self.path(&format!("{}-{}-{}", case.mode, case.placement, case.gbit));
        let machine = case.machine();
        let speed = format!("{},{}", machine.sums_per_s / 1e9, machine.products_per_s / 1e9);
        let (parts, gbit) = (self.path("parts"), case.gbit.to_string());
        let (all_rounds, seed) = (self.args.rounds.to_string(), self.args.seed.to_string());
        let words = ["-q", "train", text(&parts)?, "--mode", case.mode, "--rounds", &all_rounds];
        let more = ["--seed", &seed, "--link-gbit", &gbit, "--machine", &speed];
        let before = kernel_bytes(network, case.ranks)?;
        let mut mpirun = network.mpirun(&self.folder, case.ranks).map_err(anyhow::Error::msg)?;
        mpirun.arg(&self.hither).args(words).args(more).args(TRAIN);
        done(mpirun.args(["--force", "-o", text(&out)?]))?;
        let kernel = kernel_bytes(network, case.ranks)? - before;
        let rounds = rounds(&out)?;
        let counted: u64 = rounds.iter().map(|round| round.bytes.total()).sum();
        let reached: Vec<Value> =
            self.args.targets.iter().map(|target| reached(&rounds, *target, &machine)).collect();
        Ok(json!({
            "what": "distributed",
            "mode": case.mode,
            "placement": case.placement,
            "gbit": case.gbit,
            "ranks": PARTS + 1,
            "nodes": self.args.nodes,
            "best_valid": rounds.iter().filter_map(|round| round.valid).fold(0.0, f64::max),
            "reached": reached,
            "all_rounds": spent(&rounds, &machine),
            "counted_bytes": counted,
            "kernel_bytes": kernel,
            "sums_per_s": case.sums_per_s,
            "machine": machine::facts(),
        }))
    }
}

impl Bench<'_> {
    /// DGL's trainer on the machines of the workers: each has a server with its part, and a trainer.
    fn measure_dgl(
        &self,
        network: &Network,
        python: &Path,
        placement: &str,
        ranks: &[(u32, u32)],
        gbit: f64,
    ) -> Result<Value> {
        let workers = &ranks[1..];
        // The link of an environment says where its packages are: it is not followed.
        let (python, script) = (std::path::absolute(python)?, fs::canonicalize(DGL)?);
        let addresses: Vec<String> =
            workers.iter().map(|(machine, _)| network.address(*machine)).collect();
        let before = kernel_bytes(network, workers)?;
        let mut running = vec![];
        for (number, (machine, _)) in workers.iter().enumerate() {
            let mut command = network.on(*machine, &python);
            command.args(["-W", "ignore"]).arg(&script).arg("machine").arg(self.path("dgl"));
            command.args(["--number", &number.to_string(), "--addresses", &addresses.join(",")]);
            command.args(["--rounds", &self.args.rounds.to_string()]);
            running.push(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?);
        }
        let mut said = vec![];
        for process in running {
            let output = process.wait_with_output()?;
            if !output.status.success() {
                bail!("{DGL}: {}", String::from_utf8_lossy(&output.stderr).trim());
            }
            said.push(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let kernel = kernel_bytes(network, workers)? - before;
        let seconds = figures(&said[0], "s");
        let scored = Command::new(&python)
            .arg(&script)
            .arg("score")
            .args([self.path(GRAPH), self.path("dgl")])
            .output()?;
        let valid = figures(&String::from_utf8_lossy(&scored.stdout), "valid");
        if seconds.is_empty() || valid.len() != seconds.len() {
            bail!("{DGL} score: {}", String::from_utf8_lossy(&scored.stderr).trim());
        }
        let spent = |rounds: usize| {
            let wall_s: f64 = seconds[..rounds].iter().sum();
            json!({ "rounds": rounds, "wall_s": wall_s })
        };
        let reached = |target: &f64| {
            let at = valid.iter().position(|valid| valid >= target);
            json!({ "target": target, "spent": at.map(|at| spent(at + 1)) })
        };
        Ok(json!({
            "what": "distributed",
            "mode": "dgl",
            "placement": placement,
            "gbit": gbit,
            "ranks": workers.len(),
            "nodes": self.args.nodes,
            "best_valid": valid.iter().copied().fold(0.0, f64::max),
            "reached": self.args.targets.iter().map(reached).collect::<Vec<_>>(),
            "all_rounds": spent(seconds.len()),
            "kernel_bytes": kernel,
            "machine": machine::facts(),
        }))
    }
}

/// A figure of every line that has it.
fn figures(lines: &str, key: &str) -> Vec<f64> {
    let figure = |line: &str| serde_json::from_str::<Value>(line).ok()?[key].as_f64();
    lines.lines().filter_map(figure).collect()
}

/// What it took to reach a validation score; `null` if it never was.
fn reached(rounds: &[Round], target: f64, machine: &Machine) -> Value {
    let at = rounds.iter().position(|round| round.valid.is_some_and(|valid| valid >= target));
    let spent = at.map(|at| spent(&rounds[..=at], machine));
    json!({ "target": target, "spent": spent })
}

/// Times of some rounds in seconds, without evaluation, which nobody has to wait for.
fn spent(rounds: &[Round], machine: &Machine) -> Value {
    let sum = |figure: &dyn Fn(&Round) -> f64| rounds.iter().map(figure).sum::<f64>();
    let wall_s = sum(&|round| round.time.local_s + round.time.server_s);
    let exposed_s = sum(&|round| round.time.exposed_s);
    let predicted_s = sum(&|round| round.path.total());
    // Of the path of a worker, its transfers; of all workers, the work on the cores that they share.
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let fetched_s = sum(&|round| round.path.workers_s - machine.seconds(round.work.slowest));
    let messages_s = sum(&|round| round.path.transfer_s) + fetched_s.max(0.0);
    let shared_s = sum(&|round| machine.seconds(round.work.workers)) / cores
        + sum(&|round| round.path.server_s);
    json!({
        "rounds": rounds.len(),
        "wall_s": wall_s,
        "compute_s": wall_s - exposed_s,
        "exposed_s": exposed_s,
        "predicted_s": predicted_s,
        "predicted_messages_s": messages_s,
        "predicted_shared_cores_s": shared_s + messages_s,
    })
}

/// All that the NICs of some machines have received.
fn kernel_bytes(network: &Network, ranks: &[(u32, u32)]) -> Result<u64> {
    let received = |(machine, _): &(u32, u32)| {
        let bytes = network.machine_bytes(*machine).map_err(anyhow::Error::msg)?;
        Ok::<u64, anyhow::Error>(bytes.received_bytes)
    };
    ranks.iter().map(received).sum()
}

fn rounds(out: &Path) -> Result<Vec<Round>> {
    let path = out.join("metrics.jsonl");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not text")
}

fn done(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
