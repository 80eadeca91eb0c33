//! What follows a layer before its activation, if the model has it: the normalisation of columns over the batch,
//! or of each row by itself.

mod batch;
mod layer;

pub use batch::BatchNorm;
pub use layer::LayerNorm;

use hither_kernels::memory::Buffer;

/// As PyTorch has it.
const EPSILON: f32 = 1e-5;
/// Rows that are summed by themselves; such sums are added in order, whichever thread made them.
const BLOCK_ROWS: usize = 1024;

/// A normalisation of either kind.
#[derive(Clone, Debug)]
pub enum Normalisation {
    Batch(BatchNorm),
    Layer(LayerNorm),
}

/// What a forward pass leaves for the backward pass.
pub struct Normalised {
    /// The rows before scale and shift.
    rows: Buffer,
    /// 1/√(variance + ε): of each column in batch norms, of each row in layer norms.
    inverse: Buffer,
}

impl Normalisation {
    /// Normalises in place, and moves the running statistics of a batch norm if they are given.
    pub fn learn(&self, params: &[f32], stats: &mut [f32], y: &mut [f32]) -> Normalised {
        match self {
            Self::Batch(norm) => norm.learn(params, stats, y),
            Self::Layer(norm) => norm.learn(params, y),
        }
    }

    /// Normalises in place as the model is used: batch norms by their running statistics.
    pub fn apply(&self, params: &[f32], stats: &[f32], y: &mut [f32]) {
        match self {
            Self::Batch(norm) => norm.apply(params, stats, y),
            Self::Layer(norm) => norm.apply(params, y),
        }
    }

    /// Turns the gradient of the output into that of the input; adds to those of the parameters.
    pub fn backward(
        &self,
        params: &[f32],
        normalised: &Normalised,
        dy: &mut [f32],
        grads: &mut [f32],
    ) {
        match self {
            Self::Batch(norm) => norm.backward(params, normalised, dy, grads),
            Self::Layer(norm) => norm.backward(params, normalised, dy, grads),
        }
    }
}
