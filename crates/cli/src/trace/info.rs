//! `hither trace info`.

use std::collections::BTreeMap;

use hither_core::summary::Quantiles;
use hither_sched::job::Length;
use serde::Serialize;

use crate::inputs::{Jobs, TraceArgs, Workload};
use crate::outputs;

/// Tell what a trace holds: jobs, time, GPUs, models, users
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither trace info trace.csv
  hither trace info - --json < trace.csv")]
pub struct Args {
    #[command(flatten)]
    trace: TraceArgs,
    /// Seed that draws models for traces that name none [default: 0, or the generator's own]
    #[arg(long, value_name = "N", env = "HITHER_SEED")]
    seed: Option<u64>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What a trace holds. Lengths in iterations count by the profile's compute time.
#[derive(Serialize)]
struct Info {
    trace: String,
    format: &'static str,
    jobs: usize,
    users: usize,
    /// First submission to last.
    span_s: f64,
    /// Running time at the best place, without communication for lengths in iterations.
    duration_s: Quantiles,
    gpu_hours: f64,
    /// GPUs that would be busy all the span if nobody ever waited.
    gpus_busy_mean: f64,
    multi_gpu_share: f64,
    jobs_by_gpus: BTreeMap<u32, usize>,
    jobs_by_model: BTreeMap<String, usize>,
    notes: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let workload = Workload::open(&args.trace)?;
    let info = describe(workload.name(), workload.jobs(args.seed, None)?);
    if args.json { outputs::print_json(&info) } else { outputs::print(&shown(&info)) }
}

fn describe(trace: String, read: Jobs) -> Info {
    let jobs = &read.jobs;
    let seconds: Vec<f64> = jobs
        .iter()
        .map(|job| match job.length {
            Length::Seconds(seconds) => seconds,
            Length::Iterations(count) => count * job.profile.compute_s,
        })
        .collect();
    let gpu_s: f64 = jobs.iter().zip(&seconds).map(|(job, s)| f64::from(job.gpus) * s).sum();
    let span_s = jobs.last().map_or(0.0, |job| job.submit_s);
    let mut by_gpus = BTreeMap::new();
    let mut by_model = BTreeMap::new();
    let mut users: Vec<&str> = Vec::with_capacity(jobs.len());
    for job in jobs {
        *by_gpus.entry(job.gpus).or_default() += 1;
        *by_model.entry(job.profile.name.clone()).or_default() += 1;
        users.push(&job.user);
    }
    users.sort_unstable();
    users.dedup();
    let multi = jobs.iter().filter(|job| job.gpus > 1).count();
    Info {
        trace,
        format: read.format.map_or("generator", |format| format.name()),
        jobs: jobs.len(),
        users: users.len(),
        span_s,
        duration_s: Quantiles::of(&seconds),
        gpu_hours: gpu_s / 3600.0,
        gpus_busy_mean: if span_s > 0.0 { gpu_s / span_s } else { 0.0 },
        multi_gpu_share: multi as f64 / jobs.len().max(1) as f64,
        jobs_by_gpus: by_gpus,
        jobs_by_model: by_model,
        notes: read.notes,
    }
}

fn shown(info: &Info) -> String {
    let hours = |s: f64| format!("{:.2} h", s / 3600.0);
    let q = &info.duration_s;
    let mut text = format!(
        "trace      {} ({})\njobs       {} of {} users, {:.1} % on several GPUs\n\
         span       {:.2} days\nduration   mean {}, median {}, p95 {}, longest {}\n\
         GPU time   {:.0} h, {:.1} GPUs busy on average\n",
        info.trace,
        info.format,
        info.jobs,
        info.users,
        100.0 * info.multi_gpu_share,
        info.span_s / 86_400.0,
        hours(q.mean),
        hours(q.p50),
        hours(q.p95),
        hours(q.max),
        info.gpu_hours,
        info.gpus_busy_mean,
    );
    let share = |n: usize| 100.0 * n as f64 / info.jobs.max(1) as f64;
    text.push_str("\n    GPUs      jobs\n");
    for (gpus, &n) in &info.jobs_by_gpus {
        text.push_str(&format!("{gpus:8}  {n:8}  {:5.1} %\n", share(n)));
    }
    let width = info.jobs_by_model.keys().map(|m| m.chars().count()).max().unwrap_or(0);
    text.push_str(&format!("\n  {:width$}      jobs\n", "model"));
    for (model, &n) in &info.jobs_by_model {
        text.push_str(&format!("  {model:width$}  {n:8}  {:5.1} %\n", share(n)));
    }
    info.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    text
}
