//! Everything that a training run can be asked for, with its defaults.
//!
//! A [`TrainConfig`] is what a user says, and is the same for any graph. [`TrainConfig::prepare`] makes of a graph
//! what is learnt from it, and [`TrainConfig::resolve`] fills in what follows from it: the [`Plan`] of a run. Nothing
//! here reads files or knows of command lines.

mod check;
mod values;

use std::path::PathBuf;

use hither_core::record::train::Machine;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::correct::ServerSteps;
use crate::layer::Norm;
use crate::links::Shares;
use crate::links::metric::LinkMetric;
use crate::links::pairs::{Loss, NegativesBy};
use crate::local::Pace;
use crate::mode::Mode;
use crate::model::{Kind, Model, Spec};
use crate::sample::Fanout;
use crate::schedule::Schedule;
use crate::task::{Objective, Task};
use crate::train::Settings;
use crate::update::Updates;
use crate::{Dataset, Error, Features, Labels, optim};

pub use values::{Batch, ClassWeights, MetricName, PartitionBy, StepCount, TaskName};

/// Defines a group of options, each with its default beside it.
macro_rules! options {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$of_field:meta])* $field:ident: $type:ty = $default:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $name {
            $($(#[$of_field])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

/// Workers without further word.
pub const PARTS: usize = 8;
/// Nodes per step of one machine without further word.
const BATCH: usize = 256;
/// What the server may spend of the work of up to [`PARTS`] workers: a quarter of all, with what a last step goes beyond.
const SERVER_SHARE: f64 = 0.3;

/// A training run as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    pub model: ModelConfig,
    pub target: TargetConfig,
    pub links: LinkConfig,
    pub steps: StepConfig,
    pub run: RunConfig,
    /// Who trains: one machine, or workers with options of their own.
    pub by: TrainBy,
}

options! {
    /// The model.
    pub struct ModelConfig {
        /// A family, or layers separated by commas; `None`: sage, or lightgcn for user–item graphs.
        model: Option<String> = None,
        /// Layers, or steps of propagation; `None`: 2, and 3 for lightgcn.
        layers: Option<usize> = None,
        hidden: usize = 64,
        /// Attention heads; `None`: 1.
        heads: Option<usize> = None,
        /// How graph convolutions weigh neighbours; `None`: symmetric.
        norm: Option<Norm> = None,
        batch_norm: bool = false,
        layer_norm: bool = false,
        residual: bool = false,
        /// `None`: 0.2.
        dropout: Option<f64> = None,
        /// Teleport probability of propagation; `None`: 0.2.
        alpha: Option<f64> = None,
    }
}

/// What is learnt, and what counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TargetConfig {
    /// `None`: links for user–item graphs, else the labels of nodes.
    pub task: Option<TaskName>,
    /// The score that chooses the model; `None`: the usual one of the dataset.
    pub metric: Option<MetricName>,
    /// How classes count in the loss; `None`: by their nodes.
    pub class_weights: Option<ClassWeights>,
}

/// How links are learnt, where they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LinkConfig {
    /// Loss of links; `None`: softmax.
    pub loss: Option<Loss>,
    /// Unlinked nodes per step with softmax, `None`: 2048; else per link, `None`: 1.
    pub negatives: Option<usize>,
    /// `None`: all nodes alike.
    pub negatives_by: Option<NegativesBy>,
    /// What cosines are divided by in the softmax; `None`: 0.1.
    pub temperature: Option<f64>,
    /// Power of the lengths of rows when links are ranked; `None`: 0.5 for user–item graphs with softmax, else 1.
    pub length_power: Option<f64>,
    /// Share of the links that validate; `None`: 0.05.
    pub valid_share: Option<f64>,
    /// Share of the links that test, if the dataset does not say which; `None`: 0.1.
    pub test_share: Option<f64>,
}

