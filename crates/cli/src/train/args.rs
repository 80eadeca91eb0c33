//! The flags of a training run: what is said of a [`TrainConfig`], and what to do with the result.
//!
//! Every flag of a group has the name of a field of the configuration, and is put there if it was said. Defaults live
//! in the configuration alone.

use std::path::PathBuf;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use hither_gnn::config::{
    self, Batch, ClassWeights, MetricName, PartitionBy, StepCount, TaskName, TrainBy, TrainConfig,
    first_said,
};
use hither_gnn::layer::Norm;
use hither_gnn::links::pairs::{Loss, NegativesBy};
use hither_gnn::optim;
use hither_gnn::partition::PARTS_MAX;
use hither_gnn::run::Existing;
use hither_gnn::run::folder::RUNS_MAX;
use hither_gnn::sample::Fanout;
use hither_gnn::schedule::Schedule;
use hither_gnn::train::Mode;
use hither_gnn::update::Updates;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::dataset::DataArgs;
use crate::inputs::number;
use crate::outputs::Force;

#[derive(Debug, Clone, clap::Args)]
pub struct TrainArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    target: TargetFlags,
    #[command(flatten)]
    links: LinkFlags,
    #[command(flatten)]
    steps: StepFlags,
    #[command(flatten)]
    workers: WorkerFlags,
    #[command(flatten)]
    copies: CopyFlags,
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    pub run: RunFlags,
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(next_help_heading = "Model")]
#[serde(rename_all = "kebab-case")]
struct ModelFlags {
    /// Model: sage, gcn, gat, gatv2, gin, appnp, mlp or lightgcn, or its layers, such as sage,sage,linear
    /// [default: sage; lightgcn for user–item graphs]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Number of layers; for appnp and lightgcn, of propagation steps [default: 2; lightgcn: 3]
    #[arg(long, value_name = "N", value_parser = count(64))]
    layers: Option<usize>,
    /// Number of hidden units [default: 64]
    #[arg(long, value_name = "N", value_parser = count(65_536))]
    hidden: Option<usize>,
    /// Number of attention heads of gat and gatv2 [default: 1]
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = count(1024))]
    heads: Option<usize>,
    /// How gcn weighs neighbours: symmetric (by both degrees) or mean [default: symmetric]
    #[arg(long, value_name = "HOW", hide_short_help = true, value_parser = norm)]
    norm: Option<Norm>,
    /// Add batch normalisation after each layer but the last
    #[arg(long, hide_short_help = true)]
    batch_norm: bool,
    /// Add layer normalisation after each layer but the last
    #[arg(long, hide_short_help = true, conflicts_with = "batch_norm")]
    layer_norm: bool,
    /// Add the input of each layer to its output, where both have --hidden units
    #[arg(long, hide_short_help = true)]
    residual: bool,
    /// Dropout probability [default: 0.2]
    #[arg(long, value_name = "P", value_parser = |t: &str| number(t, 0.0, 0.99))]
    dropout: Option<f64>,
    /// Teleport probability of appnp [default: 0.2]
    #[arg(long, value_name = "P", hide_short_help = true, value_parser = |t: &str| number(t, 0.0, 1.0))]
    alpha: Option<f64>,
}

#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(next_help_heading = "What is learnt")]
#[serde(rename_all = "kebab-case")]
struct TargetFlags {
    /// Learn the labels of nodes (nodes) or which nodes are linked (links) [default: links for user–item
    /// graphs, else nodes]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    task: Option<TaskName>,
    /// Score that selects the best model. Nodes: accuracy, roc-auc, f1-micro, f1-macro. Links: recall@K, ndcg@K,
    /// mrr, hits@K [default: the dataset's; for user–item graphs recall@20, or of a tenth of fewer than 200 items; mrr for other
    /// links]
    #[arg(long, value_name = "NAME")]
    metric: Option<MetricName>,
    /// Weights of the classes in the loss: balanced, or one number per class (1,2.5,…)
    #[arg(long, value_name = "HOW", hide_short_help = true)]
    class_weights: Option<ClassWeights>,
}

