//! `hither vopr`: random clusters, workloads and faults under the outside checkers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic;
use std::process::ExitCode;

use hither_sched::vopr::{Case, DRAWN, OPTIONS};
use rayon::prelude::*;

use crate::{Common, outputs};

/// Run random scenarios, each drawn from a seed, under checkers that know nothing of the policies
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither vopr --seeds 10000
  hither vopr --first 4711 --seeds 1      the scenario that failed, again
  hither vopr --list                      what scenarios are drawn from

Checked after every event: no GPU twice, gangs whole or not at all, no work lost, nobody starved.")]
pub struct Args {
    /// Number of scenarios
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: u64,
    /// First seed
    #[arg(long, value_name = "K", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=u64::MAX / 2))]
    first: u64,
    /// Print what a scenario draws, and from which ranges, and run none
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    list: bool,
}

/// Failures told one by one; more say nothing new.
const TOLD_MAX: usize = 20;
/// Seeds between two looks at the failures.
const BATCH: u64 = 4096;

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

struct Failure {
    seed: u64,
    policy: Option<&'static str>,
    what: String,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    if args.list {
        outputs::print(&list())?;
        return Ok(ExitCode::SUCCESS);
    }
    common.say(&format!("seeds {} to {}", args.first, args.first + args.seeds - 1));
    let outer_hook = panic::take_hook();
    // A panic is a failure of its seed, told with the others.
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
    tell(&cases, &failures)
}

/// What a scenario draws, one line each.
fn list() -> String {
    let options = OPTIONS.iter().map(|drawn| (drawn.option, drawn.range));
    let rows: Vec<(&str, &str)> = DRAWN.iter().copied().chain(options).collect();
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
        case.run().map(|()| case.policy.name)
    }));
    let what = match outcome {
        Ok(Ok(name)) => return Ok(name),
        Ok(Err(error)) => error.to_string(),
        Err(_) => PANIC.take().unwrap_or_else(|| "panicked".into()).replace('\n', " "),
    };
    Err(Failure { seed, policy, what })
}

fn tell(cases: &BTreeMap<&str, u64>, failures: &[Failure]) -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    for Failure { seed, policy, what } in failures.iter().take(TOLD_MAX) {
        let policy = policy.unwrap_or("drawing the scenario");
        text.push_str(&format!("failed: {policy}: {what}\n"));
        text.push_str(&format!("    hither vopr --first {seed} --seeds 1\n"));
    }
    let by_policy: Vec<String> = cases.iter().map(|(name, n)| format!("{name} {n}")).collect();
    let all: u64 = cases.values().sum();
    text.push_str(&format!(
        "{all} scenarios, {} failed ({})\n",
        failures.len(),
        by_policy.join(", ")
    ));
    outputs::print(&text)?;
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
