//! Graph attention (GAT): the weighted mean of a node and its neighbours, with weights that a small
//! scoring of both ends gives, for several heads at once.

use std::ops::Range;

use hither_kernels::memory::zeros;
use hither_kernels::spmm::{self, Csr, Own};
use hither_kernels::vector;
use rayon::prelude::*;

use super::{Backward, ForwardCache, InputGradient, ParamMatrix, Rows, add_to_rows};
use crate::sample::Hop;

/// The slope of the scores' LeakyReLU below zero.
const SLOPE: f32 = 0.2;
/// Targets whose edges are weighted at once where the weights need not be kept.
const BLOCK: usize = 1 << 14;
/// Rows per task. Sums over rows are made task by task and added in order, whatever the threads.
const TASK_ROWS: usize = 512;

/// h = x · Wᵀ; y = Σ softmax(leaky(a · hⱼ + b · hᵢ)) hⱼ, over neighbours j of i and i itself.
#[derive(Clone, Debug)]
pub struct Attention {
    pub heads: usize,
    /// Heads stand beside each other in the output; otherwise it is their mean.
    pub concat: bool,
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
    fn csr(&self) -> Csr<'_> {
        Csr { offsets: &self.offsets, columns: &self.columns }
    }
}

impl Attention {
    /// Numbers per node and head.
    fn dim(&self) -> usize {
        self.weight.outputs / self.heads
    }

    pub fn forward(
        &self,
        params: &[f32],
        x: &Rows,
        hop: &Hop,
        keep: bool,
    ) -> (Vec<f32>, ForwardCache) {
        let (heads, dim, targets) = (self.heads, self.dim(), hop.targets());
        let mut projected = zeros(x.count() * heads * dim);
        x.project(Own::prefix(x.count()), &self.weight, params, None, &mut projected, false);
        let own = &projected[..targets * heads * dim];
        let scores = Scores {
            sources: self.scores(&projected, &params[self.source.clone()]),
            targets: self.scores(own, &params[self.target.clone()]),
        };
        let mut y = zeros(targets * heads * dim);
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
        let mut y = if self.concat { y } else { self.mean_of_heads(&y) };
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
        let (heads, dim) = (self.heads, self.dim());
        vector::add_column_sums(dy, self.bias.len(), &mut grads[self.bias.clone()]);
        let spread;
        let dy = if self.concat {
            dy
        } else {
            spread = self.to_each_head(dy);
            &spread
        };
        let turned = spmm::transpose(kept.csr(), hop.inputs);
        let mut dscores = zeros(kept.weights.len());
        spmm::edge_dots(kept.csr(), dy, &kept.projected, heads, dim, &mut dscores);
        self.through_softmax(kept, &mut dscores);
        // The scores of both ends get the sums over the edges to a node and from it.
        let to = |edge: usize| edge;
        let dtargets = self.sums_over_edges(&kept.offsets, &dscores, to);
        let from = |entry: usize| turned.edges[entry] as usize;
        let dsources = self.sums_over_edges(&turned.offsets, &dscores, from);
        let mut dh = zeros(hop.inputs * heads * dim);
        let order = Some(&turned.edges[..]);
        spmm::gather_heads(turned.csr(), &kept.weights, order, dy, heads, dim, &mut dh, false);
        for (dscores, vectors) in [(&dsources, &self.source), (&dtargets, &self.target)] {
            self.through_scores(dscores, params, vectors, &kept.projected, &mut dh, grads);
        }
        x.weight_gradient(Own::prefix(x.count()), &self.weight, &dh, grads);
        needs_dx.then(|| self.weight.input_gradient(params, &dh))
    }

    /// The dot products of each row's heads with their vectors.
    fn scores(&self, rows: &[f32], vectors: &[f32]) -> Vec<f32> {
        let (heads, dim) = (self.heads, self.dim());
        let mut scores = zeros(rows.len() / dim);
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
        let heads = self.heads;
        let mut weights = zeros(columns.len() * heads);
        each_row(offsets, &mut weights, heads, |row, edges, weights| {
            let target = &scores.targets[(first + row) * heads..][..heads];
            for (weights, column) in weights.chunks_exact_mut(heads).zip(&columns[edges]) {
                let source = &scores.sources[*column as usize * heads..][..heads];
                for head in 0..heads {
                    let score = source[head] + target[head];
                    weights[head] = if score < 0.0 { SLOPE * score } else { score };
                }
            }
            softmax(weights, heads);
        });
        weights
    }