#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(next_help_heading = "Links")]
#[serde(rename_all = "kebab-case")]
struct LinkFlags {
    /// Loss of links: softmax (over sampled nodes), bpr or bce [default: softmax]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    loss: Option<Loss>,
    /// Unlinked nodes to tell links from: per step with softmax [default: 2048], else per link [default: 1]
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = count(1 << 20))]
    negatives: Option<usize>,
    /// How to draw them: from all nodes alike (nodes) or by their number of links (links) [default: nodes]
    #[arg(long, value_name = "HOW", hide_short_help = true)]
    negatives_by: Option<NegativesBy>,
    /// Divide cosines by this in the softmax [default: 0.1]
    #[arg(long, value_name = "T", hide_short_help = true, value_parser = |t: &str| number(t, 0.001, 100.0))]
    temperature: Option<f64>,
    /// Power of the lengths of rows when links are ranked by products: 1 for products, 0 for cosines
    /// [default: 0.5 for user–item graphs with softmax, else 1]
    #[arg(long, value_name = "P", hide_short_help = true, value_parser = |t: &str| number(t, 0.0, 1.0))]
    length_power: Option<f64>,
    /// Share of the links to validate by; with 0 the model of the last round is kept [default: 0.05]
    #[arg(long, value_name = "SHARE", hide_short_help = true, value_parser = |t: &str| number(t, 0.0, 0.5))]
    valid_share: Option<f64>,
    /// Share of the links to test by, if the dataset does not say which [default: 0.1]
    #[arg(long, value_name = "SHARE", hide_short_help = true, value_parser = |t: &str| number(t, 0.0, 0.5))]
    test_share: Option<f64>,
}

#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(next_help_heading = "Steps")]
#[serde(rename_all = "kebab-case")]
struct StepFlags {
    /// Steps per round, of each worker in the first [default: 10]
    #[arg(long, value_name = "K", hide_short_help = true, value_parser = rounds())]
    local_steps: Option<u32>,
    /// Factor by which the steps grow per round [default: 1]
    #[arg(long, value_name = "F", hide_short_help = true, value_parser = |t: &str| number(t, 0.1, 10.0))]
    rho: Option<f64>,
    /// Learning rate [default: 0.01]
    #[arg(long, value_name = "RATE", value_parser = |t: &str| number(t, 1e-9, 1e3))]
    lr: Option<f64>,
    /// Training nodes or links per step, or `full` for all of them with all neighbours [default: 256;
    /// lightgcn: a quarter of the links, at most 8192; of all workers together]
    #[arg(long, value_name = "N")]
    batch: Option<Batch>,
    /// Neighbours sampled per node: one number, one per graph layer from the batch outwards (15,10,5),
    /// or `all` [default: 10; lightgcn: all]
    #[arg(long, value_name = "N,…")]
    fanout: Option<Fanout>,
    /// Optimiser of workers and server: adam or sgd [default: adam]
    #[arg(long, value_name = "NAME", hide_short_help = true, visible_alias = "optimizer")]
    optimiser: Option<optim::Method>,
    /// Change of the learning rates over the rounds: constant, cosine, linear, or step:N,F (times F every
    /// N rounds) [default: constant]
    #[arg(long, value_name = "HOW", hide_short_help = true)]
    lr_schedule: Option<Schedule>,
    /// Shorten gradients that are longer than this
    #[arg(long, value_name = "NORM", hide_short_help = true, value_parser = |t: &str| number(t, 1e-6, 1e6))]
    clip: Option<f64>,
    /// Weight decay [default: 0]
    #[arg(long, value_name = "RATE", hide_short_help = true, value_parser = |t: &str| number(t, 0.0, 10.0))]
    weight_decay: Option<f64>,
}

#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(next_help_heading = "Workers")]
#[serde(rename_all = "kebab-case")]
struct WorkerFlags {
    /// Train with this number of workers, each with one part of the graph [default in modes with workers: 8,
    /// or as in --partition-file, or as the dataset is partitioned]
    #[arg(long, value_name = "N", value_parser = count(PARTS_MAX as u64))]
    parts: Option<usize>,
    /// Partitioning method: metis, metis-even, clusters, ldg, fennel, random or label; `auto` is the
    /// first of metis-even, clusters and random whose parts are alike enough, by a probe [default: auto, and metis for links; or as the
    /// dataset is partitioned]
    #[arg(long, value_name = "METHOD", hide_short_help = true)]
    partition: Option<PartitionBy>,
    /// Read the parts from a file of `hither partition` or gpmetis
    #[arg(long, value_name = "FILE", hide_short_help = true, conflicts_with = "partition")]
    partition_file: Option<PathBuf>,
    /// Compress the models that workers send: fp32 (off), bf16, or top-k:0.05 (only the largest 5 % of changes;
    /// the rest is carried over to the next round) [default: fp32]
    #[arg(long, value_name = "FORM", hide_short_help = true)]
    updates: Option<Updates>,
}

