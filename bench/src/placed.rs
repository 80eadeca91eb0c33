//! Two training jobs on a private Slurm with slow links between racks: placed by Hither, which knows the profiles
//! of an earlier run, and by Slurm alone. `ggs` fetches features in every step, `llcg` sends models.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use hither_live::slurm::testbed::{Shape, Testbed};
use hither_live::slurm::testnet::{Links, Network, SUBNET};
use serde_json::{Value, json};

use crate::machine;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The binary to measure, built with `--features mpi`
    #[arg(long, default_value = "target/release/hither")]
    hither: PathBuf,
    /// Empty folder for the graph, the clusters and the runs
    #[arg(long)]
    folder: PathBuf,
    /// Who places the jobs: hither, slurm, or both
    #[arg(long, value_delimiter = ',', default_value = "hither,slurm")]
    by: Vec<String>,
    /// Speed of each rack's uplink in Mbit/s; NICs have 1000
    #[arg(long, default_value_t = 50.0)]
    uplink_mbit: f64,
    /// Until then no machine is free for a whole job
    #[arg(long, default_value_t = 10)]
    busy_s: u32,
    #[arg(long, default_value_t = 60)]
    rounds: u32,
    /// How often everything is done
    #[arg(long, default_value_t = 1)]
    repeat: u32,
}

const SHAPE: Shape = Shape { racks: 2, machines: 2, gpus: 4 };
const NIC_MBIT: f64 = 1000.0;
/// Four ranks, each with a GPU: they fit on one machine.
const PARTS: u32 = 3;
const MODES: [&str; 2] = ["ggs", "llcg"];
const TRAIN: &[&str] = &["--hidden", "64", "--batch", "64", "--fanout", "5"];
const PATIENCE: Duration = Duration::from_secs(600);

pub fn run(args: &Args) -> Result<()> {
    let hither = fs::canonicalize(&args.hither)
        .with_context(|| format!("{}: build it first", args.hither.display()))?;
    for turn in 0..args.repeat {
        for by in &args.by {
            let folder = args.folder.join(format!("{by}-{turn}"));
            fs::create_dir_all(&folder)?;
            let folder = fs::canonicalize(&folder)?;
            let bench = Bench { args, hither: hither.clone(), folder };
            let ran = match by.as_str() {
                "hither" => bench.run(true)?,
                "slurm" => bench.run(false)?,
                other => bail!("--by {other}: expected hither or slurm"),
            };
            println!(
                "{}",
                json!({
                    "what": "placed",
                    "by": by,
                    "turn": turn,
                    "uplink_mbit": args.uplink_mbit,
                    "busy_s": args.busy_s,
                    "rounds": args.rounds,
                    "jobs": ran,
                    "machine": machine::facts(),
                })
            );
        }
    }
    Ok(())
}

