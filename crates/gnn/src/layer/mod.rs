//! The layers, each with its backward pass written out.
//!
//! Parameters of a whole model lie in one vector and their gradients in another of the same shape,
//! so a layer holds ranges into these. `forward` keeps in a [`Kept`] what `backward` wants again.

mod attention;
mod gcn;
mod linear;
mod mean;
mod propagate;
mod rows;
mod sage;
mod work;

use std::ops::Range;

pub use attention::Attention;
pub use gcn::Gcn;
pub use linear::Linear;
pub use mean::Norm;
pub use propagate::Propagate;
pub use rows::Rows;
pub use sage::Sage;
pub use work::{Passes, Shape};

use hither_kernels::gemm::{Matrix as View, product};
use hither_kernels::memory::zeros;
use rayon::prelude::*;

use crate::sample::Hop;

#[derive(Clone, Debug)]
pub enum Layer {
    Sage(Sage),
    Gcn(Gcn),
    Attention(Attention),
    Propagate(Propagate),
    Linear(Linear),
}

/// What a forward pass leaves for the backward pass.
#[derive(Default)]
pub enum Kept {
    #[default]
    Nothing,
    /// Means over neighbours, one row a target.
    Means(Vec<f32>),
    Attention(Box<attention::Kept>),
}

/// What a forward pass was given and left: what going back through it takes, besides the gradient.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    pub params: &'a [f32],
    pub x: &'a Rows<'a>,
    pub hops: &'a [Hop<'a>],
    pub kept: &'a Kept,
}

/// A gradient with respect to a layer's input, or the news that nobody wants it.
pub type InputGradient = Option<Vec<f32>>;

/// A matrix among the parameters, as PyTorch keeps it: one row an output.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub at: Range<usize>,
    pub outputs: usize,
    pub inputs: usize,
}

impl Matrix {
    /// The gradient of the input where that of the output is `dy`: dy · W.
    fn input_gradient(&self, params: &[f32], dy: &[f32]) -> Vec<f32> {
        let rows = dy.len() / self.outputs;
        let mut dx = zeros(rows * self.inputs);
        self.add_input_gradient(params, dy, &mut dx);
        dx
    }

    fn add_input_gradient(&self, params: &[f32], dy: &[f32], dx: &mut [f32]) {
        let weights = View::new(&params[self.at.clone()], self.outputs, self.inputs);
        product(View::new(dy, dy.len() / self.outputs, self.outputs), weights, None, dx, true);
    }
}

/// Adds a bias to every row.
fn add_to_rows(rows: &mut [f32], bias: &[f32]) {
    let add = |row: &mut [f32]| row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    rows.par_chunks_exact_mut(bias.len()).with_min_len(1024).for_each(add);
}

impl Layer {
    /// How many hops of neighbours it takes.
    pub fn hops(&self) -> usize {
        match self {
            Self::Sage(_) | Self::Gcn(_) | Self::Attention(_) => 1,
            Self::Propagate(layer) => layer.steps,
            Self::Linear(_) => 0,
        }
    }

    /// Without `keep`, nobody will go back.
    pub fn forward(&self, params: &[f32], x: &Rows, hops: &[Hop], keep: bool) -> (Vec<f32>, Kept) {
        match self {
            Self::Sage(layer) => layer.forward(params, x, &hops[0], keep),
            Self::Gcn(layer) => layer.forward(params, x, &hops[0], keep),
            Self::Attention(layer) => layer.forward(params, x, &hops[0]),
            Self::Propagate(layer) => (layer.forward(x, hops), Kept::Nothing),
            Self::Linear(layer) => (layer.forward(params, x), Kept::Nothing),
        }
    }

    /// Adds to `grads`; gives the gradient of the input if `wanted`.
    pub fn backward(
        &self,
        seen: Seen,
        dy: &[f32],
        grads: &mut [f32],
        wanted: bool,
    ) -> InputGradient {
        match self {
            Self::Sage(layer) => layer.backward(seen, dy, grads, wanted),
            Self::Gcn(layer) => layer.backward(seen, dy, grads, wanted),
            Self::Attention(layer) => layer.backward(seen, dy, grads, wanted),
            Self::Propagate(layer) => wanted.then(|| layer.backward(seen.x, seen.hops, dy)),
            Self::Linear(layer) => layer.backward(seen, dy, grads, wanted),
        }
    }
}
