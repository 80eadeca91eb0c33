//! The options of a training run, with all defaults, and the trainer's settings that they make.

mod exchange;
mod links;
mod values;

use std::path::PathBuf;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use hither_core::record::train::Machine;
use hither_gnn::correct::ServerSteps;
use hither_gnn::layer::Norm;
use hither_gnn::local::Pace;
use hither_gnn::model::{Kind, Spec};
use hither_gnn::partition::{self, PARTS_MAX};
use hither_gnn::sample::Fanout;
use hither_gnn::schedule::Schedule;
use hither_gnn::train::{Mode, Settings};
use hither_gnn::{Dataset, Labels, optim};
use serde_json::{Map, Value, json};

pub use exchange::ExchangeArgs;
pub use links::{LinkArgs, MetricName, TaskName};
pub use values::{Batch, ClassWeights, Speed};
use values::{batch, class_weights, fanout, norm, server_steps, speed};

use super::store::RUNS_MAX;
use crate::dataset::DataArgs;
use crate::inputs::number;
use crate::outputs::Force;

/// Upper bound on the local steps of a round; more is a mistake, most likely in --rho.
const STEPS_MAX: f64 = 1e7;
const ROUNDS_MAX: u64 = 1_000_000;

#[derive(Debug, Clone, clap::Args)]
pub struct TrainArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub links: LinkArgs,
    #[command(flatten)]
    pub parts: PartArgs,
    #[command(flatten)]
    pub local: LocalArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub exchange: ExchangeArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Model: sage, gcn, gat, gatv2, gin, appnp, mlp or lightgcn, or its layers, such as sage,sage,linear
    /// [default: sage; lightgcn for user–item graphs]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Number of layers; for appnp and lightgcn, of propagation steps [default: 2; lightgcn: 3]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    #[arg(allow_negative_numbers = true)]
    pub layers: Option<usize>,
    /// Number of hidden units
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    #[arg(allow_negative_numbers = true)]
    pub hidden: usize,
    /// Number of attention heads (gat, gatv2)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    #[arg(allow_negative_numbers = true)]
    pub heads: usize,
    /// Normalisation of neighbours in gcn: symmetric (by both degrees) or mean
    #[arg(long, value_name = "HOW", default_value = "symmetric", value_parser = norm)]
    pub norm: Norm,
    /// Add batch normalisation after each layer but the last
    #[arg(long)]
    pub batch_norm: bool,
    /// Add layer normalisation after each layer but the last
    #[arg(long, conflicts_with = "batch_norm")]
    pub layer_norm: bool,
    /// Add the input of each layer to its output, where both have --hidden units
    #[arg(long)]
    pub residual: bool,
    /// Dropout probability
    #[arg(long, value_name = "P", default_value_t = 0.2, value_parser = |t: &str| number(t, 0.0, 0.99))]
    #[arg(allow_negative_numbers = true)]
    pub dropout: f64,
    /// Score that chooses the model: accuracy, roc-auc, f1-micro or f1-macro; of links recall@K or ndcg@K
    /// among all nodes, mrr or hits@K among 100 [default: as the dataset says; recall@20 for user–item
    /// graphs, mrr for other links]
    #[arg(long, value_name = "NAME")]
    pub metric: Option<MetricName>,
    /// Weights of the classes in the loss: balanced, or one number per class (1,2.5,…)
    #[arg(long, value_name = "HOW", value_parser = class_weights)]
    pub class_weights: Option<ClassWeights>,
    /// Teleport probability (appnp)
    #[arg(long, value_name = "P", default_value_t = 0.2, value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    pub alpha: f64,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Workers")]
pub struct PartArgs {
    /// Number of workers, each with one part of the graph [default: 8, or as in --partition-file, or as
    /// the dataset is partitioned]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=PARTS_MAX as u64))]
    #[arg(allow_negative_numbers = true)]
    pub parts: Option<usize>,
    /// Partitioning method: metis, ldg, fennel, random or label [default: metis, or as the dataset is
    /// partitioned]
    #[arg(long, value_name = "METHOD")]
    pub partition: Option<partition::Method>,
    /// Read the parts from a file of `hither partition` or gpmetis
    #[arg(long, value_name = "FILE", conflicts_with = "partition")]
    pub partition_file: Option<PathBuf>,
    /// Share of all nodes that each part stores copies of (psgd-sa)
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = |t: &str| number(t, 0.0, 1.0))]
    #[arg(allow_negative_numbers = true)]
    pub copies: f64,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Local steps")]
