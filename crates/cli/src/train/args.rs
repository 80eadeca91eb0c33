//! What a user says of a training run, and what it means to the trainer. All defaults stand here.

use std::path::PathBuf;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use hither_gnn::correct::ServerSteps;
use hither_gnn::layer::Norm;
use hither_gnn::local::Pace;
use hither_gnn::model::{Kind, Spec};
use hither_gnn::partition::{self, PARTS_MAX};
use hither_gnn::sample::Fanout;
use hither_gnn::train::{Mode, Settings};
use hither_gnn::{Dataset, optim};
use serde_json::{Map, Value, json};

use super::store::RUNS_MAX;
use crate::dataset::DataArgs;
use crate::inputs::number;
use crate::outputs::Force;

/// A round of more steps than this is a slip, of --rho most likely.
const STEPS_MAX: f64 = 1e7;
const ROUNDS_MAX: u64 = 1_000_000;

#[derive(Debug, Clone, clap::Args)]
pub struct TrainArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub parts: PartArgs,
    #[command(flatten)]
    pub local: LocalArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// sage, gcn, gat, appnp or mlp, or layers separated by commas such as sage,sage,linear
    #[arg(long, value_name = "NAME", default_value = "sage")]
    pub model: String,
    /// Layers; of appnp, steps of propagation
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    #[arg(allow_negative_numbers = true)]
    pub layers: usize,
    /// Units of the layers between the first and the last
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    #[arg(allow_negative_numbers = true)]
    pub hidden: usize,
    /// Heads of attention (gat)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    #[arg(allow_negative_numbers = true)]
    pub heads: usize,
    /// How gcn weighs neighbours: symmetric, by both ends' degrees, or mean
    #[arg(long, value_name = "HOW", default_value = "symmetric", value_parser = norm)]
    pub norm: Norm,
    /// Normalise over the batch behind each layer but the last
    #[arg(long)]
    pub batch_norm: bool,
    /// Share of hidden units that are left out in each step
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = |t: &str| number(t, 0.0, 0.99))]
    #[arg(allow_negative_numbers = true)]
    pub dropout: f64,
    /// What a node keeps of its own in each step of propagation (appnp)
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    pub alpha: f64,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Workers")]
pub struct PartArgs {
    /// Workers, each with one part of the graph [default: 8, or those of --partition-file]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=PARTS_MAX as u64))]
    #[arg(allow_negative_numbers = true)]
    pub parts: Option<usize>,
    /// How the graph is cut: metis, ldg, fennel, random or label
    #[arg(long, value_name = "METHOD", default_value = "metis")]
    pub partition: partition::Method,
    /// Take the parts from a file of `hither partition` or gpmetis instead
    #[arg(long, value_name = "FILE", conflicts_with = "partition")]
    pub partition_file: Option<PathBuf>,
    /// Share of all nodes of which each part stores copies (psgd-sa)
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    pub copies: f64,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Local steps")]
pub struct LocalArgs {
    /// Steps of each worker in the first round
    #[arg(long, value_name = "K", default_value_t = 10, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1_000_000))]
    #[arg(allow_negative_numbers = true)]
    pub local_steps: u32,
    /// Factor by which local steps grow from round to round
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = |t: &str| number(t, 0.1, 10.0))]
    #[arg(allow_negative_numbers = true)]
    pub rho: f64,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 0.01, value_parser = |t: &str| number(t, 1e-9, 1e3))]
    #[arg(allow_negative_numbers = true)]
    pub lr: f64,
    /// Training nodes a step, or `full`: all of them, with all neighbours. One machine alone
    /// (single) takes as many as all workers together
    #[arg(long, value_name = "N", default_value = "256", value_parser = batch)]
    #[arg(allow_negative_numbers = true)]
    pub batch: Batch,
    /// Neighbours of a node that each layer sees, or `all`
    #[arg(long, value_name = "N", default_value = "10", value_parser = fanout)]
    #[arg(allow_negative_numbers = true)]
    pub fanout: Fanout,
    /// adam or sgd, for workers and server
    #[arg(long, value_name = "NAME", default_value = "adam")]
    pub optimiser: optim::Method,
    /// Weight decay
    #[arg(long, value_name = "RATE", default_value_t = 0.0, value_parser = |t: &str| number(t, 0.0, 10.0))]
    #[arg(allow_negative_numbers = true)]
    pub weight_decay: f64,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server steps")]
