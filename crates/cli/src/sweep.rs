//! `hither sweep`: a simulation over a grid of settings, on all cores, that can be killed and continued.

pub mod grid;
mod store;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use hither_core::record::{Header, Summary};
use hither_report::plural;
use hither_report::sweep::{self, Sweep};
use indicatif::ProgressStyle;
use rayon::prelude::*;
use serde_json::json;

use crate::inputs::say_notes;
use crate::outputs::Force;
use crate::runs::{Cell, Plan, PlanArgs};
use crate::{Common, empty, outputs, runs};
use grid::Axis;
use store::CellStore;
pub use store::FinishedCell;

/// Simulate a trace over a grid of settings and compare the policies in every cell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither sweep trace.csv --policy dally,fifo --vary congestion=1,2,4,8 -o out/
  hither sweep workload.toml --policy dally,fifo --vary load=0.5..1.5 \\
      --vary seed=1..5 -o out/
  hither sweep workload.toml --policy dally,gandiva --against gandiva \\
      --vary load=0.5,0.9 --vary seed=1..5 -o out/
  hither sweep workload.toml --policy dally --against dally.anticipate \\
      --vary dally.anticipate=true,false --vary seed=1..5 -o out/

VALUES is a list (1,2,4) or a range: FROM..TO takes five values, FROM..TO:STEP every STEP, and a range \
of seeds every seed. Several --vary make a grid of all combinations; each cell runs under every policy. \
Figures of different seeds are averaged. KEY is congestion, load, rate, seed, lengths, profile_error, \
hide_congestion, restart_scale, or an option of a policy.

--against prints paired savings with 95 % intervals over the seeds, for every cell and over all of them.

Finished cells are kept in DIR: the same command continues a sweep that was stopped. It writes \
DIR/sweep.csv, DIR/sweep.json and DIR/sweep.html (charts, maps and tables), and prints tables.")]
pub struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// Vary a setting of the scenario or an option of a policy (POLICY.OPTION); repeat for a grid
    #[arg(long, value_name = "KEY=VALUES", required = true)]
    vary: Vec<String>,
    /// Show what the first policy saves against these policies, or the first value of a varied key against the others
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    against: Vec<String>,
    /// Directory to write to
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Print sweep.json instead of tables
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let axes: Vec<Axis> = args.vary.iter().map(|v| Axis::parse(v)).collect::<Result<_, _>>()?;
    let grid = grid::cells(&axes)?;
    let plan = Plan::new(&args.plan)?;
    check_rivals(&args.against, &plan, &axes)?;
    let case = plan.case(&plan.cell(), false)?;
    say_notes(common, &case.notes);
    case.say_if_long(common);
    // Wrong values are reported before the first simulation.
    let cells: Vec<Cell> =
        grid.iter().map(|values| grid::cell(&plan, &axes, values)).collect::<Result<_, _>>()?;
    let manifest = store::manifest(&args.plan, &plan, &axes)?;
    let store = CellStore::open(&args.output, &manifest, args.force)?;
    let names: Vec<BTreeMap<String, String>> = grid
        .iter()
        .map(|values| axes.iter().map(|a| a.key.clone()).zip(values.iter().cloned()).collect())
        .collect();
    let finished = finish(&plan, &cells, &names, &store, common)?;
    say_notes(common, &empty::notes_on_cells(&finished));

    let document = json!({ "manifest": manifest, "cells": finished });
    let text = serde_json::to_string_pretty(&document)? + "\n";
    // The seed of a generator file is known only to the runs.
    let seed = finished.first().and_then(|cell| cell.runs.first()).map_or(0, |run| run.seed);
    let header = runs::header(
        plan.workload.name(),
        seed,
        plan.cell().scenario.congestion,
        &plan.topology,
        BTreeMap::new(), // the page lists those that all cells share
    );
    let page = Sweep {
        header: &header,
        settings: shared_settings(&case.header, &plan.cell(), &axes),
        axes: axes.iter().map(|a| sweep::Axis { key: &a.key, values: &a.values }).collect(),
        policies: plan.policies.iter().map(|entry| entry.name).collect(),
        against: args.against.iter().map(String::as_str).collect(),
        cells: finished.iter().map(|cell| cell.runs.as_slice()).collect(),
    };
    outputs::write_file(
        &args.output.join("sweep.csv"),
        &table::csv(&axes, &header.cluster, &finished)?,
    )?;
    outputs::write_file(&args.output.join("sweep.json"), text.as_bytes())?;
    outputs::write_file(&args.output.join("sweep.html"), page.html().as_bytes())?;
    common.say(&format!("wrote {}", args.output.join("sweep.html").display()));
    outputs::print(&if args.json { text } else { page.tables() })?;
    Ok(ExitCode::SUCCESS)
}