options! {
    /// Steps along gradients.
    pub struct StepConfig {
        /// Steps per round, of each worker in the first.
        local_steps: u32 = 10,
        /// Factor by which they grow per round.
        rho: f64 = 1.0,
        lr: f64 = 0.01,
        /// `None`: 256, and for lightgcn a quarter of the links and at most 8192: of one machine, or of all workers
        /// together.
        batch: Option<Batch> = None,
        /// `None`: 10 neighbours of each node, and all for lightgcn.
        fanout: Option<Fanout> = None,
        optimiser: optim::Method = optim::Method::Adam,
        lr_schedule: Schedule = Schedule::Constant,
        /// Longest gradient of a step.
        clip: Option<f64> = None,
        weight_decay: f64 = 0.0,
    }
}

options! {
    /// How long a run is, and how it is measured.
    pub struct RunConfig {
        seed: u64 = 0,
        rounds: u32 = 50,
        /// Rounds from one evaluation to the next.
        eval_every: u32 = 1,
        /// Evaluations without a better score after which the run ends.
        patience: Option<u32> = None,
        /// Speed of each machine's link, for the computed time.
        link_gbit: f64 = 10.0,
        /// Speed of one machine, for the computed time and the server's budget: 10⁹ multiply–adds per second in sums over
        /// neighbours and in matrix products.
        machine: [f64; 2] = [40.0, 80.0],
    }
}

/// Who trains.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrainBy {
    /// One machine with the whole graph.
    #[default]
    Single,
    /// Workers that average their models.
    PsgdPa(WorkerConfig),
    /// The same, and each part stores copies of some nodes around it.
    PsgdSa(WorkerConfig, CopyConfig),
    /// Workers that sample the whole graph and fetch remote features.
    Ggs(WorkerConfig),
    /// Workers that average their models, and a server that corrects the average.
    Llcg(WorkerConfig, ServerConfig),
    /// The same, but the server corrects while workers learn.
    LlcgStale(WorkerConfig, ServerConfig),
    /// The server's steps alone.
    ServerOnly(ServerConfig),
}

/// Workers and their parts of the graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct WorkerConfig {
    /// `None`: 8, or as the file or the dataset is partitioned.
    pub parts: Option<usize>,
    /// `None`: auto for labels and metis for links, or as the dataset is partitioned.
    pub partition: Option<PartitionBy>,
    pub partition_file: Option<PathBuf>,
    /// What workers send back.
    pub updates: Updates,
}

options! {
    /// Copies of remote nodes.
    pub struct CopyConfig {
        /// Share of all nodes that each part stores copies of.
        copies: f64 = 0.1,
    }
}

/// The server's steps on the whole graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServerConfig {
    /// `None`: automatic, and an eighth of the local steps for links, where judging has not been worth its work.
    pub server_steps: Option<StepCount>,
    /// What automatic steps may cost, as a share of the work of all workers. `None`: 0.3, and with more than 8 workers
    /// as much as with 8.
    pub server_share: Option<f64>,
    /// `None`: that of the local steps.
    pub server_lr: Option<f64>,
    /// `None`: 256; for lightgcn a quarter of the links, and at most 8192.
    pub server_batch: Option<Batch>,
    /// `None`: 10 neighbours of each node, and all for lightgcn.
    pub server_fanout: Option<Fanout>,
}

impl TrainBy {
    pub fn mode(&self) -> Mode {
        match self {
            Self::Single => Mode::Single,
            Self::PsgdPa(_) => Mode::PsgdPa,
            Self::PsgdSa(..) => Mode::PsgdSa,
            Self::Ggs(_) => Mode::Ggs,
            Self::Llcg(..) => Mode::Llcg,
            Self::LlcgStale(..) => Mode::LlcgStale,
            Self::ServerOnly(_) => Mode::ServerOnly,
        }
    }

    pub fn workers(&self) -> Option<&WorkerConfig> {
        match self {
            Self::PsgdPa(workers)
            | Self::PsgdSa(workers, _)
            | Self::Ggs(workers)
            | Self::Llcg(workers, _)
            | Self::LlcgStale(workers, _) => Some(workers),
            Self::Single | Self::ServerOnly(_) => None,
        }
    }

