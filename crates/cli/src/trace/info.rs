//! `hither trace info`.

use hither_sched::trace::{Info, describe};

use crate::inputs::{ClusterArgs, TraceArgs, Workload};
use crate::outputs;

/// Tell what a trace holds: jobs, time, GPUs, models, users
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither trace info trace.csv
  hither trace info trace.csv --cluster cluster.toml     with the load that it offers
  hither trace info - --json < trace.csv")]
pub struct Args {
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Seed that draws models for traces that name none [default: 0, or the generator's own]
    #[arg(long, value_name = "N", env = "HITHER_SEED")]
    seed: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let gpus = args.cluster.read()?.map(|topology| topology.gpus());
    let workload = Workload::open(&args.trace)?;
    let info = describe(&workload.jobs(args.seed, None)?, gpus);
    match args.json {
        true => outputs::print_json(&info),
        false => outputs::print(&shown(&workload.name(), &info)),
    }
}

fn shown(name: &str, info: &Info) -> String {
    let hours = |s: f64| format!("{:.2} h", s / 3600.0);
    let q = &info.duration_s;
    let jobs = info.jobs.max(1) as f64;
    let multi: u64 = info.demand.iter().filter(|(gpus, _)| **gpus > 1).map(|(_, n)| n).sum();
    let mut text = format!(
        "trace      {name} ({})\njobs       {} of {} users, {:.1} % on several GPUs\n\
         span       {:.2} days\nduration   mean {}, median {}, p95 {}, longest {}\n\
         GPU time   {:.0} h\n",
        info.format.name(),
        info.jobs,
        info.users,
        100.0 * multi as f64 / jobs,
        info.span_s / 86_400.0,
        hours(q.mean),
        hours(q.p50),
        hours(q.p95),
        hours(q.max),
        info.gpu_hours,
    );
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
    info.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    text
}