pub struct LocalArgs {
    /// Local steps per worker in the first round
    #[arg(long, value_name = "K", default_value_t = 10, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1_000_000))]
    #[arg(allow_negative_numbers = true)]
    pub local_steps: u32,
    /// Factor by which the local steps grow per round
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = |t: &str| number(t, 0.1, 10.0))]
    #[arg(allow_negative_numbers = true)]
    pub rho: f64,
    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 0.01, value_parser = |t: &str| number(t, 1e-9, 1e3))]
    #[arg(allow_negative_numbers = true)]
    pub lr: f64,
    /// Training nodes or links per step, or `full` for all of them with all neighbours; `single` takes as
    /// many as all workers together [default: 256; lightgcn: 8192]
    #[arg(long, value_name = "N", value_parser = batch)]
    #[arg(allow_negative_numbers = true)]
    pub batch: Option<Batch>,
    /// Neighbours sampled per node: one number, one per graph layer from the batch outwards (15,10,5),
    /// or `all` [default: 10; lightgcn: all]
    #[arg(long, value_name = "N,…", value_parser = fanout)]
    #[arg(allow_negative_numbers = true)]
    pub fanout: Option<Fanout>,
    /// Optimiser of workers and server: adam or sgd
    #[arg(long, value_name = "NAME", default_value = "adam", visible_alias = "optimizer")]
    pub optimiser: optim::Method,
    /// Change of the learning rates over the rounds: constant, cosine, linear, or step:N,F (times F every
    /// N rounds)
    #[arg(long, value_name = "HOW", default_value = "constant")]
    pub lr_schedule: Schedule,
    /// Shorten gradients that are longer than this
    #[arg(long, value_name = "NORM", value_parser = |t: &str| number(t, 1e-6, 1e6))]
    #[arg(allow_negative_numbers = true)]
    pub clip: Option<f64>,
    /// Weight decay
    #[arg(long, value_name = "RATE", default_value_t = 0.0, value_parser = |t: &str| number(t, 0.0, 10.0))]
    #[arg(allow_negative_numbers = true)]
    pub weight_decay: f64,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server steps")]
pub struct ServerArgs {
    /// Server steps per round, or `auto`: as many as --server-share pays for, as long as they help
    #[arg(long, value_name = "S", default_value = "auto", value_parser = server_steps)]
    #[arg(allow_negative_numbers = true)]
    pub server_steps: ServerSteps,
    /// Budget of `auto`: the server's work per round, as a share of one worker's
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = |t: &str| number(t, 0.0, 1000.0))]
    #[arg(allow_negative_numbers = true)]
    pub server_share: f64,
    /// Learning rate of the server [default: --lr]
    #[arg(long, value_name = "RATE", alias = "server-rate", value_parser = |t: &str| number(t, 1e-9, 1e3))]
    #[arg(allow_negative_numbers = true)]
    pub server_lr: Option<f64>,
    /// Training nodes or links per server step, or `full`; `auto` halves it while the budget pays for fewer
    /// server steps than local ones [default: 256; lightgcn: 8192]
    #[arg(long, value_name = "N", value_parser = batch)]
    #[arg(allow_negative_numbers = true)]
    pub server_batch: Option<Batch>,
    /// Neighbours sampled per node on the server, as in --fanout [default: 10; lightgcn: all]
    #[arg(long, value_name = "N,…", value_parser = fanout)]
    #[arg(allow_negative_numbers = true)]
    pub server_fanout: Option<Fanout>,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Run")]
