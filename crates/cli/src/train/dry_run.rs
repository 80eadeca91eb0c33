//! `hither train --dry-run`: sizes and costs of a run, without training.

use std::process::ExitCode;

use hither_gnn::config::TrainConfig;
use hither_gnn::correct::ServerSteps;
use hither_gnn::run::Run;
use hither_gnn::train::Mode;
use hither_gnn::update::Updates;
use serde::Serialize;

use super::args::TrainArgs;
use super::case::TrainingCase;
use super::drive::Job;
use super::stop::StopRequest;
use crate::{Common, outputs};

#[derive(Serialize)]
struct DryRun {
    dataset: String,
    nodes: usize,
    edges: usize,
    features: usize,
    classes: usize,
    train_nodes: usize,
    mode: &'static str,
    parameters: usize,
    parts: usize,
    partition: String,
    cut_share: f64,
    rounds: u32,
    runs: u32,
    /// Of a worker in the first round and in the last.
    local_steps: [u32; 2],
    /// Of the server in all rounds of a run; `None` if its budget decides.
    server_steps: Option<u64>,
    /// The server's budget per round, as a share of all workers' work.
    server_share: f64,
    /// Models alone, all workers, both directions.
    model_bytes_per_round: u64,
    /// Sent before the first round.
    setup_bytes: u64,
    /// The graph, features and labels in memory; parts hold copies of the features once more.
    dataset_bytes: u64,
    /// Files that one run writes with -o.
    output_bytes: u64,
}

/// What a mode is asked for.
type Config<'a> = &'a dyn Fn(&TrainingCase<'_>, Mode) -> anyhow::Result<TrainConfig>;

pub fn run(
    args: &TrainArgs,
    modes: &[Mode],
    config: Config,
    common: &Common,
) -> anyhow::Result<ExitCode> {
    let case = TrainingCase::open(args, 1, common)?;
    let planned: Vec<DryRun> = modes
        .iter()
        .map(|mode| plan(args, &case, config(&case, *mode)?))
        .collect::<anyhow::Result<_>>()?;
    match args.output.json {
        true => outputs::print_json(&planned)?,
        false => outputs::print(&planned.iter().map(shown).collect::<Vec<_>>().join("\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &TrainArgs, case: &TrainingCase<'_>, config: TrainConfig) -> anyhow::Result<DryRun> {
    let mode = config.by.mode();
    let (ranks, stop) = (None, StopRequest::default());
    let job = Job { args, case, config, run: 1, steps: None, ranks, stop };
    let run = job.ready()?;
    let output_bytes = run.output_bytes();
    let Run { trainer, cut, .. } = run;
    let settings = &trainer.settings;
    let both_ways =
        || trainer.models_bytes(Updates::Fp32) + trainer.models_bytes(settings.updates());
    let model_bytes_per_round = if mode.is_distributed() { both_ways() } else { 0 };
    let server_steps = match settings.server_steps {
        _ if !mode.corrects() => Some(0),
        ServerSteps::Fixed(steps) => Some(u64::from(steps) * u64::from(settings.rounds)),
        _ => None,
    };
    Ok(DryRun {
        dataset: case.data.name.clone(),
        nodes: case.data.graph.nodes(),
        edges: case.data.graph.edges(),
        features: case.data.features.dim(),
        classes: case.data.labels.count(),
        train_nodes: case.data.split.train.len(),
        mode: mode.name(),
        parameters: trainer.global.params.len(),
        parts: trainer.workers.parts().len().max(1),
        partition: cut.name,
        cut_share: cut.share,
        rounds: settings.rounds,
        runs: args.output.runs,
        local_steps: [1, settings.rounds].map(|round| settings.local_steps(round)),
        server_steps,
        server_share: settings.server_share,
        model_bytes_per_round,
        setup_bytes: trainer.setup_bytes,
        dataset_bytes: trainer.data.bytes(),
        output_bytes,
    })
}

fn shown(plan: &DryRun) -> String {
    let DryRun { mode, dataset, nodes, edges, features, classes, train_nodes, .. } = plan;
    let DryRun { parts, partition, parameters, rounds, server_share, .. } = plan;
    let [first, last] = plan.local_steps;
    let local = if first == last { first.to_string() } else { format!("{first} to {last}") };
    let runs = if plan.runs == 1 { "1 run".into() } else { format!("each of {} runs", plan.runs) };
    let server = match plan.server_steps {
        Some(steps) => format!("{steps} steps per run"),
        None => format!("as many steps as {server_share} of the workers' work pays for"),
    };
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let (cut, memory, models) =
        (100.0 * plan.cut_share, mb(plan.dataset_bytes), mb(plan.model_bytes_per_round));
    let (before, written) = (mb(plan.setup_bytes), mb(plan.output_bytes));
    format!(
        "mode        {mode}\ndataset     {dataset}: {nodes} nodes, {edges} edges, {features} features, \
         {classes} classes, {train_nodes} training nodes, {memory:.1} MB\n\
         parts       {parts} by {partition}, {cut:.1} % of edges cut\nmodel       {parameters} parameters\n\
         rounds      {rounds} in {runs}, {local} local steps per round\n\
         server      {server}\n\
         sent        {models:.2} MB of models per round, all workers, both directions; {before:.2} MB before\n\
         written     about {written:.1} MB per run with -o\n"
    )
}