pub struct ServerArgs {
    /// Steps of the server after each averaging, or `auto`: as many as the measured drift asks for,
    /// and of the average only as much as lowers the whole graph's loss
    #[arg(long, value_name = "S", default_value = "auto", value_parser = server_steps)]
    #[arg(allow_negative_numbers = true)]
    pub server_steps: ServerSteps,
    /// Learning rate of the server [default: that of --lr]
    #[arg(long, value_name = "RATE", alias = "server-rate", value_parser = |t: &str| number(t, 1e-9, 1e3))]
    #[arg(allow_negative_numbers = true)]
    pub server_lr: Option<f64>,
    /// Training nodes of a step of the server, or `full`
    #[arg(long, value_name = "N", default_value = "256", value_parser = batch)]
    #[arg(allow_negative_numbers = true)]
    pub server_batch: Batch,
    /// Neighbours that each layer sees on the server, or `all`
    #[arg(long, value_name = "N", default_value = "all", value_parser = fanout)]
    #[arg(allow_negative_numbers = true)]
    pub server_fanout: Fanout,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    /// Rounds of local steps, averaging and correction
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = RangedU64ValueParser::<u32>::new().range(1..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub rounds: u32,
    /// Rounds from one evaluation on the whole graph to the next
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub eval_every: u32,
    /// Measure drift in the first N rounds, and from then on every N rounds; 0 for never
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<u32>::new().range(0..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub probe_every: u32,
    /// Stop after so many evaluations without a better one
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub patience: Option<u32>,
    /// Repeat with seed, seed + 1, …, each with its own start, cut and, where the dataset brings
    /// none, split
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=RUNS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub runs: u32,
    /// Seed of everything that is drawn
    #[arg(long, value_name = "N", default_value_t = 1, env = "HITHER_SEED")]
    #[arg(allow_negative_numbers = true)]
    pub seed: u64,
    /// Go on with the run in the output directory, from its last checkpoint
    #[arg(long, requires = "output", conflicts_with = "force")]
    pub resume: bool,
    #[command(flatten)]
    pub force: Force,
    /// Rounds from one checkpoint to the next; the last round always has one
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = RangedU64ValueParser::<u32>::new().range(1..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub checkpoint_every: u32,
    /// Read and cut the graph, tell what would be done, and stop
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Directory for the results
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Nodes a step; none for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch(pub Option<usize>);

fn batch(text: &str) -> Result<Batch, String> {
    match text.parse() {
        _ if text == "full" => Ok(Batch(None)),
        Ok(nodes @ 1..=16_777_216) => Ok(Batch(Some(nodes))),
        _ => Err("expected a number from 1 to 16777216, or `full`".into()),
    }
}

fn fanout(text: &str) -> Result<Fanout, String> {
    match text.parse() {
        _ if text == "all" => Ok(Fanout::All),
        Ok(most @ 1..=1_000_000) => Ok(Fanout::AtMost(most)),
        _ => Err("expected a number from 1 to 1000000, or `all`".into()),
    }
}

fn server_steps(text: &str) -> Result<ServerSteps, String> {
    match text.parse() {
        _ if text == "auto" => Ok(ServerSteps::Auto),
        Ok(steps @ 0..=1_000_000) => Ok(ServerSteps::Fixed(steps)),
        _ => Err("expected a number from 0 to 1000000, or `auto`".into()),
    }
}

fn norm(text: &str) -> Result<Norm, String> {
    match text {
        "symmetric" => Ok(Norm::Symmetric),
        "mean" => Ok(Norm::Mean),
        _ => Err(format!("`{text}` is no way to weigh neighbours: symmetric or mean")),
    }
}

impl TrainArgs {
    /// What can be told to be wrong before any file is read.
    pub fn check(&self, modes: &[Mode]) -> anyhow::Result<()> {
        Kind::stack(&self.model.model, self.model.layers).map_err(anyhow::Error::msg)?;
        let (local, run) = (&self.local, &self.run);
        let last = f64::from(local.local_steps) * local.rho.powi(run.rounds as i32 - 1);
        if last > STEPS_MAX {
            bail!(
                "with --rho {} the last of {} rounds would take {last:.0} steps; lower one of them",
                local.rho,
                run.rounds
            );
        }
        if run.seed.checked_add(run.runs.into()).is_none() {
            bail!("--seed {} has not {} seeds behind it", run.seed, run.runs);
        }
        let auto = self.server.server_steps == ServerSteps::Auto;
        let corrects = |mode: &Mode| matches!(mode, Mode::Llcg | Mode::LlcgStale);
        if auto && run.probe_every == 0 && modes.iter().any(corrects) {
            bail!(
                "--server-steps auto needs the drift that --probe-every 0 does not measure; give a \
                 number of steps"
            );
        }
        if auto && modes.contains(&Mode::ServerOnly) && !modes.iter().any(corrects) {
            bail!(
                "nobody measures drift for server-only: give a number of --server-steps, or compare \
                 it with llcg, whose steps it then takes"
            );
        }
        Ok(())
    }

    pub fn spec(&self, data: &Dataset) -> anyhow::Result<Spec> {
        let model = &self.model;
        Ok(Spec {
            layers: Kind::stack(&model.model, model.layers).map_err(anyhow::Error::msg)?,
            inputs: data.features.dim(),
            hidden: model.hidden,
            outputs: data.labels.count(),
            heads: model.heads,
            norm: model.norm,
            batch_norm: model.batch_norm,
            dropout: model.dropout as f32,
            steps: model.layers,
            alpha: model.alpha as f32,
        })
    }

    /// Of one run. `parts` is how many workers share the work.
    pub fn settings(&self, mode: Mode, seed: u64, parts: usize, steps: ServerSteps) -> Settings {
        let (local, server, run) = (&self.local, &self.server, &self.run);
        let together = if mode == Mode::Single { parts } else { 1 };
        let rounds = match &steps {
            // There is nothing to compare with beyond where the other one stopped.
            ServerSteps::Like(steps) => run.rounds.min(steps.len() as u32),
            _ => run.rounds,
        };
        Settings {
            mode,
            rounds,
            local_steps: local.local_steps,
            rho: local.rho,
            local: Pace {
                batch: local.batch.0.map(|batch| batch.saturating_mul(together)),
                fanout: local.fanout,
                rate: local.lr as f32,
            },
            server: Pace {
                batch: server.server_batch.0,
                fanout: server.server_fanout,
                rate: server.server_lr.unwrap_or(local.lr) as f32,
            },
            server_steps: steps,
            optimiser: local.optimiser,
            decay: local.weight_decay as f32,
            evaluate_every: run.eval_every,
            probe_every: run.probe_every,
            patience: run.patience,
            copies: self.parts.copies,
            seed,
        }
    }

    /// Everything that decides what comes out, by flag: settings.json.
    pub fn asked(&self, modes: Value) -> Map<String, Value> {
        let (data, model, parts) = (&self.data, &self.model, &self.parts);
        let (local, server, run) = (&self.local, &self.server, &self.run);
        let size = |batch: Batch| batch.0.map_or(json!("full"), |nodes| json!(nodes));
        let seen = |fanout: Fanout| match fanout {
            Fanout::All => json!("all"),
            Fanout::AtMost(most) => json!(most),
        };
        let steps = match &server.server_steps {
            ServerSteps::Fixed(steps) => json!(steps),
            _ => json!("auto"),
        };
        let cut = match &parts.partition_file {
            Some(path) => json!({ "file": path.file_name().map(|name| name.to_string_lossy()) }),
            None => json!(parts.partition.name()),
        };
        let pairs = [
            ("hither", json!(env!("CARGO_PKG_VERSION"))),
            ("dataset", json!(data.name())),
            ("split", data.split_asked()),
            ("mode", modes),
            ("model", json!(model.model)),
            ("layers", json!(model.layers)),
            ("hidden", json!(model.hidden)),
            ("heads", json!(model.heads)),
            ("norm", json!(model.norm)),
            ("batch-norm", json!(model.batch_norm)),
            ("dropout", json!(model.dropout)),
            ("alpha", json!(model.alpha)),
            ("parts", json!(parts.parts)),
            ("partition", cut),
            ("copies", json!(parts.copies)),
            ("local-steps", json!(local.local_steps)),
            ("rho", json!(local.rho)),
            ("lr", json!(local.lr)),
            ("batch", size(local.batch)),
            ("fanout", seen(local.fanout)),
            ("optimiser", json!(local.optimiser)),
            ("weight-decay", json!(local.weight_decay)),
            ("server-steps", steps),
            ("server-lr", json!(server.server_lr.unwrap_or(local.lr))),
            ("server-batch", size(server.server_batch)),
            ("server-fanout", seen(server.server_fanout)),
            ("eval-every", json!(run.eval_every)),
            ("probe-every", json!(run.probe_every)),
            ("seed", json!(run.seed)),
            ("rounds", json!(run.rounds)),
            ("patience", json!(run.patience)),
            ("runs", json!(run.runs)),
        ];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}