    pub fn server(&self) -> Option<&ServerConfig> {
        match self {
            Self::Llcg(_, server) | Self::LlcgStale(_, server) | Self::ServerOnly(server) => {
                Some(server)
            }
            Self::Single | Self::PsgdPa(_) | Self::PsgdSa(..) | Self::Ggs(_) => None,
        }
    }

    fn copies(&self) -> Option<&CopyConfig> {
        match self {
            Self::PsgdSa(_, copies) => Some(copies),
            _ => None,
        }
    }
}

/// What a plan depends on, of a graph that was prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    /// Numbers per row of features, and classes or tasks.
    pub features: usize,
    pub classes: usize,
    /// Whether nodes are users and items.
    pub is_user_item: bool,
    /// The usual score of links, if these are learnt.
    pub link_metric: Option<LinkMetric>,
    /// Whether edges have weights.
    pub has_weights: bool,
    /// Edges to learn from.
    pub edges: usize,
    /// Parts that the graph is in, where that is known; else as many as are asked for.
    pub parts: Option<usize>,
}

impl Facts {
    pub fn of(data: &Dataset) -> Self {
        let links = data.links.as_ref();
        Self {
            features: data.features.dim(),
            classes: data.labels.count(),
            is_user_item: links.is_some_and(|links| links.users.is_some()),
            link_metric: links.map(|links| LinkMetric::usual(links, data.graph.nodes())),
            has_weights: data.graph.weights().is_some(),
            edges: data.graph.edges(),
            parts: data.parts.as_ref().map(|stored| stored.datasets().len()),
        }
    }
}

/// What a run does: the configuration, with everything filled in that follows from the graph.
#[derive(Clone, Debug)]
pub struct Plan {
    pub settings: Settings,
    pub model: Model,
}

/// The first option of a group that was said: one that has no value by default, and has one here.
pub fn first_said(group: &impl Serialize) -> Option<String> {
    let Ok(Value::Object(group)) = serde_json::to_value(group) else { return None };
    group.into_iter().find(|(_, value)| !value.is_null()).map(|(name, _)| format!("--{name}"))
}

/// A configuration, with what was said in its place. `said` holds only what differs from the defaults.
pub fn with_said<C>(said: &impl Serialize) -> Result<C, Error>
where
    C: Default + Serialize + DeserializeOwned,
{
    let bad = |error: serde_json::Error| Error::Settings(error.to_string());
    let mut all = serde_json::to_value(C::default()).map_err(bad)?;
    if let (Value::Object(all), Value::Object(said)) =
        (&mut all, serde_json::to_value(said).map_err(bad)?)
    {
        all.extend(said.into_iter().filter(|(_, value)| !value.is_null()));
    }
    serde_json::from_value(all).map_err(bad)
}

impl TrainConfig {
    /// Every option by its name, as settings.json keeps them.
    pub fn options(&self) -> Map<String, Value> {
        let mut all = Map::new();
        let mut add = |group: Value| {
            if let Value::Object(group) = group {
                all.extend(group);
            }
        };
        let json = |value: serde_json::Result<Value>| value.unwrap_or_default();
        add(json(serde_json::to_value(&self.model)));
        add(json(serde_json::to_value(&self.target)));
        add(json(serde_json::to_value(&self.links)));
        add(json(serde_json::to_value(&self.steps)));
        add(json(serde_json::to_value(&self.run)));
        add(json(serde_json::to_value(self.by.workers())));
        add(json(serde_json::to_value(self.by.copies())));
        add(json(serde_json::to_value(self.by.server())));
        all.insert("mode".into(), self.by.mode().name().into());
        all.retain(|_, value| !value.is_null());
        all
    }

    /// Whether links are learnt of a graph, not labels.
    pub fn learns_links(&self, is_user_item: bool) -> bool {
        self.target.task.map_or(is_user_item, |task| task == TaskName::Links)
    }

    fn model_name(&self, is_user_item: bool) -> &str {
        let usual = if is_user_item { "lightgcn" } else { "sage" };
        self.model.model.as_deref().unwrap_or(usual)
    }

