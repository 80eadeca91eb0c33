//! What a run would be, without doing it.

use std::process::ExitCode;

use hither_gnn::correct::ServerSteps;
use hither_gnn::train::Mode;
use serde::Serialize;

use super::args::TrainArgs;
use super::case::Case;
use super::drive::{Job, Ready};
use crate::outputs;

#[derive(Serialize)]
struct Planned {
    dataset: String,
    nodes: usize,
    edges: usize,
    train_nodes: usize,
    mode: &'static str,
    parameters: usize,
    parts: usize,
    partition: String,
    cut_share: f64,
    rounds: u32,
    runs: u32,
    /// Of a worker in the first round and in the last.
    local_steps: [f64; 2],
    /// Models alone, all workers, both ways.
    model_bytes_a_round: u64,
    /// Sent before the first round.
    setup_bytes: u64,
}

pub fn run(args: &TrainArgs, modes: &[Mode]) -> anyhow::Result<ExitCode> {
    let case = Case::open(args, args.run.seed)?;
    let planned: Vec<Planned> =
        modes.iter().map(|mode| plan(args, &case, *mode)).collect::<anyhow::Result<_>>()?;
    match args.run.json {
        true => outputs::print_json(&planned)?,
        false => outputs::print(&planned.iter().map(shown).collect::<Vec<_>>().join("\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &TrainArgs, case: &Case<'_>, mode: Mode) -> anyhow::Result<Planned> {
    let steps = match &args.server.server_steps {
        ServerSteps::Auto => ServerSteps::Fixed(1),
        steps => steps.clone(),
    };
    let job = Job { args, case, mode, run: 1, steps };
    let Ready { trainer, cut, cut_share } = job.ready()?;
    let workers = if mode == Mode::Single { 0 } else { trainer.workers.len() as u64 };
    let growth = args.local.rho.powi(args.run.rounds as i32 - 1);
    let first = f64::from(args.local.local_steps);
    Ok(Planned {
        dataset: case.data.name.clone(),
        nodes: case.data.graph.nodes(),
        edges: case.data.graph.edges(),
        train_nodes: case.data.split.train.len(),
        mode: mode.name(),
        parameters: trainer.global.params.len(),
        parts: trainer.workers.len().max(1),
        partition: cut,
        cut_share,
        rounds: args.run.rounds,
        runs: args.run.runs,
        local_steps: [first, (first * growth).round()],
        model_bytes_a_round: 2 * workers * trainer.global.bytes(),
        setup_bytes: trainer.setup_bytes,
    })
}

fn shown(plan: &Planned) -> String {
    let [first, last] = plan.local_steps;
    format!(
        "mode        {}\ndataset     {}: {} nodes, {} edges, {} nodes to learn from\n\
         parts       {} by {}, {:.1} % of edges cut\nmodel       {} parameters\n\
         rounds      {} in each of {} runs, {first} to {last} local steps\n\
         models      {:.2} MB a round, all workers, both ways\n\
         before      {:.2} MB\n",
        plan.mode,
        plan.dataset,
        plan.nodes,
        plan.edges,
        plan.train_nodes,
        plan.parts,
        plan.partition,
        100.0 * plan.cut_share,
        plan.parameters,
        plan.rounds,
        plan.runs,
        plan.model_bytes_a_round as f64 / 1e6,
        plan.setup_bytes as f64 / 1e6,
    )
}
