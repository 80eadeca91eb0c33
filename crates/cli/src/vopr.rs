//! `hither vopr`: runs random clusters, workloads and faults under the outside checkers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic;
use std::process::ExitCode;

use hither_live::vopr as live;
use hither_report::plural;
use hither_sched::vopr::{Case, DRAWN, OPTIONS};
use rayon::prelude::*;
use serde::Serialize;

use crate::{Common, outputs};

/// Run random scenarios and check the scheduler's invariants after every event
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither vopr --seeds 10000
  hither vopr --first 4711 --seeds 1      repeat one scenario
  hither vopr --seeds 100 --json
  hither vopr --list                      print what scenarios are drawn from

A seed draws the cluster, the jobs, the faults and the policy. The checkers keep books of their own:
no GPU is booked twice, a job holds all of its GPUs or none, no work is lost, no job starves. Exit \
status 1 means that a check failed; each failure is printed with the command that repeats it.")]
pub struct Args {
    /// Number of scenarios
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: u64,
    /// First seed
    #[arg(long, value_name = "K", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=u64::MAX / 2))]
    first: u64,
    /// Print what a scenario is drawn from, and run none
    #[arg(long, conflicts_with_all = ["seeds", "first", "json"])]
    list: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Failures that are printed; more would say nothing new.
const TOLD_MAX: usize = 20;
/// Scenarios between two counts of the failures.
const BATCH: u64 = 4096;

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

#[derive(Serialize)]
struct Failure {
    seed: u64,
    /// None where the scenario could not be drawn.
    policy: Option<&'static str>,
    what: String,
}

/// Counts by policy, and the first failures.
#[derive(Serialize)]
struct VoprResult {
    scenarios: u64,
    failed: usize,
    by_policy: BTreeMap<&'static str, u64>,
    failures: Vec<Failure>,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    if args.list {
        outputs::print(&list())?;
        return Ok(ExitCode::SUCCESS);
    }
    common.say(&format!("seeds {} to {}", args.first, args.first + args.seeds - 1));
    let outer_hook = panic::take_hook();
    // A panic counts as a failure of its seed.
    panic::set_hook(Box::new(|info| PANIC.set(Some(info.to_string()))));
    let bar = common.bar(args.seeds, "scenarios");
    let pool = common.pool()?;
    let mut cases: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut failures = Vec::new();
    let end = args.first + args.seeds;
    for begin in (args.first..end).step_by(BATCH as usize) {
        let seeds = begin..end.min(begin + BATCH);
        let run = |seed| {
            let outcome = run_seed(seed);
            bar.inc(1);
            outcome
        };
        let outcomes: Vec<_> = pool.install(|| seeds.into_par_iter().map(run).collect());
        for outcome in outcomes {
            match outcome {
                Ok(policy) => *cases.entry(policy).or_default() += 1,
                Err(failure) => {
                    if let Some(policy) = failure.policy {
                        *cases.entry(policy).or_default() += 1;
                    }
                    failures.push(failure);
                }
            }
        }
        if failures.len() >= TOLD_MAX {
            break;
        }
    }
    bar.finish_and_clear();
    panic::set_hook(outer_hook);
    tell(args, cases, failures)
}

/// What a scenario draws, one line each.
fn list() -> String {
    let options = OPTIONS.iter().map(|drawn| (drawn.option, drawn.range));
    let rows: Vec<(&str, &str)> = DRAWN.iter().chain(live::DRAWN).copied().chain(options).collect();
    let width = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    let mut text: String =
        rows.iter().map(|(what, range)| format!("{what:width$}  {range}\n")).collect();
    text.push_str("Half of the scenarios leave all options of the policies at their defaults.\n");
    text
}

/// The policy that the seed drew, or what went wrong with it.
fn run_seed(seed: u64) -> Result<&'static str, Failure> {
    PANIC.set(None);
    let mut policy = None;
    let outcome = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let case = Case::new(seed);
        policy = Some(case.policy.name);
        run_case(&case).map(|()| case.policy.name)
    }));
    let what = match outcome {
        Ok(Ok(name)) => return Ok(name),
        Ok(Err(what)) => what,
        Err(_) => PANIC.take().unwrap_or_else(|| "panicked".into()).replace('\n', " "),
    };
    Err(Failure { seed, policy, what })
}

/// Half of the cases are for the driver of real clusters, half for the simulator.
fn run_case(case: &Case) -> Result<(), String> {
    match case.live {
        true => live::run(case, None).map_err(|(now, what)| format!("after {now:.0} s: {what}")),
        false => case.run().map_err(|error| error.to_string()),
    }
}

fn tell(
    args: &Args,
    by_policy: BTreeMap<&'static str, u64>,
    mut failures: Vec<Failure>,
) -> anyhow::Result<ExitCode> {
    let failed = failures.len();
    failures.truncate(TOLD_MAX);
    let outcome = VoprResult { scenarios: by_policy.values().sum(), failed, by_policy, failures };
    match args.json {
        true => outputs::print_json(&outcome)?,
        false => outputs::print(&shown(&outcome))?,
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn shown(outcome: &VoprResult) -> String {
    let mut text = String::new();
    for Failure { seed, policy, what } in &outcome.failures {
        let policy = policy.unwrap_or("drawing the scenario");
        text.push_str(&format!("failed: {policy}: {what}\n"));
        text.push_str(&format!("    hither vopr --first {seed} --seeds 1\n"));
    }
    let counts: Vec<String> =
        outcome.by_policy.iter().map(|(name, n)| format!("{name} {n}")).collect();
    let VoprResult { scenarios, failed, .. } = outcome;
    let (scenarios, counts) = (plural(*scenarios as usize, "scenario"), counts.join(", "));
    text.push_str(&format!("{scenarios}, {failed} failed ({counts})\n"));
    text
}
