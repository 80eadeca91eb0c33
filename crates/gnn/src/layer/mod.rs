//! The layers, each with its backward pass written out.
//!
//! Parameters of a whole model lie in one vector and their gradients in another of the same shape,
//! so a layer holds ranges into these. `forward` leaves in a [`ForwardCache`] what `backward` reads again.

mod attention;
mod embedding;
mod gatv2;
mod gcn;
mod gin;
mod heads;
mod light;
mod linear;
mod mean;
mod propagate;
mod rows;
mod sage;
mod work;

use std::ops::Range;

pub use attention::Attention;
pub use embedding::Embedding;
pub use gatv2::Gatv2;
pub use gcn::Gcn;
pub use gin::Gin;
pub use heads::Heads;
pub use light::Light;
pub use linear::Linear;
pub use mean::Norm;
pub use propagate::Propagate;
pub use rows::Rows;
pub use sage::Sage;
pub use work::{Passes, Shape};

use hither_kernels::gemm::{Matrix as View, product};
use hither_kernels::memory::{Buffer, stale};
use rayon::prelude::*;

use crate::sample::{Hop, Roots};

/// A layer of any kind.
#[derive(Clone, Debug)]
pub enum Layer {
    Sage(Sage),
    Gcn(Gcn),
    Attention(Attention),
    Gatv2(Gatv2),
    Gin(Gin),
    Propagate(Propagate),
    Linear(Linear),
    Embedding(Embedding),
    Light(Light),
}

/// What a layer reads of the graph, and how. The rest of training asks nothing else of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Hops of neighbours.
    pub hops: usize,
    /// The factors of nodes in symmetric normalisation, if it has one.
    pub roots: Option<Roots>,
    /// As the first layer it can read rows straight from the table of features, by node.
    pub from_table: bool,
    /// As the last layer it can compute the outputs of some nodes from the rows of all.
    pub by_row: bool,
    /// Weights of edges. A layer with hops that does not read them takes no graph that has some.
    pub edge_weights: bool,
    /// Its backward pass transposes the graph, whose entries must then be numbered with 32 bits.
    pub transposes: bool,
}

/// What a forward pass leaves for the backward pass.
#[derive(Default)]
pub enum ForwardCache {
    #[default]
    Nothing,
    /// Means over neighbours, one row per target.
    Means(Buffer),
    Attention(Box<attention::Scored>),
    Gatv2(Box<gatv2::Scored>),
    Gin(Box<gin::Halfway>),
}

/// What a backward pass reads: the inputs of the forward pass, what it left, and the gradient of its
/// output. With `inputs` rows in the first hop and `targets` in the last: x is [inputs, layer inputs], dy is
/// [targets, layer outputs], and the result is shaped like x.
#[derive(Clone, Copy)]
pub struct Backward<'a> {
    pub params: &'a [f32],
    pub x: &'a Rows<'a>,
    pub hops: &'a [Hop<'a>],
    pub cache: &'a ForwardCache,
    pub dy: &'a [f32],
    /// Whether the caller needs the gradient of the input.
    pub needs_dx: bool,
}

/// The output of a layer, and what its backward pass reads again.
pub type Forward = (Buffer, ForwardCache);

/// The gradient of a layer's input; None if the caller does not need it.
pub type InputGradient = Option<Buffer>;

/// A matrix among the parameters, as PyTorch keeps it: one row per output.
#[derive(Clone, Debug)]
pub struct ParamMatrix {
    pub at: Range<usize>,
    pub outputs: usize,
    pub inputs: usize,
}

impl ParamMatrix {
    /// The gradient of the input where that of the output is `dy`: dy · W.
    fn input_gradient(&self, params: &[f32], dy: &[f32]) -> Buffer {
        let mut dx = stale(dy.len() / self.outputs * self.inputs);
        self.put_input_gradient(params, dy, &mut dx, false);
        dx
    }

    /// Puts it into `dx`, or adds it to what that holds.
    fn put_input_gradient(&self, params: &[f32], dy: &[f32], dx: &mut [f32], accumulate: bool) {
        let weights = View::new(&params[self.at.clone()], self.outputs, self.inputs);
        let dy = View::new(dy, dy.len() / self.outputs, self.outputs);
        product(dy, weights, None, dx, accumulate);
    }
}

/// Adds a bias to every row.
fn add_to_rows(rows: &mut [f32], bias: &[f32]) {
    let add = |row: &mut [f32]| row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    rows.par_chunks_exact_mut(bias.len()).with_min_len(1024).for_each(add);
}

impl Layer {
    pub fn reads(&self) -> Reads {
        match self {
            Self::Sage(layer) => layer.reads(),
            Self::Gcn(layer) => layer.reads(),
            Self::Attention(layer) => layer.reads(),
            Self::Gatv2(layer) => layer.reads(),
            Self::Gin(layer) => layer.reads(),
            Self::Propagate(layer) => layer.reads(),
            Self::Linear(layer) => layer.reads(),
            Self::Embedding(layer) => layer.reads(),
            Self::Light(layer) => layer.reads(),
        }
    }

    /// Hops of neighbours that the layer reads.
    pub fn hops(&self) -> usize {
        self.reads().hops
    }

    /// Without `keep` the cache is empty, and no backward pass can follow.
    pub fn forward(&self, params: &[f32], x: &Rows, hops: &[Hop], keep: bool) -> Forward {
        match self {
            Self::Sage(layer) => layer.forward(params, x, &hops[0], keep),
            Self::Gcn(layer) => layer.forward(params, x, &hops[0], keep),
            Self::Attention(layer) => layer.forward(params, x, &hops[0], keep),
            Self::Gatv2(layer) => layer.forward(params, x, &hops[0], keep),
            Self::Gin(layer) => layer.forward(params, x, &hops[0], keep),
            Self::Propagate(layer) => (layer.forward(x, hops), ForwardCache::Nothing),
            Self::Linear(layer) => (layer.forward(params, x), ForwardCache::Nothing),
            Self::Embedding(layer) => (layer.forward(params, x), ForwardCache::Nothing),
            Self::Light(layer) => (layer.forward(x, hops), ForwardCache::Nothing),
        }
    }

    /// Adds the gradients of the parameters to `grads`, and returns that of the input.
    pub fn backward(&self, pass: Backward, grads: &mut [f32]) -> InputGradient {
        match self {
            Self::Sage(layer) => layer.backward(pass, grads),
            Self::Gcn(layer) => layer.backward(pass, grads),
            Self::Attention(layer) => layer.backward(pass, grads),
            Self::Gatv2(layer) => layer.backward(pass, grads),
            Self::Gin(layer) => layer.backward(pass, grads),
            Self::Propagate(layer) => layer.backward(pass),
            Self::Linear(layer) => layer.backward(pass, grads),
            Self::Embedding(layer) => layer.backward(pass, grads),
            Self::Light(layer) => layer.backward(pass),
        }
    }
}
