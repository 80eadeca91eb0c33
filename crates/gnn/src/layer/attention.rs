//! Graph attention (GAT): the weighted mean of a node and its neighbours, with weights that a small
//! scoring of both ends gives, for several heads at once.

use std::ops::Range;

use hither_kernels::memory::{Buffer, stale, zeros};
use hither_kernels::spmm::{Csr, Own};
use hither_kernels::vector;
use rayon::prelude::*;

use super::heads::{
    GatherGradient, Heads, TASK_ROWS, WeightedEdges, each_row, leaky, leaky_slope, softmax,
};
use super::{
    Backward, Forward, ForwardCache, InputGradient, ParamMatrix, Reads, Rows, add_to_rows,
};
use crate::sample::Hop;

/// h = x · Wᵀ; y = Σ softmax(leaky(a · hⱼ + b · hᵢ)) hⱼ, over neighbours j of i and i itself.
#[derive(Clone, Debug)]
pub struct Attention {
    pub heads: Heads,
    pub weight: ParamMatrix,
    /// a: one vector per head, for the neighbours.
    pub source: Range<usize>,
    /// b: one vector per head, for the node itself.
    pub target: Range<usize>,
    pub bias: Range<usize>,
}

/// What a forward pass leaves: the edges with their weights, the projection, and its scores.
pub struct Scored {
    edges: WeightedEdges,
    /// h, one row per input.
    projected: Buffer,
    scores: Scores,
}

/// One number per row and head: a · h of the inputs, b · h of the targets.
struct Scores {
    sources: Buffer,
    targets: Buffer,
}

impl Attention {
    pub fn reads(&self) -> Reads {
        Reads { hops: 1, transposes: true, ..Reads::default() }
    }

    pub fn forward(&self, params: &[f32], x: &Rows, hop: &Hop, keep: bool) -> Forward {
        let width = self.heads.width();
        let mut projected = stale(x.count() * width);
        x.project(Own::prefix(x.count()), &self.weight, params, None, &mut projected, false);
        let own = &projected[..hop.targets() * width];
        let scores = Scores {
            sources: self.scores(&projected, &params[self.source.clone()]),
            targets: self.scores(own, &params[self.target.clone()]),
        };
        let weigh = |csr: Csr, block: Range<usize>| self.weights(csr, &scores, block.start);
        let (mut y, edges) = self.heads.gather(hop, &projected, keep, weigh);
        add_to_rows(&mut y, &params[self.bias.clone()]);
        let kept = edges.map(|edges| Box::new(Scored { edges, projected, scores }));
        (y, kept.map_or(ForwardCache::Nothing, ForwardCache::Attention))
    }

    pub fn backward(&self, pass: Backward, grads: &mut [f32]) -> InputGradient {
        let Backward { params, x, hops: [hop, ..], cache, dy, needs_dx } = pass else {
            unreachable!("a layer of one hop")
        };
        let ForwardCache::Attention(kept) = cache else {
            // Without targets there was nothing to keep.
            return needs_dx.then(|| zeros(x.count() * self.weight.inputs));
        };
        vector::add_column_sums(dy, self.bias.len(), &mut grads[self.bias.clone()]);
        let GatherGradient { scores: mut dscores, rows: mut dh, transposed } =
            self.heads.gather_backward(hop, &kept.edges, &kept.projected, dy);
        self.through_leaky(kept, &mut dscores);
        // The scores of both ends get the sums over the edges to a node and from it.
        let to = |edge: usize| edge;
        let dtargets = self.sums_over_edges(kept.edges.csr().offsets, &dscores, to);
        let from = |entry: usize| transposed.edges[entry] as usize;
        let dsources = self.sums_over_edges(&transposed.offsets, &dscores, from);
        for (dscores, vectors) in [(&dsources, &self.source), (&dtargets, &self.target)] {
            self.through_scores(dscores, params, vectors, &kept.projected, &mut dh, grads);
        }
        x.weight_gradient(Own::prefix(x.count()), &self.weight, &dh, grads);
        needs_dx.then(|| self.weight.input_gradient(params, &dh))
    }

