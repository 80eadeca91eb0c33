//! `hither demo`: two weeks of a busy, congested cluster under six policies.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use hither_core::topology::Topology;
use hither_sched::profile::Library;
use hither_sched::topo::to_toml;
use hither_sched::trace::{self, Arrivals, Demand, Duration, Generate};

use crate::outputs::{Existing, Force, Kind, OutputDir};
use crate::{Common, outputs, record, simulate};

/// Generate two weeks of large jobs, simulate six policies, and write a report
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  hither demo -o demo/

The demo runs `hither trace generate` and `hither simulate`, and prints the command of the second.")]
pub struct Args {
    /// Directory for the trace, the cluster and the results
    #[arg(long, short, value_name = "DIR", default_value = "hither-demo")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

const POLICIES: &str = "dally,tiresias,gandiva,themis,fifo,srtf";
const JOBS: u64 = 1500;
const SEED: u64 = 1;

/// The flags of `hither simulate`, so that the demo is a command that anyone can repeat.
#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: simulate::Args,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let dir = &args.output;
    let topology = Topology::uniform(4, 8, 8);
    let jobs = trace::generate(&workload(topology.gpus() as u32), &Library::builtin())?;
    let (trace_path, cluster_path) = (dir.join("trace.csv"), dir.join("cluster.toml"));
    let (trace_text, cluster_text) = (trace::write(&jobs), to_toml(&topology));
    // An earlier demo is made again as it was; anything else is somebody's work.
    let is_same = std::fs::read(&trace_path).is_ok_and(|earlier| earlier == trace_text.as_bytes());
    let existing = if is_same { Existing::Replace } else { args.force.into() };
    let mut output = OutputDir::open(dir, Kind::Simulation, existing)?;
    output.create()?;
    outputs::write_file(&trace_path, trace_text.as_bytes())?;
    outputs::write_file(&cluster_path, cluster_text.as_bytes())?;
    // The simulation takes the lock itself.
    drop(output);
    let days = jobs.last().map_or(0.0, |job| job.submit_s) / 86_400.0;
    let seed = SEED.to_string();
    let mut line: Vec<&OsStr> = vec![
        "simulate".as_ref(),
        trace_path.as_os_str(),
        "--cluster".as_ref(),
        cluster_path.as_os_str(),
        "--congestion".as_ref(),
        "4".as_ref(),
        "--policy".as_ref(),
        POLICIES.as_ref(),
        "--seed".as_ref(),
        seed.as_ref(),
        "-o".as_ref(),
        dir.as_os_str(),
        // The trace and the cluster are in the directory already.
        "--force".as_ref(),
    ];
    if args.json {
        line.push("--json".as_ref());
    }
    let shown: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
    common.say(&format!(
        "{} jobs of 1 to 64 GPUs arrive within {days:.0} days (seed {SEED})\n\
         on {} GPUs in {} racks with a congested network (congestion 4). The same as:\n  \
         hither {}",
        jobs.len(),
        topology.gpus(),
        topology.levels[1].places.len(),
        shown.join(" "),
    ));
    let line = Line::try_parse_from(line).context("the demo's own command")?;
    let code = simulate::run(&line.args, common)?;
    if !args.json {
        outputs::print(&format!("\nreport: {}\n", dir.join(record::REPORT).display()))?;
    }
    Ok(code)
}

fn workload(gpus: u32) -> Generate {
    Generate {
        jobs: JOBS,
        load: Some(0.9),
        gpus: Some(gpus),
        arrivals: Arrivals::Diurnal,
        demand: Demand::Heavy,
        duration: Duration::LogNormal { median_s: 3600.0, sigma: 1.5 },
        seed: SEED,
        ..Generate::default()
    }
}
