//! A stack of layers. The model itself is only a description: numbers live in [`Weights`], one
//! vector for all parameters, so that averaging, stepping and sending are loops over a slice.

mod build;
mod pass;

use std::ops::Range;

use hither_core::seed;
use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::layer::{Layer, Norm};
use crate::named::named;
use crate::sample::Needs;
use crate::transport::wire::numbers;

pub use pass::{Inference, Stage};

/// What a user says of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub layers: Vec<Kind>,
    pub inputs: usize,
    pub hidden: usize,
    pub outputs: usize,
    /// Of attention.
    pub heads: usize,
    /// Of graph convolution: symmetric, or the mean with the node itself.
    pub norm: Norm,
    pub batch_norm: bool,
    pub layer_norm: bool,
    /// Layers between rows of one width add their input to their output.
    pub residual: bool,
    pub dropout: f32,
    /// Steps of propagation.
    pub steps: usize,
    /// What a node keeps of its own at each of these.
    pub alpha: f32,
    /// Of models of links: the power that the lengths of output rows are raised to. By 1 the products that links are
    /// ranked by are plain products, by 0 cosines.
    pub length_power: f32,
}

impl Default for Spec {
    /// Two layers of GraphSAGE, for a graph of which nothing is known.
    fn default() -> Self {
        Self {
            layers: vec![Kind::Sage; 2],
            inputs: 1,
            hidden: 64,
            outputs: 1,
            heads: 1,
            norm: Norm::Symmetric,
            batch_norm: false,
            layer_norm: false,
            residual: false,
            dropout: 0.0,
            steps: 2,
            alpha: 0.2,
            length_power: 1.0,
        }
    }
}

named! {
    /// The kind of a layer.
    pub enum Kind("layer") {
        Sage = "sage",
        Gcn = "gcn",
        Gat = "gat",
        Gatv2 = "gatv2",
        Gin = "gin",
        Propagate = "propagate",
        Linear = "linear",
        /// A trained row per node, in place of features.
        Embedding = "embedding",
        Light = "light",
    }
}

impl Kind {
    /// What `--model NAME --layers N` stands for: a family, or layers separated by commas.
    pub fn stack(name: &str, layers: usize) -> Result<Vec<Self>, String> {
        match name {
            "appnp" => Ok(vec![Self::Linear, Self::Propagate, Self::Linear]),
            "lightgcn" => Ok(vec![Self::Embedding, Self::Light]),
            "mlp" => Ok(vec![Self::Linear; layers]),
            _ if name.contains(',') => name.split(',').map(|name| name.trim().parse()).collect(),
            _ => {
                let kind: Self = name.parse().map_err(|_| {
                    format!(
                        "no model is named `{name}`; there are sage, gcn, gat, gatv2, gin, appnp, mlp \
                         and lightgcn, or layers separated by commas such as sage,sage,linear"
                    )
                })?;
                Ok(vec![kind; layers])
            }
        }
    }
}

/// All numbers of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Weights {
    /// The numbers that are trained.
    #[serde(with = "numbers")]
    pub params: Vec<f32>,
    /// Numbers that are not trained: running means and variances of batch norms.
    #[serde(with = "numbers")]
    pub stats: Vec<f32>,
}

impl Weights {
    pub fn is_finite(&self) -> bool {
        self.params.iter().chain(&self.stats).all(|value| value.is_finite())
    }

    /// The weights of a model that has only some rows of a table. Other parameters follow the rows.
    pub fn pick(&self, rows: &[u32], table: &Table) -> Self {
        let (dim, shared) = (table.dim, &self.params[table.at.end..]);
        let mut params = Vec::with_capacity(rows.len() * dim + shared.len());
        for row in rows {
            params.extend_from_slice(&self.params[*row as usize * dim..(*row as usize + 1) * dim]);
        }
        params.extend_from_slice(shared);
        Self { params, stats: self.stats.clone() }
    }

    /// What one transfer of them puts on a network.
    pub fn bytes(&self) -> u64 {
        4 * (self.params.len() + self.stats.len()) as u64
    }
}

/// A named piece of the parameters or statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// As PyTorch Geometric's `BasicGNN` names it.
    pub name: String,
    pub shape: Vec<usize>,
    pub at: Range<usize>,
    start: Start,
}

/// How parameters begin.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    Constant(f32),
    /// Evenly between −bound and bound.
    Uniform(f32),
}

/// The rows of nodes among the parameters. They come first.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub at: Range<usize>,
    pub dim: usize,
}

impl Table {
    pub fn rows(&self) -> usize {
        self.at.len() / self.dim
    }
}

/// The layers of a model, and where the numbers of each lie in [`Weights`].
#[derive(Clone, Debug)]
pub struct Model {
    pub spec: Spec,
    pub stages: Vec<Stage>,
    pub params: Vec<Named>,
    pub stats: Vec<Named>,
}

impl Model {
    pub fn new(spec: Spec) -> Result<Self, Error> {
        build::model(spec).map_err(Error::Settings)
    }

    /// The weights before training.
    pub fn start(&self, seed: u64) -> Weights {
        let fill = |named: &[Named]| {
            let mut values = vec![0.0; len(named)];
            for piece in named {
                let mut random = seed::stream(seed, &format!("init/{}", piece.name));
                for value in &mut values[piece.at.clone()] {
                    *value = match piece.start {
                        Start::Constant(constant) => constant,
                        Start::Uniform(bound) => random.random_range(-bound..=bound),
                    };
                }
            }
            values
        };
        Weights { params: fill(&self.params), stats: fill(&self.stats) }
    }

    pub fn params_len(&self) -> usize {
        len(&self.params)
    }

    pub fn stats_len(&self) -> usize {
        len(&self.stats)
    }

    pub fn needs(&self) -> Needs {
        let reads = || self.stages.iter().map(|stage| stage.layer.reads());
        Needs {
            hops: reads().map(|reads| reads.hops).sum(),
            roots: reads().find_map(|reads| reads.roots),
            direct: reads().next().is_some_and(|first| first.from_table),
        }
    }

    /// Whether no layer would ignore the weights of edges.
    pub fn reads_edge_weights(&self) -> bool {
        let mut reads = self.stages.iter().map(|stage| stage.layer.reads());
        reads.all(|reads| reads.hops == 0 || reads.edge_weights)
    }

    /// The rows that nodes have among the parameters, if they have any.
    pub fn table(&self) -> Option<&Table> {
        match self.stages.first().map(|stage| &stage.layer) {
            Some(Layer::Embedding(layer)) => Some(&layer.table),
            _ => None,
        }
    }

    /// The same model for other nodes, if nodes have rows of their own.
    pub fn for_nodes(&self, nodes: usize) -> Result<Self, Error> {
        Self::new(Spec { inputs: nodes, ..self.spec.clone() })
    }

    /// Numbers that a node's embedding has: the input of the last layer.
    pub fn embedding_dim(&self) -> usize {
        match self.stages.len() {
            0 | 1 => self.spec.inputs,
            n => self.stages[n - 2].outputs,
        }
    }
}

/// Numbers that pieces take up together.
fn len(pieces: &[Named]) -> usize {
    pieces.last().map_or(0, |last| last.at.end)
}