    /// Turns gradients of weights into gradients of scores, in place.
    fn through_softmax(&self, kept: &EdgeWeights, dscores: &mut [f32]) {
        let heads = self.heads;
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
                    let slope = if score < 0.0 { SLOPE } else { 1.0 };
                    dscores[e] = slope * weights[e] * (dscores[e] - mean);
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
        let heads = self.heads;
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
        let (heads, dim) = (self.heads, self.dim());
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

    fn mean_of_heads(&self, y: &[f32]) -> Vec<f32> {
        let (heads, dim) = (self.heads, self.dim());
        let share = 1.0 / heads as f32;
        let mut means = zeros(y.len() / heads);
        let rows = means.par_chunks_exact_mut(dim).zip(y.par_chunks_exact(heads * dim));
        rows.with_min_len(TASK_ROWS).for_each(|(means, y)| {
            for (at, mean) in means.iter_mut().enumerate() {
                *mean = y.iter().skip(at).step_by(dim).sum::<f32>() * share;
            }
        });
        means
    }

    fn to_each_head(&self, dy: &[f32]) -> Vec<f32> {
        let (heads, dim) = (self.heads, self.dim());
        let share = 1.0 / heads as f32;
        let mut spread = zeros(dy.len() * heads);
        let rows = spread.par_chunks_exact_mut(heads * dim).zip(dy.par_chunks_exact(dim));
        rows.with_min_len(TASK_ROWS).for_each(|(spread, dy)| {
            for (at, value) in spread.iter_mut().enumerate() {
                *value = dy[at % dim] * share;
            }
        });
        spread
    }
}

/// The edges of some targets, each target before its neighbours.
fn with_loops(hop: &Hop, targets: Range<usize>) -> (Vec<u64>, Vec<u32>) {
    let csr = hop.csr();
    let bounds = &csr.offsets[targets.start..=targets.end];
    // One loop per target before it.
    let offsets: Vec<u64> =
        bounds.iter().enumerate().map(|(row, end)| end - bounds[0] + row as u64).collect();
    let mut columns = vec![0_u32; offsets[targets.len()] as usize];
    each_row(&offsets, &mut columns, 1, |row, _, columns| {
        columns[0] = (targets.start + row) as u32;
        let neighbours = bounds[row] as usize..bounds[row + 1] as usize;
        columns[1..].copy_from_slice(&csr.columns[neighbours]);
    });
    (offsets, columns)
}

/// Calls `with` for each row, its edges, and their `width` values each, in parallel.
fn each_row<T: Send>(
    offsets: &[u64],
    values: &mut [T],
    width: usize,
    with: impl Fn(usize, Range<usize>, &mut [T]) + Sync,
) {
    let rows = offsets.len() - 1;
    let mut rest = values;
    let mut tasks = Vec::with_capacity(rows.div_ceil(TASK_ROWS));
    for first in (0..rows).step_by(TASK_ROWS) {
        let last = (first + TASK_ROWS).min(rows);
        let edges = (offsets[last] - offsets[first]) as usize;
        let (values, later) = std::mem::take(&mut rest).split_at_mut(edges * width);
        tasks.push((first..last, values));
        rest = later;
    }
    tasks.into_par_iter().for_each(|(rows, mut values)| {
        for row in rows {
            let edges = offsets[row] as usize..offsets[row + 1] as usize;
            let (own, later) = std::mem::take(&mut values).split_at_mut(edges.len() * width);
            with(row, edges, own);
            values = later;
        }
    });
}

/// Over the edges of one target, for each head.
fn softmax(scores: &mut [f32], heads: usize) {
    for head in 0..heads {
        let edges = (head..scores.len()).step_by(heads);
        let largest = edges.clone().map(|e| scores[e]).fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for e in edges.clone() {
            scores[e] = (scores[e] - largest).exp();
            sum += scores[e];
        }
        edges.for_each(|e| scores[e] /= sum);
    }
}