    /// The dot products of each row's heads with their vectors.
    fn scores(&self, rows: &[f32], vectors: &[f32]) -> Buffer {
        let Heads { count: heads, dim, .. } = self.heads;
        let mut scores = stale(rows.len() / dim);
        let tasks = scores.par_chunks_mut(TASK_ROWS * heads);
        tasks.zip(rows.par_chunks(TASK_ROWS * heads * dim)).for_each(|(scores, rows)| {
            for (at, (score, row)) in scores.iter_mut().zip(rows.chunks_exact(dim)).enumerate() {
                let vector = &vectors[at % heads * dim..][..dim];
                *score = row.iter().zip(vector).map(|(a, b)| a * b).sum();
            }
        });
        scores
    }

    /// The softmax of the scores over the edges of each target; `first` is the first target.
    fn weights(&self, csr: Csr, scores: &Scores, first: usize) -> Buffer {
        let heads = self.heads.count;
        let mut weights = stale(csr.columns.len() * heads);
        each_row(csr.offsets, &mut weights, heads, |row, edges, weights| {
            let target = &scores.targets[(first + row) * heads..][..heads];
            for (weights, column) in weights.chunks_exact_mut(heads).zip(&csr.columns[edges]) {
                let source = &scores.sources[*column as usize * heads..][..heads];
                for head in 0..heads {
                    weights[head] = leaky(source[head] + target[head]);
                }
            }
            softmax(weights, heads);
        });
        weights
    }

    /// Backward of the scores' LeakyReLU, in place.
    fn through_leaky(&self, kept: &Scored, dscores: &mut [f32]) {
        let (heads, csr, scores) = (self.heads.count, kept.edges.csr(), &kept.scores);
        each_row(csr.offsets, dscores, heads, |row, edges, dscores| {
            let target = &scores.targets[row * heads..][..heads];
            for (dscores, column) in dscores.chunks_exact_mut(heads).zip(&csr.columns[edges]) {
                let source = &scores.sources[*column as usize * heads..][..heads];
                for head in 0..heads {
                    dscores[head] *= leaky_slope(source[head] + target[head]);
                }
            }
        });
    }

    /// Sums of values per edge and head over the entries of each row; `edge` names an entry's edge.
    fn sums_over_edges(
        &self,
        offsets: &[u64],
        values: &[f32],
        edge: impl Fn(usize) -> usize + Sync,
    ) -> Buffer {
        let heads = self.heads.count;
        let mut sums = zeros((offsets.len() - 1) * heads);
        sums.par_chunks_mut(TASK_ROWS * heads).enumerate().for_each(|(task, sums)| {
            for (row, sums) in (task * TASK_ROWS..).zip(sums.chunks_exact_mut(heads)) {
                for entry in offsets[row] as usize..offsets[row + 1] as usize {
                    let values = &values[edge(entry) * heads..][..heads];
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                }
            }
        });
        sums
    }

    /// Backward of [`Self::scores`] over the first rows of h: adds to `dh` and to the vectors' `grads`.
    fn through_scores(
        &self,
        dscores: &[f32],
        params: &[f32],
        vectors: &Range<usize>,
        projected: &[f32],
        dh: &mut [f32],
        grads: &mut [f32],
    ) {
        let Heads { count: heads, dim, .. } = self.heads;
        let params = &params[vectors.clone()];
        let tasks = dscores.par_chunks(TASK_ROWS * heads);
        let tasks = tasks.zip(dh.par_chunks_mut(TASK_ROWS * heads * dim));
        let tasks = tasks.zip(projected.par_chunks(TASK_ROWS * heads * dim));
        let sums: Vec<Vec<f32>> = tasks
            .map(|((dscores, dh), rows)| {
                let mut sums = vec![0.0; heads * dim];
                for (at, dscore) in dscores.iter().enumerate() {
                    let (head, row) = (at % heads * dim, at * dim..(at + 1) * dim);
                    vector::add_scaled(&mut dh[row.clone()], *dscore, &params[head..head + dim]);
                    vector::add_scaled(&mut sums[head..head + dim], *dscore, &rows[row]);
                }
                sums
            })
            .collect();
        sums.iter().for_each(|sums| vector::add_scaled(&mut grads[vectors.clone()], 1.0, sums));
    }
}
