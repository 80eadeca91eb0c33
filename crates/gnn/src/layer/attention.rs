//! Graph attention (GAT): the weighted mean of a node and its neighbours, with weights that a small
//! scoring of both ends gives, for several heads at once.

use std::ops::Range;

use hither_kernels::memory::{reuse, stale, zeros};
use hither_kernels::spmm::{self, Csr, Own};
use hither_kernels::vector;
use rayon::prelude::*;

use super::heads::{BLOCK, Heads, TASK_ROWS, each_row, leaky, leaky_slope, softmax, with_loops};
use super::{Backward, ForwardCache, InputGradient, ParamMatrix, Rows, add_to_rows};
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

/// The edges of some targets, each target among its own neighbours, and their weights.
pub struct EdgeWeights {
    offsets: Vec<u64>,
    columns: Vec<u32>,
    /// One per edge and head.
    weights: Vec<f32>,
    /// h, one row per input.
    projected: Vec<f32>,
    scores: Scores,
}

/// One number per row and head: a · h of the inputs, b · h of the targets.
struct Scores {
    sources: Vec<f32>,
    targets: Vec<f32>,
}

impl EdgeWeights {
    pub fn reuse(self) {
        let Scores { sources, targets } = self.scores;
        [self.weights, self.projected, sources, targets].into_iter().for_each(reuse);
    }

    fn csr(&self) -> Csr<'_> {
        Csr { offsets: &self.offsets, columns: &self.columns }
    }
}

impl Attention {
    pub fn forward(
        &self,
        params: &[f32],
        x: &Rows,
        hop: &Hop,
        keep: bool,
    ) -> (Vec<f32>, ForwardCache) {
        let (Heads { count: heads, dim, .. }, targets) = (self.heads, hop.targets());
        let mut projected = stale(x.count() * heads * dim);
        x.project(Own::prefix(x.count()), &self.weight, params, None, &mut projected, false);
        let own = &projected[..targets * heads * dim];
        let scores = Scores {
            sources: self.scores(&projected, &params[self.source.clone()]),
            targets: self.scores(own, &params[self.target.clone()]),
        };
        let mut y = stale(targets * heads * dim);
        let size = if keep { targets } else { BLOCK.min(targets) };
        let mut cache = ForwardCache::Nothing;
        for start in (0..targets).step_by(size.max(1)) {
            let block = start..(start + size).min(targets);
            let (offsets, columns) = with_loops(hop, block.clone());
            let weights = self.weights(&offsets, &columns, &scores, start);
            let out = &mut y[start * heads * dim..block.end * heads * dim];
            let csr = Csr { offsets: &offsets, columns: &columns };
            spmm::gather_heads(csr, &weights, None, &projected, heads, dim, out, false);
            if keep {
                let (projected, scores) = (std::mem::take(&mut projected), scores);
                let kept = EdgeWeights { offsets, columns, weights, projected, scores };
                cache = ForwardCache::Attention(Box::new(kept));
                break;
            }
        }
        let mut y = self.heads.join(y);
        add_to_rows(&mut y, &params[self.bias.clone()]);
        (y, cache)
    }

    pub fn backward(&self, pass: Backward, grads: &mut [f32]) -> InputGradient {
        let Backward { params, x, hops: [hop, ..], cache, dy, needs_dx } = pass else {
            unreachable!("a layer of one hop")
        };
        let ForwardCache::Attention(kept) = cache else {
            // Without targets there was nothing to keep.
            return needs_dx.then(|| zeros(x.count() * self.weight.inputs));
        };
        let Heads { count: heads, dim, .. } = self.heads;
        vector::add_column_sums(dy, self.bias.len(), &mut grads[self.bias.clone()]);
        let dy = &self.heads.split(dy)[..];
        let turned = spmm::transpose(kept.csr(), hop.inputs);
        let mut dscores = stale(kept.weights.len());
        spmm::edge_dots(kept.csr(), dy, &kept.projected, heads, dim, &mut dscores);
        self.through_softmax(kept, &mut dscores);
        // The scores of both ends get the sums over the edges to a node and from it.
        let to = |edge: usize| edge;
        let dtargets = self.sums_over_edges(&kept.offsets, &dscores, to);
        let from = |entry: usize| turned.edges[entry] as usize;
        let dsources = self.sums_over_edges(&turned.offsets, &dscores, from);
        let mut dh = stale(hop.inputs * heads * dim);
        let order = Some(&turned.edges[..]);
        spmm::gather_heads(turned.csr(), &kept.weights, order, dy, heads, dim, &mut dh, false);
        for (dscores, vectors) in [(&dsources, &self.source), (&dtargets, &self.target)] {
            self.through_scores(dscores, params, vectors, &kept.projected, &mut dh, grads);
        }
        x.weight_gradient(Own::prefix(x.count()), &self.weight, &dh, grads);
        let dx = needs_dx.then(|| self.weight.input_gradient(params, &dh));
        [dh, dscores, dsources, dtargets].into_iter().for_each(reuse);
        dx
    }

    /// The dot products of each row's heads with their vectors.
    fn scores(&self, rows: &[f32], vectors: &[f32]) -> Vec<f32> {
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
    fn weights(&self, offsets: &[u64], columns: &[u32], scores: &Scores, first: usize) -> Vec<f32> {
        let heads = self.heads.count;
        let mut weights = stale(columns.len() * heads);
        each_row(offsets, &mut weights, heads, |row, edges, weights| {
            let target = &scores.targets[(first + row) * heads..][..heads];
            for (weights, column) in weights.chunks_exact_mut(heads).zip(&columns[edges]) {
                let source = &scores.sources[*column as usize * heads..][..heads];
                for head in 0..heads {
                    let score = source[head] + target[head];
                    weights[head] = leaky(score);
                }
            }
            softmax(weights, heads);
        });
        weights
    }

    /// Turns gradients of weights into gradients of scores, in place.
    fn through_softmax(&self, kept: &EdgeWeights, dscores: &mut [f32]) {
        let heads = self.heads.count;
        let EdgeWeights { offsets, columns, weights, scores, .. } = kept;
        each_row(offsets, dscores, heads, |row, edges, dscores| {
            let weights = &weights[edges.start * heads..edges.end * heads];
            let columns = &columns[edges];
            for head in 0..heads {
                let entries = (head..weights.len()).step_by(heads);
                let mean: f32 = entries.clone().map(|e| weights[e] * dscores[e]).sum();
                let target = scores.targets[row * heads + head];
                for (e, column) in entries.zip(columns) {
                    let score = scores.sources[*column as usize * heads + head] + target;
                    dscores[e] = leaky_slope(score) * weights[e] * (dscores[e] - mean);
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
    ) -> Vec<f32> {
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