    fn layers(&self, name: &str) -> usize {
        self.model.layers.unwrap_or(if name == "lightgcn" { 3 } else { 2 })
    }

    /// The kinds of the model's layers.
    pub fn stack(&self, is_user_item: bool) -> Result<Vec<Kind>, Error> {
        let name = self.model_name(is_user_item);
        Kind::stack(name, self.layers(name)).map_err(Error::Settings)
    }

    /// Makes a graph ready to learn from: holds links out, or takes the score and the weights of classes.
    pub fn prepare(&self, mut data: Dataset) -> Result<Dataset, Error> {
        let is_user_item = data.links.as_ref().is_some_and(|links| links.users.is_some());
        if is_user_item && self.target.task == Some(TaskName::Nodes) {
            return Err(Error::Settings(format!(
                "{} has users and items, and no labels to learn; leave out --task nodes",
                data.name
            )));
        }
        if self.learns_links(is_user_item) {
            return self.prepare_links(data, is_user_item);
        }
        if let Some(MetricName::Nodes(metric)) = self.target.metric {
            data.metric = metric;
            data.check()?;
        }
        let classes = data.labels.count();
        let bad = |problem: String| Err(Error::Settings(problem));
        let weights = match &self.target.class_weights {
            None => return Ok(data),
            Some(_) if !matches!(data.labels, Labels::Classes { .. }) => {
                return bad(format!(
                    "{} has several labels per node; class-weights need one",
                    data.name
                ));
            }
            Some(ClassWeights::Balanced) => data.balanced_weights(),
            Some(ClassWeights::Given(weights)) if weights.len() == classes => Some(weights.clone()),
            Some(ClassWeights::Given(weights)) => {
                return bad(format!(
                    "class-weights has {} numbers, but {} has {classes} classes",
                    weights.len(),
                    data.name
                ));
            }
        };
        data.class_weights = weights.map(Into::into);
        Ok(data)
    }

    /// A graph with held-out edges. Models with a row per node take no features.
    fn prepare_links(&self, mut data: Dataset, is_user_item: bool) -> Result<Dataset, Error> {
        if data.parts.is_some() {
            return Err(Error::Settings(format!(
                "{} is partitioned by its labels; learn links from the graph itself",
                data.name
            )));
        }
        if self.stack(is_user_item)?.first() == Some(&Kind::Embedding) {
            data.features = Features::one_hot(data.graph.nodes());
        } else if data.features.dim() == 0 {
            return Err(Error::Settings(format!(
                "{} has no features, which --model {} reads; use lightgcn, or begin with an embedding, such as \
                 embedding,sage,sage",
                data.name,
                self.model_name(is_user_item)
            )));
        }
        let LinkConfig { valid_share, test_share, .. } = self.links;
        let shares = Shares { valid: valid_share.unwrap_or(0.05), test: test_share.unwrap_or(0.1) };
        data.hold_out(shares, self.run.seed)?;
        data.check_links()?;
        Ok(data)
    }

    /// Fills in what follows from the graph, and refuses what does not fit together.
    pub fn resolve(&self, facts: &Facts) -> Result<Plan, Error> {
        let model = Model::new(self.spec(facts)?)?;
        self.check(facts, &model)?;
        let settings = self.settings(facts, model.spec.layers.contains(&Kind::Light));
        Ok(Plan { settings, model })
    }

