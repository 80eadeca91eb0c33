//! `hither simulate`: replays a trace under one or more policies, side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;
use hither_core::record::{Header, RunRecord, Summary};
use hither_report::plural;
use indicatif::ProgressStyle;
use rayon::prelude::*;

use crate::inputs::{ClusterArgs, ReadingArgs, TraceArgs, Workload, library, say_notes};
use crate::outputs::{Force, Kind, OutputDir};
use crate::runs::{Plan, PlanArgs, ScenarioArgs};
use crate::schedule::{self, SlurmArgs};
use crate::settings::PolicyArgs;
use crate::{Common, empty, muri, outputs, record};

/// Replay a job trace under one or more policies and compare the results
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither simulate examples/sample.csv
  hither simulate examples/traces/sacct.txt \\
      --cluster examples/slurm/topology.conf \\
      --cluster examples/slurm/slurm.conf --cluster examples/slurm/gres.conf
  hither simulate examples/sample.csv --policy all --congestion 4 -o out/
  hither simulate examples/sample.csv --set dally.score=left --json
  hither simulate examples/traces/muri.csv --compat muri
  hither simulate --from slurm --partition gpu --policy dally,fifo

Without --policy it compares dally with Tiresias and with two bounds: fifo, which keeps the order \
of submission, and srtf, which is given the true length of every job. Gandiva is not among them: it \
takes minutes on a trace of 80,000 jobs.

Results depend on the inputs and the seed alone: the same command writes the same bytes, except for \
sim_cpu_s.")]
pub struct Args {
    /// Job trace, folder of Alibaba's tables, generator settings (.toml), or - for standard input
    #[arg(required_unless_present = "from")]
    trace: Option<PathBuf>,
    /// Begin where a live cluster stands: at the end of a scheduler's journal, or at what Slurm tells now
    #[arg(long, value_name = "JOURNAL|slurm")]
    #[arg(conflicts_with_all = ["trace", "format", "cluster", "load", "rate", "drop_impossible"])]
    from: Option<PathBuf>,
    #[command(flatten)]
    slurm: SlurmArgs,
    #[command(flatten)]
    reading: ReadingArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Follow the rules of Muri's simulator exactly: srtf, srsf and tiresias on its own traces
    #[arg(long, value_name = "NAME")]
    #[arg(conflicts_with_all = ["profiles", "set", "settings", "congestion", "load", "rate", "checkpoint_s",
        "lose_on_preempt", "mtbf_h", "check", "format", "from"])]
    compat: Option<Compat>,
    /// Write jobs.csv, events.jsonl, summary.json and report.html to this directory
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Print JSON instead of a table: the header and one summary per policy
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Compat {
    // Its srtf, srsf and tiresias. No doc comment: clap would then print the long form of all help.
    Muri,
}

impl Args {
    fn plan_of_trace(&self) -> PlanArgs {
        let trace = self.trace.clone().unwrap_or_default();
        PlanArgs {
            trace: TraceArgs { trace, reading: self.reading.clone() },
            cluster: self.cluster.clone(),
            policies: self.policies.clone(),
            scenario: self.scenario.clone(),
        }
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let Some(from) = &self.from else { return Plan::new(&self.plan_of_trace()) };
        self.policies.checked()?;
        let library = library(self.reading.profiles_file())?;
        let (name, start) = schedule::standing(from, &self.slurm, library)?;
        if start.jobs.is_empty() {
            bail!("--from {}: the cluster has no jobs for Hither to place", from.display());
        }
        let topology = start.topology.clone();
        let workload = Workload::Live { name, start };
        Plan::with(&self.policies, &self.scenario, topology, workload)
    }
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let open = |dir: &PathBuf| OutputDir::open(dir, Kind::Simulation, args.force.into());
    let output = args.output.as_ref().map(open).transpose()?;
    let (header, runs, told) = match args.compat {
        Some(Compat::Muri) => {
            let (header, runs) = muri::run(&args.plan_of_trace(), common)?;
            (header, runs, Vec::new())
        }
        None => simulate(args, common)?,
    };
    let summaries: Vec<Summary> = runs.iter().map(|run| run.summary.clone()).collect();
    say_notes(common, empty::note_on_runs(&summaries).as_slice());
    if let Some(output) = output {
        let page = output.path().join(record::REPORT);
        record::write(output, &header, &runs)?;
        common.say(&format!("wrote {}", page.display()));
    }
    if args.json {
        outputs::print_json(&record::Summaries::new(&header, &runs))?;
    } else {
        let waits = hither_report::longest_waits(&runs);
        let mut summaries = summaries;
        if !common.quiet {
            // Standard error has them already.
            summaries.iter_mut().for_each(|s| s.notes.retain(|note| !told.contains(note)));
        }
        outputs::print(&format!("{}{waits}", hither_report::table(&header, &summaries)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The runs, and the notes that were printed before they began.
fn simulate(args: &Args, common: &Common) -> anyhow::Result<(Header, Vec<RunRecord>, Vec<String>)> {
    let plan = args.plan()?;
    let case = plan.case(&plan.cell(), args.output.is_some())?;
    let policies = plan.policies.len();
    common.say(&format!("seed {}", case.header.seed));
    say_notes(common, &case.notes);
    let noun = if policies == 1 { "policy" } else { "policies" };
    common.say(&format!("replaying {} under {policies} {noun}", plural(case.jobs(), "job")));
    case.say_if_long(common);
    let bar = common.bar(policies as u64, "policies");
    // No estimate of the time left: policies differ in speed many times over, so it would grow.
    bar.set_style(ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len}  {elapsed} gone")?);
    let run = |entry: &&'static _| {
        let outcome = case.run(entry);
        bar.inc(1);
        outcome
    };
    // All end before the first error is reported: which one that is must not depend on the threads.
    let outcomes: Vec<_> = common.pool()?.install(|| plan.policies.par_iter().map(run).collect());
    bar.finish_and_clear();
    let runs: Result<Vec<RunRecord>, _> = outcomes.into_iter().collect();
    let runs = runs?;
    Ok((case.header, runs, case.notes))
}
