//! The weighted sum over neighbours that all layers but attention are made of.

use std::ops::Range;

use hither_kernels::memory::{Buffer, stale};
use hither_kernels::spmm::{self, Csr, Gather, Own};
use hither_kernels::vector;
use serde::{Deserialize, Serialize};

use super::{Backward, ForwardCache, InputGradient, ParamMatrix, Rows};
use crate::sample::Hop;

/// Targets whose rows are summed at once where they need not be kept.
const BLOCK: usize = 1 << 14;

/// How neighbours are weighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Norm {
    /// All alike, without the node itself.
    Neighbours,
    /// All alike, and the node itself like one of them.
    Mean,
    /// The sum, with the node itself. Where only some neighbours were drawn, these stand for the others.
    Sum,
    /// By 1/√(dᵢ dⱼ), the node itself counted in the degrees. Where only some neighbours were
    /// drawn, these stand for the others, so that the sum is right on average.
    Symmetric,
    /// By 1/√(dᵢ dⱼ), without the node itself.
    SymmetricNeighbours,
}

/// The weights of one hop: each is a product of one factor per target and one per source, so none is
/// stored for each edge.
pub struct Scales<'a> {
    hop: &'a Hop<'a>,
    source: Option<&'a [f32]>,
    target: Vec<f32>,
    own: Option<Vec<f32>>,
}

impl Norm {
    pub fn scales<'a>(self, hop: &'a Hop<'a>) -> Scales<'a> {
        let targets = 0..hop.targets();
        let stand_for = |i| hop.degree(i) as f32 / hop.drawn(i).max(1) as f32;
        let (source, target, own) = match self {
            Self::Neighbours => {
                let share = |i: usize| match hop.strength(i) {
                    0.0 => 1.0,
                    strength => 1.0 / strength,
                };
                (None, targets.map(share).collect(), None)
            }
            Self::Mean => {
                let shares: Vec<f32> = targets.map(|i| 1.0 / (1.0 + hop.strength(i))).collect();
                (None, shares.clone(), Some(shares))
            }
            Self::Sum => (
                None,
                targets.clone().map(stand_for).collect(),
                Some(targets.map(|_| 1.0).collect()),
            ),
            Self::Symmetric => {
                let target = targets.clone().map(|i| hop.root(i) * stand_for(i)).collect();
                let own = targets.map(|i| hop.root(i) * hop.root(i)).collect();
                (Some(&hop.roots[..]), target, Some(own))
            }
            Self::SymmetricNeighbours => {
                let target = targets.map(|i| hop.root(i) * stand_for(i)).collect();
                (Some(&hop.roots[..]), target, None)
            }
        };
        Scales { hop, source, target, own }
    }
}

