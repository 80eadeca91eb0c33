//! `hither tune`: searches the options of a policy on a workload and writes the best as settings.

mod search;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use hither_core::record::Summary;
use hither_report::plural;
use serde::Serialize;
use serde_json::json;

use crate::inputs::{ClusterArgs, TraceArgs, Workload, say_notes};
use crate::outputs::Force;
use crate::runs::{Cell, Plan, PlanArgs, ScenarioArgs};
use crate::settings::{OptionArgs, PolicyArgs};
use crate::sweep::grid::{self, Axis};
use crate::{Common, outputs};
use search::{Search, Trial};

/// Search the options of a policy on a workload, and write the best ones as settings
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither tune workload.toml --policy tiresias -o tiresias.toml
  hither tune workload.toml --policy gandiva --vary congestion=1,8 \\
      --vary load=0.5,0.9 --vary seed=1001..1005 -o gandiva.toml
  hither tune trace.csv --policy themis --budget 12 --minimise p95-jct -o -
  hither sweep workload.toml --policy dally,tiresias --settings tiresias.toml \\
      --vary seed=1..5 -o out/

Each setting runs in every cell that --vary spans. Its score is the geometric mean over the cells of the \
figure over that of the options as given, so that no cell outweighs the others. All combinations are \
tried if --budget allows; otherwise one option after the other is improved until nothing helps.

Seeds 1001 to 1003 are used for generated workloads unless --seed or --vary seed says otherwise: report \
on other seeds than those that the options were chosen on.")]
pub struct Args {
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Policy to tune; `hither policies` lists them
    #[arg(long, short, value_name = "NAME")]
    policy: String,
    #[command(flatten)]
    options: OptionArgs,
    /// Vary congestion, load, rate or seed; repeat for a grid of cells
    #[arg(long, value_name = "KEY=VALUES")]
    vary: Vec<String>,
    /// Settings to try at most
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=100_000))]
    budget: u32,
    /// Figure to make small
    #[arg(long, value_name = "FIGURE", value_enum, default_value_t = Figure::MeanJct)]
    minimise: Figure,
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Settings to write, for --settings of simulate and sweep; - for standard output
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Print all settings that were tried as JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// What a search makes small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Figure {
    /// Mean completion time
    MeanJct,
    /// Completion time of 95 % of the jobs
    P95Jct,
    /// First submission to last end
    Makespan,
}

impl Figure {
    fn value(self, summary: &Summary) -> f64 {
        match self {
            Self::MeanJct => summary.jct_s.mean,
            Self::P95Jct => summary.jct_s.p95,
            Self::Makespan => summary.makespan_s,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::MeanJct => "mean completion time",
            Self::P95Jct => "p95 of the completion time",
            Self::Makespan => "makespan",
        }
    }
}

/// Seeds of generated workloads: other ones than anybody reports on by habit.
const SEEDS: &str = "seed=1001..1003";

/// Settings that the table shows; --json has all.
const SHOWN_MAX: usize = 10;

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    args.force.check_file(&args.output)?;
    if args.policy.contains(',') || args.policy == "all" {
        bail!("--policy {}: tune one policy at a time", args.policy);
    }
    let plan = Plan::new(&PlanArgs {
        trace: args.trace.clone(),
        cluster: args.cluster.clone(),
        policies: PolicyArgs { policy: vec![args.policy.clone()], options: args.options.clone() },
        scenario: args.scenario.clone(),
    })?;
    let [entry] = plan.policies[..] else { bail!("--policy: name a policy") };
    let options = entry.searched();
    if options.is_empty() {
        bail!("--policy {}: it has no options to search", entry.name);
    }
    let cells = cells(args, &plan)?;
    let case = plan.case(&cells[0], false)?;
    say_notes(common, &case.notes);
    case.say_if_long(common);
    let search = Search::new(&plan, &cells, options, args.minimise, args.budget as usize);
    common.say(&format!(
        "{}, up to {} in {} each",
        entry.name,
        plural(search.trials_max(), "setting"),
        plural(cells.len(), "cell")
    ));
    let trials = search.run(common)?;
    let best = trials.iter().min_by(|a, b| a.score.total_cmp(&b.score));
    let best = best.ok_or_else(|| anyhow!("nothing was tried"))?;
    let text = settings_file(args, &plan, &trials, best, cells.len())?;
    let is_stdout = hither_data::output::is_stdout(&args.output);
    outputs::write_file(&args.output, text.as_bytes())?;
    if !is_stdout {
        common.say(&format!("wrote {}", args.output.display()));
        match args.json {
            true => outputs::print_json(&document(args, &trials, best))?,
            false => outputs::print(&table(args, &trials))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The cells that every setting runs in.
fn cells(args: &Args, plan: &Plan) -> anyhow::Result<Vec<Cell>> {
    let mut axes: Vec<Axis> = args.vary.iter().map(|v| Axis::parse(v)).collect::<Result<_, _>>()?;
    if let Some(axis) = axes.iter().find(|axis| axis.key.contains('.')) {
        bail!("--vary {}: the search itself varies options; use --set to fix one", axis.key);
    }
    let is_seeded = plan.args.seed.is_some() || axes.iter().any(|axis| axis.key == "seed");
    if !is_seeded && matches!(plan.workload, Workload::Generator { .. }) {
        axes.push(Axis::parse(SEEDS)?);
    }
    grid::cells(&axes)?.iter().map(|values| grid::cell(plan, &axes, values)).collect()
}

/// The best settings as TOML, after some words on where they come from.
fn settings_file(
    args: &Args,
    plan: &Plan,
    trials: &[Trial],
    best: &Trial,
    cells: usize,
) -> anyhow::Result<String> {
    let mut text = format!(
        "# {} tuned on {}: {} tried in {} each.\n# Score ({}, as given = 1): {:.4}\n",
        args.policy,
        plan.workload.name(),
        plural(trials.len(), "setting"),
        plural(cells, "cell"),
        args.minimise.name(),
        best.score
    );
    text.push_str(&toml::to_string(&best.settings)?);
    Ok(text)
}

fn document(args: &Args, trials: &[Trial], best: &Trial) -> serde_json::Value {
    json!({
        "policy": args.policy, "minimise": args.minimise,
        "best": best, "tried": trials,
    })
}

/// The best settings, first the very best.
fn table(args: &Args, trials: &[Trial]) -> String {
    let mut order: Vec<&Trial> = trials.iter().collect();
    order.sort_by(|a, b| a.score.total_cmp(&b.score));
    let mut text = format!("{} over that of the options as given:\n", args.minimise.name());
    for trial in order.iter().take(SHOWN_MAX) {
        text.push_str(&format!("  {:>7.4}  {}\n", trial.score, trial.label));
    }
    if order.len() > SHOWN_MAX {
        text.push_str(&format!("{} more were worse\n", order.len() - SHOWN_MAX));
    }
    text
}