pub struct RunArgs {
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = RangedU64ValueParser::<u32>::new().range(1..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub rounds: u32,
    /// Evaluate on the whole graph every N rounds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub eval_every: u32,
    /// Measure drift (κA, κX, σ²) in the first N rounds and every N rounds after that
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "5")]
    #[arg(value_parser = RangedU64ValueParser::<u32>::new().range(1..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub probe: Option<u32>,
    /// Speed of the server's and of each worker's link, from which the critical path is computed
    #[arg(long, value_name = "GBIT", default_value_t = 10.0, value_parser = |t: &str| number(t, 1e-6, 1e6))]
    #[arg(allow_negative_numbers = true)]
    pub link_gbit: f64,
    /// Speed of one machine for the critical path: 10⁹ multiply–adds per second in sums over neighbours
    /// and in matrix products
    #[arg(long, value_name = "SUMS,PRODUCTS", default_value = "40,80", value_parser = speed)]
    #[arg(allow_negative_numbers = true)]
    pub machine: Speed,
    /// Stop after N evaluations without improvement
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub patience: Option<u32>,
    /// Number of runs, with seeds --seed, --seed + 1, …; each has its own initial weights, partition
    /// and, if the dataset has none, split
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<u32>::new().range(1..=RUNS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub runs: u32,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
    #[arg(allow_negative_numbers = true)]
    pub seed: u64,
    /// Continue the run in the output directory from its last checkpoint
    #[arg(long, requires = "output", conflicts_with = "force")]
    pub resume: bool,
    #[command(flatten)]
    pub force: Force,
    /// Write a checkpoint every N rounds, and after the last
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = RangedU64ValueParser::<u32>::new().range(1..=ROUNDS_MAX))]
    #[arg(allow_negative_numbers = true)]
    pub checkpoint_every: u32,
    /// Read and partition the graph, print sizes and costs, and stop
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Write the embeddings of graphs with more than a million nodes too
    #[arg(long)]
    pub embeddings: bool,
    /// Directory to write the model, predictions and report to; without it only scores are printed
    #[arg(long, short, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// A list of numbers must have one for each hop of the model.
fn check_fanout(flag: &str, fanout: &Fanout, hops: usize) -> anyhow::Result<()> {
    if let Fanout::PerHop(most) = fanout
        && most.len() != hops
    {
        let (given, s) = (most.len(), if hops == 1 { "" } else { "s" });
        bail!(
            "{flag} has {given} numbers, but the model has {hops} graph layer{s}; give one number for \
             all layers, or one per layer"
        );
    }
    Ok(())
}

impl TrainArgs {
    /// Refuses options that do not fit each other, before any file is read.
    pub fn check(&self, modes: &[Mode]) -> anyhow::Result<()> {
        let hops = self.stack()?.iter().map(|kind| kind.hops(self.layers())).sum();
        check_fanout("--fanout", &self.fanout(), hops)?;
        check_fanout("--server-fanout", &self.server_fanout(), hops)?;
        if self.has_rows() && !self.learns_links() {
            bail!(
                "--model {} has a trained row per node, which learns links only; give --task links, or \
                 another model",
                self.model_name()
            );
        }
        if self.learns_links() {
            self.check_links(modes)?;
        } else if let Some(metric @ MetricName::Links(_)) = self.model.metric {
            bail!("--metric {metric} is a score of links; give --task links, or a score of labels");
        }
        let (local, run) = (&self.local, &self.run);
        let last = f64::from(local.local_steps) * local.rho.powi(run.rounds as i32 - 1);
        if last > STEPS_MAX {
            bail!(
                "with --rho {} the last of {} rounds would take {last:.0} local steps; lower one of them",
                local.rho,
                run.rounds
            );
        }
        if run.seed.checked_add(run.runs.into()).is_none() {
            bail!("--seed {} is too large for {} runs", run.seed, run.runs);
        }
        let auto = self.server.server_steps == ServerSteps::Auto;
        let corrects = |mode: &Mode| mode.corrects_workers();
        if auto && modes.contains(&Mode::ServerOnly) && !modes.iter().any(corrects) {
            bail!(
                "--mode server-only has no workers whose work would be its budget; give a number of \
                 --server-steps, or use `train compare` with llcg, whose steps it then takes"
            );
        }
        Ok(())
    }

    /// Whether links are learnt, not labels.
    pub fn learns_links(&self) -> bool {
        match self.links.task {
            Some(task) => task == TaskName::Links,
            None => self.data.is_user_item(),
        }
    }

    pub fn model_name(&self) -> &str {
        let usual = || if self.data.is_user_item() { "lightgcn" } else { "sage" };
        self.model.model.as_deref().unwrap_or_else(usual)
    }

    fn is_light(&self) -> bool {
        self.model_name() == "lightgcn"
    }

    fn layers(&self) -> usize {
        self.model.layers.unwrap_or(if self.is_light() { 3 } else { 2 })
    }

    pub fn stack(&self) -> anyhow::Result<Vec<Kind>> {
        Kind::stack(self.model_name(), self.layers()).map_err(anyhow::Error::msg)
    }