#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(next_help_heading = "Workers")]
struct CopyFlags {
    /// Share of all nodes that each part stores copies of, in psgd-sa [default: 0.1]
    #[arg(long, value_name = "SHARE", hide_short_help = true, value_parser = |t: &str| number(t, 0.0, 1.0))]
    copies: Option<f64>,
}

#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(next_help_heading = "Server")]
#[serde(rename_all = "kebab-case")]
struct ServerFlags {
    /// Correction steps per round: a number, or `auto` (limited by --server-share; stops when a check on
    /// held-out nodes shows harm) [default: auto; for links an eighth of --local-steps]
    #[arg(long, value_name = "S", hide_short_help = true)]
    server_steps: Option<StepCount>,
    /// Budget of `auto`: the server's work per round, as a share of all workers' together [default: 0.3; with
    /// more than 8 workers as much as with 8]
    #[arg(long, value_name = "F", hide_short_help = true, value_parser = |t: &str| number(t, 0.0, 1000.0))]
    server_share: Option<f64>,
    /// Learning rate of the server [default: --lr]
    #[arg(long, value_name = "RATE", hide_short_help = true, value_parser = |t: &str| number(t, 1e-9, 1e3))]
    server_lr: Option<f64>,
    /// Training nodes or links per server step, or `full`; `auto` halves it while the budget pays for fewer
    /// server steps than local ones [default: 256; lightgcn: a quarter of the links, at most 8192]
    #[arg(long, value_name = "N", hide_short_help = true)]
    server_batch: Option<Batch>,
    /// Neighbours sampled per node on the server, as in --fanout [default: 10; lightgcn: all]
    #[arg(long, value_name = "N,…", hide_short_help = true)]
    server_fanout: Option<Fanout>,
}

#[derive(Debug, Clone, clap::Args, Serialize)]
#[command(next_help_heading = "Run")]
#[serde(rename_all = "kebab-case")]
pub struct RunFlags {
    /// Number of rounds [default: 50]
    #[arg(long, value_name = "N", value_parser = rounds())]
    rounds: Option<u32>,
    /// Evaluate on the whole graph every N rounds [default: 1]
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = rounds())]
    eval_every: Option<u32>,
    /// Stop after N evaluations without improvement
    #[arg(long, value_name = "N", value_parser = rounds())]
    patience: Option<u32>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
    pub seed: u64,
    /// Speed of the server's and of each worker's link, for the computed time [default: 10]
    #[arg(long, value_name = "GBIT", hide_short_help = true, value_parser = |t: &str| number(t, 1e-6, 1e6))]
    link_gbit: Option<f64>,
    /// Speed of one machine, for the computed time: 10⁹ multiply–adds per second in sums over neighbours
    /// and in matrix products [default: 40,80]
    #[arg(long, value_name = "SUMS,PRODUCTS", hide_short_help = true, value_parser = speed)]
    machine: Option<[f64; 2]>,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Number of runs, with seeds --seed, --seed + 1, …; each has its own initial weights, partition
    /// and, if the dataset has none, split
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=RUNS_MAX))]
    pub runs: u32,
    /// Continue the run in the output directory from its last checkpoint
    #[arg(long, requires = "output", conflicts_with = "force")]
    pub resume: bool,
    #[command(flatten)]
    pub force: Force,
    /// Write a checkpoint every N rounds, and after the last [default: 10]
    #[arg(long, value_name = "N", hide_short_help = true, requires = "output", value_parser = rounds())]
    pub checkpoint_every: Option<u32>,
    /// Read and partition the graph, print sizes and costs, and stop
    #[arg(long, hide_short_help = true)]
    pub dry_run: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Write the embeddings of graphs with more than a million nodes too
    #[arg(long, hide_short_help = true, requires = "output")]
    pub embeddings: bool,
    /// Directory to write the model, predictions and report to; without it only scores are printed
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// A number from 1 on.
fn count(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

fn rounds() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..=1_000_000)
}

