//! `hither sweep`: a simulation over a grid of settings, on all cores, that survives being killed.

mod grid;
mod show;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use hither_core::record::Summary;
use rayon::prelude::*;
use serde_json::json;

use crate::inputs::say_notes;
use crate::outputs::Force;
use crate::runs::{Cell, Plan, PlanArgs};
use crate::{Common, outputs};
use grid::Axis;
use show::Comparison;
use store::{Finished, Store};

/// Simulate over a grid of settings and compare policies in every cell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither sweep trace.csv --policy dally,tiresias --vary congestion=1,2,4,8 -o out/
  hither sweep workload.toml --policy dally,fifo --vary load=0.5..1.5 --vary seed=1..5 -o out/
  hither sweep trace.csv --policy dally --vary dally.score=slowdown,2d-las -o out/

A range FROM..TO takes five values, FROM..TO:STEP those a step apart, and a range of seeds every one.
Cells are kept in DIR as they end: the same command again goes on where it was stopped. Figures go to
DIR/sweep.csv, DIR/sweep.json and DIR/sweep.html, and as tables to standard output.")]
pub struct Args {
    #[command(flatten)]
    plan: PlanArgs,
    /// Vary congestion, load, rate, seed, or an option of a policy; several make a grid
    #[arg(long, value_name = "KEY=VALUES", required = true)]
    vary: Vec<String>,
    /// Directory for the results
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Print the content of sweep.json instead of tables
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let axes: Vec<Axis> = args.vary.iter().map(|v| Axis::parse(v)).collect::<Result<_, _>>()?;
    let grid = grid::cells(&axes)?;
    let plan = Plan::new(&args.plan)?;
    say_notes(common, &plan.case(&plan.cell(), false)?.notes);
    // All values are looked at before the first simulation.
    let cells: Vec<Cell> =
        grid.iter().map(|values| grid::cell(&plan, &axes, values)).collect::<Result<_, _>>()?;
    let manifest = store::manifest(&args.plan, &plan, &axes)?;
    let store = Store::open(&args.output, &manifest, args.force)?;
    let names: Vec<BTreeMap<String, String>> = grid
        .iter()
        .map(|values| axes.iter().map(|a| a.key.clone()).zip(values.iter().cloned()).collect())
        .collect();
    let finished = finish(&plan, &cells, &names, &store, common)?;

    let document = json!({ "manifest": manifest, "cells": finished });
    let text = serde_json::to_string_pretty(&document)? + "\n";
    let policies = plan.policies.iter().map(|entry| entry.name).collect();
    let comparison = Comparison::new(&axes, policies, &finished);
    let title = format!("{} on {}", plan.workload.name(), plan.topology.name);
    outputs::write_file(&args.output.join("sweep.csv"), &show::csv(&axes, &finished)?)?;
    outputs::write_file(&args.output.join("sweep.json"), text.as_bytes())?;
    outputs::write_file(&args.output.join("sweep.html"), comparison.html(&title).as_bytes())?;
    common.say(&format!("wrote {}", args.output.join("sweep.html").display()));
    outputs::print(&if args.json { text } else { comparison.tables() })?;
    Ok(ExitCode::SUCCESS)
}

/// The figures of all cells: from the store where they are there, else by running them.
fn finish(
    plan: &Plan,
    cells: &[Cell],
    names: &[BTreeMap<String, String>],
    store: &Store,
    common: &Common,
) -> anyhow::Result<Vec<Finished>> {
    let known: Vec<Option<Finished>> =
        names.iter().enumerate().map(|(at, names)| store.load(at, names)).collect();
    let done = known.iter().flatten().count();
    common.say(&format!("{} cells, {done} of them done before", cells.len()));
    let bar = common.bar(cells.len() as u64, "cells");
    bar.inc(done as u64);
    bar.reset_eta();
    let run = |(at, known): (usize, Option<Finished>)| -> anyhow::Result<Finished> {
        if let Some(finished) = known {
            return Ok(finished);
        }
        let case = plan.case(&cells[at], false)?;
        let runs: Vec<_> = plan.policies.par_iter().map(|entry| case.run(entry)).collect();
        let runs: Result<Vec<Summary>, _> = runs.into_iter().map(|r| Ok(r?.summary)).collect();
        let runs = runs.map_err(|error: hither_sched::sim::Error| anyhow::anyhow!(error))?;
        let finished = Finished { cell: names[at].clone(), runs };
        store.save(at, &finished)?;
        bar.inc(1);
        Ok(finished)
    };
    let outcomes: Vec<anyhow::Result<Finished>> =
        common.pool()?.install(|| known.into_par_iter().enumerate().map(run).collect());
    bar.finish_and_clear();
    let told = |(at, outcome): (usize, anyhow::Result<Finished>)| {
        // Which cell it was matters more than which of several failed first.
        let place: Vec<String> = names[at].iter().map(|(k, v)| format!("{k}={v}")).collect();
        outcome.map_err(|error| error.context(format!("cell {}", place.join(" "))))
    };
    outcomes.into_iter().enumerate().map(told).collect()
}
