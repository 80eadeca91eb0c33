//! `hither trace generate`.

use std::path::PathBuf;

use anyhow::anyhow;
use hither_report::plural;
use hither_sched::trace::{self, Arrivals, Demand, Duration, Generate, SettingError};

use crate::inputs::{library, number, shown, text};
use crate::outputs::Force;
use crate::{Common, outputs};

/// Generate a trace: arrivals, GPUs, running times and models as on known clusters
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither trace generate --jobs 1000 --load 0.8 --gpus 256 --seed 1 -o trace.csv
  hither trace generate --jobs 200 | hither simulate -
  hither trace generate --jobs 500 --span-h 48 --demand heavy --arrivals diurnal
  hither trace generate --config examples/workload.toml --seed 2

The offered load is the GPU time of all jobs over that of --gpus GPUs while the jobs arrive.")]
pub struct Args {
    /// Settings of the generator as TOML; flags override them
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number of jobs [default: 1000]
    #[arg(long, value_name = "N")]
    jobs: Option<u64>,
    /// Offered load on --gpus GPUs [default: 0.8]
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    load: Option<f64>,
    /// GPUs of the cluster that --load refers to [default: 512]
    #[arg(long, value_name = "N")]
    gpus: Option<u32>,
    /// Hours within which all jobs arrive, instead of a load
    #[arg(long, value_name = "H", conflicts_with_all = ["load", "gpus"])]
    #[arg(value_parser = |t: &str| number(t, 0.001, 1e6))]
    span_h: Option<f64>,
    /// Arrivals: poisson, bursty, diurnal, or batch (all at once) [default: poisson]
    #[arg(long, value_name = "HOW")]
    arrivals: Option<Arrivals>,
    /// GPUs per job: philly, helios, lingjun, kalos, heavy (mostly 4 to 64), or GPUS:WEIGHT,… such as
    /// 1:5,8:1 [default: philly]
    #[arg(long, value_name = "WHAT")]
    demand: Option<Demand>,
    /// Running times: philly, helios, lingjun, kalos, or MEDIAN_S:SIGMA of a log-normal such as
    /// 600:1.5 [default: philly]
    #[arg(long, value_name = "WHAT")]
    duration: Option<Duration>,
    /// Number of users [default: 20]
    #[arg(long, value_name = "N")]
    users: Option<u32>,
    /// More model profiles, as TOML or JSON, for models that the settings name
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// Seed of everything that is drawn at random [default: 0, or the settings' own]
    #[arg(long, value_name = "N", env = "HITHER_SEED")]
    seed: Option<u64>,
    /// File to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

const LOAD: f64 = 0.8;
/// Of the default cluster of `hither simulate`.
const GPUS: u32 = 512;

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    args.output.iter().try_for_each(|path| args.force.check_file(path))?;
    let settings = settings(args)?;
    let library = library(args.profiles.as_deref())?;
    let jobs = trace::generate(&settings, &library).map_err(|error| named(args, &error))?;
    let span_h = jobs.last().map_or(0.0, |job| job.submit_s) / 3600.0;
    common.say(&format!(
        "seed {}: {} within {span_h:.1} h",
        settings.seed,
        plural(jobs.len(), "job")
    ));
    outputs::write_or_print(args.output.as_deref(), &trace::write(&jobs))
}

/// Names the flag or the file that set the value.
fn named(args: &Args, error: &SettingError) -> anyhow::Error {
    let SettingError { key, found, must_be } = error;
    let flag = match &**key {
        "jobs" => args.jobs.map(|_| "--jobs"),
        "users" => args.users.map(|_| "--users"),
        "gpus" => args.gpus.map(|_| "--gpus"),
        "load" => args.load.map(|_| "--load"),
        "arrivals" => args.arrivals.map(|_| "--arrivals"),
        "duration.median_s" | "duration.sigma" => args.duration.as_ref().map(|_| "--duration"),
        _ => None,
    };
    match (flag, &args.config) {
        (Some(flag), _) => anyhow!("{flag} {found}: must be {must_be}"),
        (None, Some(path)) => anyhow!("{}: {error}", shown(path)),
        (None, None) => anyhow!("{error}"),
    }
}

fn settings(args: &Args) -> anyhow::Result<Generate> {
    let mut settings = match &args.config {
        Some(path) => Generate::parse_toml(&text(path)?, &shown(path))?,
        None => Generate::default(),
    };
    settings.jobs = args.jobs.unwrap_or(settings.jobs);
    settings.users = args.users.unwrap_or(settings.users);
    settings.seed = args.seed.unwrap_or(settings.seed);
    settings.arrivals = args.arrivals.unwrap_or(settings.arrivals);
    if let Some(demand) = &args.demand {
        settings.demand = demand.clone();
    }
    if let Some(duration) = &args.duration {
        settings.duration = duration.clone();
    }
    // One way of saying how fast jobs arrive takes the place of another.
    if let Some(hours) = args.span_h {
        settings.span_s = Some(hours * 3600.0);
        (settings.load, settings.gpus) = (None, None);
    } else if args.load.is_some() || args.gpus.is_some() {
        settings.span_s = None;
        settings.load = args.load.or(settings.load).or(Some(LOAD));
        settings.gpus = args.gpus.or(settings.gpus).or(Some(GPUS));
    } else if args.arrivals == Some(Arrivals::Batch) {
        (settings.span_s, settings.load, settings.gpus) = (None, None, None);
    } else if args.config.is_none() {
        // A first try should work without reading the help.
        (settings.load, settings.gpus) = (Some(LOAD), Some(GPUS));
    }
    Ok(settings)
}
