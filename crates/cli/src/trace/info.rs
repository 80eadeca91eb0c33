//! `hither trace info`.

use hither_core::topology::Topology;
use hither_report::{cluster, plural};
use hither_sched::trace::{Info, describe};

use crate::inputs::{ClusterArgs, Pace, TraceArgs, Workload, say_notes};
use crate::runs::cluster_row;
use crate::{Common, outputs};

/// Summarise a trace: jobs, users, time span, GPUs, models
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither trace info examples/sample.csv
  hither trace info examples/sample.csv --cluster examples/cluster-3tier.toml
  hither trace info examples/traces/sacct.txt
  hither trace info - --json < examples/sample.csv")]
pub struct Args {
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Seed for drawing models where the trace names none [default: 0, or the generator's own]
    #[arg(long, value_name = "N", env = "HITHER_SEED")]
    seed: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let read = args.cluster.read()?;
    let topology = read.as_ref().map(|cluster| &cluster.topology);
    read.iter().for_each(|cluster| say_notes(common, &cluster.notes));
    let workload = Workload::open(&args.trace)?;
    let trace = workload.jobs(args.seed, Pace::AsRecorded)?;
    say_notes(common, &trace.notes);
    let info = describe(&trace, topology.map(Topology::gpus));
    match args.json {
        true => outputs::print_json(&info),
        false => outputs::print(&shown(&workload.name(), &info, topology)),
    }
}

fn shown(name: &str, info: &Info, topology: Option<&Topology>) -> String {
    let hours = |s: f64| format!("{:.2} h", s / 3600.0);
    let q = &info.duration_s;
    let jobs = info.jobs.max(1) as f64;
    let multi: u64 = info.demand.iter().filter(|(gpus, _)| **gpus > 1).map(|(_, n)| n).sum();
    let mut text = format!(
        "trace      {name} ({})\njobs       {} from {}, {:.1} % on several GPUs\n\
         span       {:.2} days\nduration   mean {}, median {}, p95 {}, longest {}\n\
         GPU time   {:.0} h\n",
        info.format.name(),
        info.jobs,
        plural(info.users, "user"),
        100.0 * multi as f64 / jobs,
        info.span_s / 86_400.0,
        hours(q.mean),
        hours(q.p50),
        hours(q.p95),
        hours(q.max),
        info.gpu_hours,
    );
    if let Some(topology) = topology {
        text.push_str(&format!("cluster    {}\n", cluster(&cluster_row(topology))));
    }
    if let Some(load) = info.offered_load {
        text.push_str(&format!("load       {load:.3} of the cluster\n"));
    }
    text.push_str("\n    GPUs      jobs\n");
    for (gpus, &n) in &info.demand {
        text.push_str(&format!("{gpus:8}  {n:8}  {:5.1} %\n", 100.0 * n as f64 / jobs));
    }
    let width = info.models.iter().map(|m| m.model.chars().count()).max().unwrap_or(0).max(5);
    text.push_str(&format!("\n  {:width$}      jobs  GPU hours\n", "model"));
    for m in &info.models {
        text.push_str(&format!("  {:width$}  {:8}  {:9.0}\n", m.model, m.jobs, m.gpu_hours));
    }
    text
}
