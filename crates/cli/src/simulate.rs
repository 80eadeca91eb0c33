//! `hither simulate`: a trace under one or more policies, side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use hither_core::record::{Header, RunRecord, Summary};
use rayon::prelude::*;

use crate::outputs::{Force, Kind, OutputDir};
use crate::runs::{Plan, PlanArgs};
use crate::{Common, muri, outputs, record};

/// Play a trace against policies and compare what becomes of the jobs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither simulate trace.csv --cluster cluster.toml --policy dally,tiresias,fifo
  hither simulate trace.csv --policy all --congestion 4 --seed 7 -o out/
  hither simulate trace.csv --policy dally --set dally.score=slowdown --json
  hither simulate muri.csv --compat muri

With -o DIR it writes jobs.csv, events.jsonl, summary.json and report.html there. A run depends on
its inputs and the seed alone: the same command gives the same bytes, but for sim_cpu_s.")]
pub struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// Follow another simulator's rules to the letter, without our network model
    #[arg(long, value_name = "NAME")]
    #[arg(conflicts_with_all = ["profiles", "set", "settings", "congestion", "load", "checkpoint_s",
        "lose_on_preempt", "mtbf_h", "check", "format"])]
    compat: Option<Compat>,
    /// Write jobs.csv, events.jsonl, summary.json and report.html to this directory
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Print the header and the summaries as JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Compat {
    /// Muri's simulator: srtf, srsf and tiresias on its own traces
    Muri,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let open = |dir: &PathBuf| OutputDir::open(dir, Kind::Simulation, args.force.into());
    let output = args.output.as_ref().map(open).transpose()?;
    let (header, runs) = match args.compat {
        Some(Compat::Muri) => muri::run(&args.plan, common)?,
        None => simulate(args, common)?,
    };
    if let Some(output) = output {
        let page = output.path().join(record::REPORT);
        record::write(output, &header, &runs)?;
        common.say(&format!("wrote {}", page.display()));
    }
    if args.json {
        outputs::print_json(&record::Summaries::new(&header, &runs))?;
    } else {
        let summaries: Vec<Summary> = runs.into_iter().map(|r| r.summary).collect();
        outputs::print(&hither_report::table(&header, &summaries))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn simulate(args: &Args, common: &Common) -> anyhow::Result<(Header, Vec<RunRecord>)> {
    let plan = Plan::new(&args.plan)?;
    let case = plan.case(&plan.cell(), args.output.is_some())?;
    common.say(&format!("seed {}", case.header.seed));
    if case.dropped > 0 {
        common.say(&format!("left out {} jobs that can never fit", case.dropped));
    }
    let bar = common.bar(plan.policies.len() as u64, "simulating");
    let run = |entry: &&'static _| {
        let outcome = case.run(entry);
        bar.inc(1);
        outcome
    };
    // All end before the first error is told: which one that is must not depend on the threads.
    let outcomes: Vec<_> = common.pool()?.install(|| plan.policies.par_iter().map(run).collect());
    bar.finish_and_clear();
    let runs: Result<Vec<RunRecord>, _> = outcomes.into_iter().collect();
    let runs = runs?;
    Ok((case.header, runs))
}
