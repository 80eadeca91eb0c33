//! Graph isomorphism network (GIN): the sum over a node and its neighbours, through two matrices.

use hither_kernels::memory::Buffer;
use hither_kernels::vector;

use super::{Backward, Forward, ForwardCache, Gcn, InputGradient, Linear, Reads, Rows};
use crate::sample::Hop;

/// y = relu((x + Σ x of neighbours) · W₁ᵀ + b₁) · W₂ᵀ + b₂
#[derive(Clone, Debug)]
pub struct Gin {
    /// The sum through W₁.
    pub sum: Gcn,
    /// W₂
    pub second: Linear,
}

/// What the first half leaves for the backward pass.
pub struct Halfway {
    cache: ForwardCache,
    hidden: Buffer,
}

impl Gin {
    pub fn reads(&self) -> Reads {
        Reads { hops: 1, from_table: true, by_row: true, edge_weights: true, ..Reads::default() }
    }

    pub fn forward(&self, params: &[f32], x: &Rows, hop: &Hop, keep: bool) -> Forward {
        let (mut hidden, cache) = self.sum.forward(params, x, hop, keep);
        vector::relu_dropout(&mut hidden, None);
        let y = self.second.forward(params, &Rows::dense(&hidden, self.sum.bias.len()));
        let kept = keep.then(|| Box::new(Halfway { cache, hidden }));
        (y, kept.map_or(ForwardCache::Nothing, ForwardCache::Gin))
    }

    pub fn backward(&self, pass: Backward, grads: &mut [f32]) -> InputGradient {
        let ForwardCache::Gin(halfway) = pass.cache else {
            unreachable!("the forward pass kept its first half")
        };
        let Halfway { cache, hidden } = &**halfway;
        let rows = Rows::dense(hidden, self.sum.bias.len());
        let second = Backward { x: &rows, cache: &ForwardCache::Nothing, needs_dx: true, ..pass };
        let mut dhidden = self.second.backward(second, grads)?;
        vector::relu_dropout_backward(hidden, 1.0, &mut dhidden);
        self.sum.backward(Backward { cache, dy: &dhidden, ..pass }, grads)
    }
}