fn norm(text: &str) -> Result<Norm, String> {
    match text {
        "symmetric" => Ok(Norm::Symmetric),
        "mean" => Ok(Norm::Mean),
        _ => Err("expected symmetric or mean".into()),
    }
}

fn speed(text: &str) -> Result<[f64; 2], String> {
    let expected = || "expected two numbers such as 40,80".to_owned();
    let (sums, products) = text.split_once(',').ok_or_else(expected)?;
    let read = |text: &str| number(text.trim(), 1e-6, 1e9).map_err(|_| expected());
    Ok([read(sums)?, read(products)?])
}

impl TrainArgs {
    /// The mode that was named, or the one that the other flags ask for: workers where there are several ranks, where
    /// the dataset is in parts, or where a flag is about workers; else one machine.
    pub fn mode_or_usual(&self, named: Option<Mode>, over_ranks: bool) -> Mode {
        let asks_for_workers = over_ranks
            || first_said(&self.workers).is_some()
            || first_said(&self.server).is_some()
            || self.data.is_partitioned();
        let usual = if asks_for_workers { Mode::Llcg } else { Mode::Single };
        named.unwrap_or(usual)
    }

    /// Refuses flags that none of some modes uses, so that nobody believes that they changed anything.
    pub fn check(&self, modes: &[Mode]) -> anyhow::Result<()> {
        let has = |what: fn(&TrainBy) -> bool| {
            modes.iter().any(|mode| self.by(*mode).is_ok_and(|by| what(&by)))
        };
        let groups = [
            (
                first_said(&self.workers),
                has(|by| by.workers().is_some()),
                "modes with workers, such as llcg",
            ),
            (first_said(&self.copies), has(|by| by.mode() == Mode::PsgdSa), "psgd-sa"),
            (
                first_said(&self.server),
                has(|by| by.server().is_some()),
                "llcg, llcg-stale and server-only",
            ),
        ];
        for (flag, is_used, by) in groups {
            if let Some(flag) = flag.filter(|_| !is_used) {
                let names: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
                bail!("{flag} is an option of {by}; --mode {} does not use it", names.join(","));
            }
        }
        if self.run.seed.checked_add(self.output.runs.into()).is_none() {
            bail!("--seed {} is too large for {} runs", self.run.seed, self.output.runs);
        }
        Ok(())
    }

    /// What a mode is asked for.
    pub fn config(&self, mode: Mode) -> anyhow::Result<TrainConfig> {
        Ok(TrainConfig {
            model: config::with_said(&self.model)?,
            target: config::with_said(&self.target)?,
            links: config::with_said(&self.links)?,
            steps: config::with_said(&self.steps)?,
            run: config::with_said(&self.run)?,
            by: self.by(mode)?,
        })
    }

    fn by(&self, mode: Mode) -> anyhow::Result<TrainBy> {
        let workers = || config::with_said(&self.workers);
        let server = || config::with_said(&self.server);
        Ok(match mode {
            Mode::Single => TrainBy::Single,
            Mode::PsgdPa => TrainBy::PsgdPa(workers()?),
            Mode::PsgdSa => TrainBy::PsgdSa(workers()?, config::with_said(&self.copies)?),
            Mode::Ggs => TrainBy::Ggs(workers()?),
            Mode::Llcg => TrainBy::Llcg(workers()?, server()?),
            Mode::LlcgStale => TrainBy::LlcgStale(workers()?, server()?),
            Mode::ServerOnly => TrainBy::ServerOnly(server()?),
        })
    }

    /// Every option that affects the result, by flag: the content of settings.json.
    pub fn settings(&self, config: &TrainConfig, data: &hither_gnn::Dataset) -> Map<String, Value> {
        let mut all = config.options();
        all.insert("hither".into(), json!(env!("CARGO_PKG_VERSION")));
        all.insert("dataset".into(), json!(self.data.name()));
        all.insert("data".into(), json!(data.id()));
        all.insert("split".into(), self.data.split_asked());
        all.insert("runs".into(), json!(self.output.runs));
        all
    }

    pub fn existing(&self) -> Existing {
        match (self.output.resume, self.output.force.force) {
            (true, _) => Existing::Resume,
            (_, true) => Existing::Replace,
            _ => Existing::Refuse,
        }
    }
}