    /// `is_light`: of a model that takes large batches with all neighbours.
    pub(crate) fn settings(&self, facts: &Facts, is_light: bool) -> Settings {
        // A pass over the links takes four steps at least.
        let light_batch = (facts.edges / 4).clamp(16, 8192);
        let usual_size = if is_light { light_batch } else { BATCH };
        let usual_fanout = if is_light { Fanout::All } else { Fanout::AtMost(10) };
        let Self { steps, run, by, .. } = self;
        let usual_server = ServerConfig::default();
        let server = by.server().unwrap_or(&usual_server);
        let asked = by.workers().map(|workers| workers.parts.unwrap_or(PARTS));
        let parts = asked.map_or(1, |asked| facts.parts.unwrap_or(asked));
        let pace = |batch: Option<Batch>, fanout: &Option<Fanout>, rate: f64| Pace {
            batch: batch.unwrap_or(Batch::Of(usual_size)).size(),
            fanout: fanout.clone().unwrap_or(usual_fanout.clone()),
            rate: rate as f32,
            clip: steps.clip.map(|most| most as f32),
        };
        Settings {
            task: self.task(facts),
            mode: by.mode(),
            rounds: run.rounds,
            local_steps: steps.local_steps,
            rho: steps.rho,
            // Workers together take what is best for one machine: larger steps are not worth their nodes.
            local: pace(
                steps.batch.or(Some(Batch::Of(usual_size.div_ceil(parts)))),
                &steps.fanout,
                steps.lr,
            ),
            server: pace(
                server.server_batch,
                &server.server_fanout,
                server.server_lr.unwrap_or(steps.lr),
            ),
            schedule: steps.lr_schedule,
            server_steps: match self.server_steps(server, facts) {
                StepCount::Auto => ServerSteps::Auto,
                StepCount::Fixed(steps) => ServerSteps::Fixed(steps),
                StepCount::Like => ServerSteps::Like(vec![]),
            },
            server_share: server
                .server_share
                .unwrap_or(SERVER_SHARE * (PARTS as f64 / parts as f64).min(1.0)),
            machine: Machine {
                sums_per_s: run.machine[0] * 1e9,
                products_per_s: run.machine[1] * 1e9,
                link_bytes_per_s: run.link_gbit * 1e9 / 8.0,
            },
            optimiser: steps.optimiser,
            decay: steps.weight_decay as f32,
            evaluate_every: run.eval_every,
            patience: run.patience,
            copies: by.copies().cloned().unwrap_or_default().copies,
            updates: by.workers().map_or(Updates::Fp32, |workers| workers.updates),
            seed: run.seed,
        }
    }

    fn spec(&self, facts: &Facts) -> Result<Spec, Error> {
        let model = &self.model;
        let learns_links = facts.link_metric.is_some();
        let by_cosines = facts.is_user_item && self.loss() == Loss::Softmax;
        let usual_power = if by_cosines { 0.5 } else { 1.0 };
        let name = self.model_name(facts.is_user_item);
        Ok(Spec {
            layers: self.stack(facts.is_user_item)?,
            inputs: facts.features,
            hidden: model.hidden,
            outputs: if learns_links { model.hidden } else { facts.classes },
            heads: model.heads.unwrap_or(1),
            norm: model.norm.unwrap_or(Norm::Symmetric),
            batch_norm: model.batch_norm,
            layer_norm: model.layer_norm,
            residual: model.residual,
            dropout: model.dropout.unwrap_or(0.2) as f32,
            steps: self.layers(name),
            alpha: model.alpha.unwrap_or(0.2) as f32,
            length_power: match learns_links {
                true => self.links.length_power.unwrap_or(usual_power) as f32,
                false => 1.0,
            },
        })
    }

    fn server_steps(&self, server: &ServerConfig, facts: &Facts) -> StepCount {
        let usual = match facts.link_metric {
            Some(_) => StepCount::Fixed(self.steps.local_steps.div_ceil(8)),
            None => StepCount::Auto,
        };
        server.server_steps.unwrap_or(usual)
    }

    fn loss(&self) -> Loss {
        self.links.loss.unwrap_or(Loss::Softmax)
    }

    fn task(&self, facts: &Facts) -> Task {
        let Some(usual) = facts.link_metric else { return Task::Nodes };
        let links = &self.links;
        let metric = match self.target.metric {
            Some(MetricName::Links(metric)) => metric,
            _ => usual,
        };
        let negatives = if self.loss() == Loss::Softmax { 2048 } else { 1 };
        Task::Links(Objective {
            loss: self.loss(),
            negatives: links.negatives.unwrap_or(negatives),
            negatives_by: links.negatives_by.unwrap_or(NegativesBy::Nodes),
            temperature: links.temperature.unwrap_or(0.1) as f32,
            metric,
            seed: self.run.seed,
        })
    }
}