impl Scales<'_> {
    /// Sums the rows `x` of the inputs: one row per target.
    pub fn forward(&self, x: &[f32], dim: usize) -> Buffer {
        let mut out = stale(self.hop.targets() * dim);
        self.sum(0..self.hop.targets(), x, dim, &mut out, false);
        out
    }

    /// Adds the sums to one row per target.
    pub fn add_forward(&self, x: &[f32], dim: usize, out: &mut [f32]) {
        self.sum(0..self.hop.targets(), x, dim, out, true);
    }

    /// Calls `take` with ranges of targets and their rows: all at once with `keep`, which also
    /// returns the rows; otherwise in blocks, so that rows never leave the processor's cache.
    pub fn forward_blocks(
        &self,
        x: &[f32],
        dim: usize,
        keep: bool,
        mut take: impl FnMut(Range<usize>, &[f32]),
    ) -> ForwardCache {
        let targets = self.hop.targets();
        let size = if keep { targets } else { BLOCK.min(targets) };
        let mut rows = stale(size * dim);
        for start in (0..targets).step_by(size.max(1)) {
            let block = start..(start + size).min(targets);
            let rows = &mut rows[..block.len() * dim];
            self.sum(block.clone(), x, dim, rows, false);
            take(block, rows);
        }
        if keep { ForwardCache::Means(rows) } else { ForwardCache::Nothing }
    }

    fn sum(&self, targets: Range<usize>, x: &[f32], dim: usize, out: &mut [f32], accumulate: bool) {
        let own = self
            .own
            .as_deref()
            .map(|scale| (self.hop.own_of(targets.clone()), Some(&scale[targets.clone()])));
        let Csr { offsets, columns } = self.hop.csr();
        let gather = Gather {
            edge_weights: self.hop.weights(),
            source_scale: self.source,
            target_scale: Some(&self.target[targets.clone()]),
            own,
            ..plain(Csr { offsets: &offsets[targets.start..targets.end + 1], columns })
        };
        spmm::gather(&gather, x, dim, out, accumulate);
    }

    /// Sums the gradients `dy` of the targets: one row per input.
    pub fn backward(&self, dy: &[f32], dim: usize) -> Buffer {
        let (transposed, transposed_weights);
        // A symmetric hop is its own transpose, weights included.
        let (csr, edge_weights) = if self.hop.symmetric {
            (self.hop.csr(), self.hop.weights())
        } else {
            transposed = spmm::transpose(self.hop.csr(), self.hop.inputs);
            transposed_weights = self.hop.weights().map(|weights| -> Vec<f32> {
                transposed.edges.iter().map(|edge| weights[*edge as usize]).collect()
            });
            (transposed.csr(), transposed_weights.as_deref())
        };
        // Targets are the first inputs; behind them the kernel wants factors too. Targets that are rows of a
        // table are added below.
        let ids = match self.hop.own() {
            Own::Ids(ids) => Some(ids),
            Own::Run { .. } => None,
        };
        let padded = self.own.as_ref().filter(|_| ids.is_none()).map(|scale| {
            let mut padded = scale.clone();
            padded.resize(self.hop.inputs, 0.0);
            padded
        });
        let own = padded.as_deref().map(|scale| (Own::prefix(self.target.len()), Some(scale)));
        let gather = Gather {
            edge_weights,
            source_scale: Some(&self.target),
            target_scale: self.source,
            own,
            ..plain(csr)
        };
        let mut dx = stale(self.hop.inputs * dim);
        spmm::gather(&gather, dy, dim, &mut dx, false);
        if let (Some(ids), Some(scale)) = (ids, &self.own) {
            for ((id, scale), dy) in ids.iter().zip(scale).zip(dy.chunks_exact(dim)) {
                let own = *id as usize * dim;
                vector::add_scaled(&mut dx[own..own + dim], *scale, dy);
            }
        }
        dx
    }
}

impl Scales<'_> {
    /// Backward of sums and a matrix, whichever of the two came first: adds the gradient of the matrix to `grads`.
    pub fn backward_through(
        &self,
        weight: &ParamMatrix,
        pass: Backward,
        grads: &mut [f32],
    ) -> InputGradient {
        let Backward { params, x, cache, dy, needs_dx, .. } = pass;
        if let ForwardCache::Means(means) = cache {
            let rows = Rows::dense(means, x.dim());
            rows.weight_gradient(Own::prefix(self.hop.targets()), weight, dy, grads);
            return needs_dx.then(|| self.backward(&weight.input_gradient(params, dy), x.dim()));
        }
        let dprojected = self.backward(dy, weight.outputs);
        x.weight_gradient(Own::prefix(x.count()), weight, &dprojected, grads);
        needs_dx.then(|| weight.input_gradient(params, &dprojected))
    }
}

/// The sum as it is, without factors.
pub fn plain(csr: Csr<'_>) -> Gather<'_> {
    Gather { csr, edge_weights: None, source_scale: None, target_scale: None, own: None }
}

/// Whether to project rows before they are summed over neighbours, or after: what moves fewer
/// numbers. Sums of sparse rows would be dense.
pub fn project_first(is_sparse: bool, dim: usize, hop: &Hop, outputs: usize) -> bool {
    is_sparse || (hop.inputs <= 2 * hop.targets() && outputs < dim)
}