/// Rivals are among the policies, and other than the first; or other values of a key.
fn check_rivals(against: &[String], plan: &Plan, axes: &[Axis]) -> anyhow::Result<()> {
    let names: Vec<&str> = plan.policies.iter().map(|entry| entry.name).collect();
    for rival in against {
        let is_key = rival != "seed" && axes.iter().any(|axis| axis.key == *rival);
        ensure!(
            is_key || names[1..].contains(&rival.as_str()),
            "--against {rival}: expected one of the policies after the first, {}, or a key of --vary; \
             --policy names the policy to measure, then its rivals",
            names[0]
        );
    }
    Ok(())
}

/// The settings that all cells share, by name: those that are not varied.
fn shared_settings(header: &Header, cell: &Cell, axes: &[Axis]) -> Vec<(String, String)> {
    let arrivals = [("load", cell.scenario.load), ("rate", cell.scenario.rate)];
    let arrivals = arrivals.into_iter().filter_map(|(key, value)| Some((key, value?.to_string())));
    let recorded = header.settings.iter().map(|(key, value)| (key.as_str(), value.clone()));
    let all = arrivals.chain(recorded).map(|(key, value)| (key.to_owned(), value));
    all.filter(|(key, _)| axes.iter().all(|axis| axis.key != *key)).collect()
}

/// The figures of all cells: from the store where they are there, otherwise by simulation.
fn finish(
    plan: &Plan,
    cells: &[Cell],
    names: &[BTreeMap<String, String>],
    store: &CellStore,
    common: &Common,
) -> anyhow::Result<Vec<FinishedCell>> {
    let known: Vec<Option<FinishedCell>> =
        names.iter().enumerate().map(|(at, names)| store.load(at, names)).collect();
    let done = known.iter().flatten().count();
    let (total, policies) = (cells.len() * plan.policies.len(), plan.policies.len());
    common.say(&announcement(cells.len(), policies, done));
    let bar = common.bar(total as u64, "simulations");
    // Counts only: cells differ in cost by orders of magnitude, so any estimate would mislead.
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len}  {elapsed}") {
        bar.set_style(style);
    }
    bar.inc((done * policies) as u64);
    let run = |(at, known): (usize, Option<FinishedCell>)| -> anyhow::Result<FinishedCell> {
        if let Some(finished) = known {
            return Ok(finished);
        }
        let case = plan.case(&cells[at], false)?;
        let simulate = |entry: &&_| {
            let outcome = case.run(entry);
            bar.inc(1);
            outcome
        };
        let runs: Vec<_> = plan.policies.par_iter().map(simulate).collect();
        let runs: Result<Vec<Summary>, _> = runs.into_iter().map(|r| Ok(r?.summary)).collect();
        let runs = runs.map_err(|error: hither_sched::sim::Error| anyhow::anyhow!(error))?;
        let finished = FinishedCell { cell: names[at].clone(), runs };
        store.save(at, &finished)?;
        Ok(finished)
    };
    let outcomes: Vec<anyhow::Result<FinishedCell>> =
        common.pool()?.install(|| known.into_par_iter().enumerate().map(run).collect());
    bar.finish_and_clear();
    let told = |(at, outcome): (usize, anyhow::Result<FinishedCell>)| {
        // The first cell in order, not the first in time: the message must not depend on threads.
        let place: Vec<String> = names[at].iter().map(|(k, v)| format!("{k}={v}")).collect();
        outcome.map_err(|error| error.context(format!("cell {}", place.join(" "))))
    };
    outcomes.into_iter().enumerate().map(told).collect()
}

/// How much work is ahead.
fn announcement(cells: usize, policies: usize, done: usize) -> String {
    let total = cells * policies;
    let noun = if policies == 1 { "policy" } else { "policies" };
    let (cells, simulations) = (plural(cells, "cell"), plural(total, "simulation"));
    let mut text = format!("{cells} × {policies} {noun} = {simulations}");
    if done > 0 {
        text.push_str(&format!("; {} done before", done * policies));
    }
    text
}