struct Bench<'a> {
    args: &'a Args,
    hither: PathBuf,
    folder: PathBuf,
}

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn hither(&self, words: &[&str]) -> Result<String> {
        said(Command::new(&self.hither).arg("-q").args(words))
    }

    /// Runs both jobs, placed by Hither or by Slurm, and says what became of them.
    fn run(&self, placed: bool) -> Result<Vec<Value>> {
        let network = Network::start(
            SHAPE.racks,
            SHAPE.machines,
            Links { nic_mbit: NIC_MBIT, uplink_mbit: self.args.uplink_mbit },
        );
        let network = network.map_err(anyhow::Error::msg)?;
        self.make_graph()?;
        let profiles = match placed {
            true => Some(self.profiles(&network)?),
            false => None,
        };
        let slurm = Testbed::start_on(Some(network), &self.path("slurm"), SHAPE, "");
        let slurm = slurm.map_err(anyhow::Error::msg)?;
        self.keep_busy(&slurm)?;
        let start = SystemTime::now();
        for mode in MODES {
            self.submit(&slurm, mode, placed)?;
        }
        let mut scheduler = None;
        if let Some(profiles) = profiles {
            let mut command = slurm.command(&self.hither);
            command.args(["schedule", "--act", "--partition", "gpu", "--poll-s", "0.2"]);
            // Waiting jobs are asked again every second: all here takes seconds.
            command.args(["--set", "dally.round_s=1", "--release-after-s", "0"]);
            command.args(["--profiles", text(&profiles)?]);
            command.arg("--state").arg(self.path("state")).stdin(Stdio::null());
            command.stderr(fs::File::create(self.path("hither.log"))?);
            scheduler = Some(command.spawn()?);
        }
        let ended = self.await_ends();
        if let Some(mut scheduler) = scheduler {
            scheduler.kill()?;
            scheduler.wait()?;
        }
        ended?;
        MODES.iter().map(|mode| self.ran(mode, start)).collect()
    }

    fn make_graph(&self) -> Result<()> {
        let (graph, parts) = (self.path("bench.graph.safetensors"), self.path("parts"));
        let family = ["dataset", "generate", "--family", "cut-homophily", "--features", "128"];
        self.hither(&[&family[..], &["--seed", "1", "-o", text(&graph)?]].concat())?;
        let count = PARTS.to_string();
        let words = ["partition", text(&graph)?, "--parts", &count, "--write", text(&parts)?];
        self.hither(&words).map(drop)
    }

    /// The options of a run.
    fn train(&self, mode: &str, out: &str, rounds: &str) -> Result<Vec<String>> {
        let (parts, out) = (self.path("parts"), self.path(out));
        let words = ["train", text(&parts)?, "--mode", mode, "--rounds", rounds, "--eval-every"];
        let more = [rounds, "-o", text(&out)?];
        Ok(words.iter().chain(&more).chain(TRAIN).map(ToString::to_string).collect())
    }

    /// Runs each mode near and far for a few rounds.
    fn profiles(&self, network: &Network) -> Result<PathBuf> {
        let mut outs = vec![];
        for mode in MODES {
            for (place, ranks) in [("near", vec![(0, 4)]), ("far", vec![(0, 2), (2, 2)])] {
                let out = format!("{mode}-{place}");
                let mut mpirun =
                    network.mpirun(&self.folder, &ranks).map_err(anyhow::Error::msg)?;
                said(mpirun.arg(&self.hither).arg("-q").args(self.train(mode, &out, "5")?))?;
                outs.push(self.path(&out).to_string_lossy().into_owned());
            }
        }
        let path = self.path("profiles.json");
        let outs: Vec<&str> = outs.iter().map(String::as_str).collect();
        self.hither(&[&["profile"], &outs[..], &["-o", text(&path)?]].concat())?;
        Ok(path)
    }

    /// Leaves two GPUs in each rack, and for some time no whole machine.
    fn keep_busy(&self, slurm: &Testbed) -> Result<()> {
        let sleep = self.path("sleep.sh");
        fs::write(&sleep, "#!/bin/bash\nsleep $1\n")?;
        let busy_s = self.args.busy_s.to_string();
        for (node, gpus, seconds) in
            [("n0", 4, busy_s.as_str()), ("n1", 2, "3600"), ("n2", 2, "3600"), ("n3", 4, "3600")]
        {
            let gpus = format!("--gpus-per-node={gpus}");
            slurm.submit(&["-w", node, &gpus], &sleep, &[seconds]).map_err(anyhow::Error::msg)?;
        }
        let start = Instant::now();
        while slurm.ask("squeue", &["-h", "-t", "R"]).unwrap_or_default().lines().count() < 4 {
            if start.elapsed() > PATIENCE {
                bail!("the machines do not become busy");
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn submit(&self, slurm: &Testbed, mode: &str, held: bool) -> Result<()> {
        let train = self.train(mode, mode, &self.args.rounds.to_string())?;
        let hold: &[&str] = if held { &["--hold"] } else { &[] };
        let train: Vec<&str> = train.iter().map(String::as_str).collect();
        let script =
            self.hither(&[&["submit", "--gpus-per-rank", "1"], hold, &train[..]].concat())?;
        let program = self.hither.parent().unwrap_or(Path::new("."));
        let local = format!(
            "\nexport PATH={}:$PATH OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include={SUBNET}\n\
             date +%s.%N > {mode}.start\nsrun ",
            program.display()
        );
        let path = self.path(&format!("{mode}.sh"));
        let script = script.replacen("\nsrun ", &local, 1) + &format!("date +%s.%N > {mode}.end\n");
        fs::write(&path, script)?;
        let (log, here) = (self.path(&format!("{mode}.log")), &self.folder);
        let args = ["-o", text(&log)?, "-D", text(here)?];
        slurm.submit(&args, &path, &[]).map_err(anyhow::Error::msg)?;
        Ok(())
    }

    fn await_ends(&self) -> Result<()> {
        let start = Instant::now();
        let has_ended = |mode: &str| self.path(&format!("{mode}.end")).exists();
        while !MODES.iter().all(|mode| has_ended(mode)) {
            if start.elapsed() > PATIENCE {
                bail!("the jobs do not end; see {}", self.folder.display());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn ran(&self, mode: &str, submitted: SystemTime) -> Result<Value> {
        let submit_s = submitted.duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
        let at = |what: &str| -> Result<f64> {
            let path = self.path(&format!("{mode}.{what}"));
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            Ok(text.trim().parse::<f64>()? - submit_s)
        };
        let path = self.path(mode).join("profile.json");
        let profile: Value = serde_json::from_str(
            &fs::read_to_string(&path).with_context(|| path.display().to_string())?,
        )?;
        let row = &profile["table"][0];
        Ok(json!({
            "mode": mode,
            "ranks_per_machine": row["placement"],
            "round_s": row["step_s"],
            "start_s": at("start")?,
            "end_s": at("end")?,
        }))
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not text")
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