    /// Whether every node has a trained row in place of features.
    pub fn has_rows(&self) -> bool {
        self.stack().is_ok_and(|stack| stack.first() == Some(&Kind::Embedding))
    }

    fn batch_or_usual(&self, asked: Option<Batch>) -> Batch {
        asked.unwrap_or(Batch(Some(if self.is_light() { 8192 } else { 256 })))
    }

    fn fanout_or_usual(&self, asked: Option<&Fanout>) -> Fanout {
        let usual = if self.is_light() { Fanout::All } else { Fanout::AtMost(10) };
        asked.cloned().unwrap_or(usual)
    }

    fn batch(&self) -> Batch {
        self.batch_or_usual(self.local.batch)
    }

    fn fanout(&self) -> Fanout {
        self.fanout_or_usual(self.local.fanout.as_ref())
    }

    pub fn server_batch(&self) -> Batch {
        self.batch_or_usual(self.server.server_batch)
    }

    fn server_fanout(&self) -> Fanout {
        self.fanout_or_usual(self.server.server_fanout.as_ref())
    }

    /// Takes the score and the weights of classes that are asked for.
    pub fn prepare_labels(&self, data: &mut Dataset) -> anyhow::Result<()> {
        if let Some(MetricName::Nodes(metric)) = self.model.metric {
            data.metric = metric;
            data.check()?;
        }
        let classes = data.labels.count();
        let weights = match &self.model.class_weights {
            None => return Ok(()),
            Some(ClassWeights::Balanced) => data.balanced_weights(),
            Some(ClassWeights::Given(weights)) if weights.len() == classes => Some(weights.clone()),
            Some(ClassWeights::Given(weights)) => bail!(
                "--class-weights has {} numbers, but {} has {classes} classes",
                weights.len(),
                data.name
            ),
        };
        let has_classes = matches!(data.labels, Labels::Classes { .. });
        let Some(weights) = weights.filter(|_| has_classes) else {
            bail!("{} has several labels per node; --class-weights need one", data.name);
        };
        data.class_weights = Some(weights.into());
        Ok(())
    }

    pub fn spec(&self, data: &Dataset) -> anyhow::Result<Spec> {
        let model = &self.model;
        Ok(Spec {
            layers: self.stack()?,
            inputs: data.features.dim(),
            hidden: model.hidden,
            outputs: if data.links.is_some() { model.hidden } else { data.labels.count() },
            heads: model.heads,
            norm: model.norm,
            batch_norm: model.batch_norm,
            layer_norm: model.layer_norm,
            residual: model.residual,
            dropout: model.dropout as f32,
            steps: self.layers(),
            alpha: model.alpha as f32,
            length_power: if data.links.is_some() { self.length_power() } else { 1.0 },
        })
    }

    /// The trainer's settings of one run with `parts` workers.
    pub fn settings(
        &self,
        data: &Dataset,
        mode: Mode,
        seed: u64,
        parts: usize,
        steps: ServerSteps,
    ) -> Settings {
        let (local, server, run) = (&self.local, &self.server, &self.run);
        let together = if mode == Mode::Single { parts } else { 1 };
        let rounds = match &steps {
            // Stop where the other run stopped: beyond that there is nothing to compare with.
            ServerSteps::Like(steps) => run.rounds.min(steps.len() as u32),
            _ => run.rounds,
        };
        Settings {
            task: self.task(data, seed),
            mode,
            rounds,
            local_steps: local.local_steps,
            rho: local.rho,
            local: Pace {
                batch: self.batch().0.map(|batch| batch.saturating_mul(together)),
                fanout: self.fanout(),
                rate: local.lr as f32,
                clip: local.clip.map(|most| most as f32),
            },
            server: Pace {
                batch: self.server_batch().0,
                fanout: self.server_fanout(),
                rate: server.server_lr.unwrap_or(local.lr) as f32,
                clip: local.clip.map(|most| most as f32),
            },
            schedule: local.lr_schedule,
            server_steps: steps,
            server_share: server.server_share,
            machine: self.machine(),
            optimiser: local.optimiser,
            decay: local.weight_decay as f32,
            evaluate_every: run.eval_every,
            probe_every: run.probe.unwrap_or(0),
            patience: run.patience,
            copies: self.parts.copies,
            updates: self.exchange.updates,
            seed,
        }
    }

    /// The machine and link that counted work and bytes are converted to seconds by.
    fn machine(&self) -> Machine {
        let RunArgs { machine, link_gbit, .. } = &self.run;
        Machine {
            sums_per_s: machine.sums * 1e9,
            products_per_s: machine.products * 1e9,
            link_bytes_per_s: link_gbit * 1e9 / 8.0,
        }
    }

    fn asked_of_links(&self) -> [(&'static str, Value); 7] {
        let links = &self.links;
        [
            ("loss", json!(links.loss)),
            ("negatives", json!(links.negatives)),
            ("negatives-by", json!(links.negatives_by)),
            ("temperature", json!(links.temperature)),
            ("length-power", json!(self.length_power())),
            ("valid-share", json!(links.valid_share)),
            ("test-share", json!(links.test_share)),
        ]
    }

    /// Every option that affects the result, by flag: the content of settings.json.
    pub fn asked(&self, modes: Value) -> Map<String, Value> {
        let (data, model, parts) = (&self.data, &self.model, &self.parts);
        let (local, server, run) = (&self.local, &self.server, &self.run);
        let size = |batch: Batch| batch.0.map_or(json!("full"), |nodes| json!(nodes));
        let steps = match &server.server_steps {
            ServerSteps::Fixed(steps) => json!(steps),
            _ => json!("auto"),
        };
        let cut = match &parts.partition_file {
            Some(path) => json!({ "file": path.file_name().map(|name| name.to_string_lossy()) }),
            None if data.is_partitioned() => json!("stored"),
            None => json!(parts.partition.unwrap_or_default().name()),
        };
        let weights = match &model.class_weights {
            None => json!(null),
            Some(ClassWeights::Balanced) => json!("balanced"),
            Some(ClassWeights::Given(weights)) => json!(weights),
        };
        let pairs = [
            ("hither", json!(env!("CARGO_PKG_VERSION"))),
            ("dataset", json!(data.name())),
            ("split", data.split_asked()),
            ("edge-weights", json!(data.edge_weights())),
            ("mode", modes),
            ("model", json!(self.model_name())),
            ("layers", json!(self.layers())),
            ("hidden", json!(model.hidden)),
            ("heads", json!(model.heads)),
            ("norm", json!(model.norm)),
            ("batch-norm", json!(model.batch_norm)),
            ("layer-norm", json!(model.layer_norm)),
            ("residual", json!(model.residual)),
            ("dropout", json!(model.dropout)),
            ("alpha", json!(model.alpha)),
            ("metric", json!(model.metric.map(|metric| metric.to_string()))),
            ("class-weights", weights),
            ("parts", json!(parts.parts)),
            ("partition", cut),
            ("copies", json!(parts.copies)),
            ("local-steps", json!(local.local_steps)),
            ("rho", json!(local.rho)),
            ("lr", json!(local.lr)),
            ("lr-schedule", json!(local.lr_schedule)),
            ("clip", json!(local.clip)),
            ("batch", size(self.batch())),
            ("fanout", shown_fanout(&self.fanout())),
            ("optimiser", json!(local.optimiser)),
            ("weight-decay", json!(local.weight_decay)),
            ("server-steps", steps),
            ("server-share", json!(server.server_share)),
            ("server-lr", json!(server.server_lr.unwrap_or(local.lr))),
            ("server-batch", size(self.server_batch())),
            ("server-fanout", shown_fanout(&self.server_fanout())),
            ("eval-every", json!(run.eval_every)),
            ("probe", json!(run.probe)),
            ("link-gbit", json!(run.link_gbit)),
            ("machine", json!([run.machine.sums, run.machine.products])),
            ("seed", json!(run.seed)),
            ("rounds", json!(run.rounds)),
            ("patience", json!(run.patience)),
            ("runs", json!(run.runs)),
        ];
        let of_links = self.asked_of_links().into_iter().filter(|_| self.learns_links());
        let all = pairs.into_iter().chain(self.exchange.asked()).chain(of_links);
        all.map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// A fanout as it is given on the command line.
fn shown_fanout(fanout: &Fanout) -> Value {
    match fanout {
        Fanout::All => json!("all"),
        Fanout::AtMost(most) => json!(most),
        Fanout::PerHop(most) => {
            json!(most.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
        }
    }
}
