//! What layers of attention share: heads, the edges of targets with the targets themselves, the softmax over the
//! edges of a target, and the sums that these weight, forward and backward.

use std::ops::Range;

use hither_kernels::memory::{Buffer, stale};
use hither_kernels::spmm::{self, Csr, Transposed};
use rayon::prelude::*;

use crate::sample::Hop;

/// The slope of the scores' LeakyReLU below zero.
const SLOPE: f32 = 0.2;
/// Targets whose edges are weighted at once where the weights need not be kept.
const BLOCK: usize = 1 << 14;
/// Rows per task. Sums over rows are made task by task and added in order, whatever the threads.
pub const TASK_ROWS: usize = 512;

/// The heads of an attention: each has its own part of every row.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub count: usize,
    /// Numbers per node and head.
    pub dim: usize,
    /// Heads stand beside each other in the output; otherwise it is their mean.
    pub concat: bool,
}

/// The edges of all targets, each target before its neighbours, and their weights.
pub struct WeightedEdges {
    offsets: Vec<u64>,
    columns: Vec<u32>,
    /// One per edge and head.
    weights: Buffer,
}

impl WeightedEdges {
    pub fn csr(&self) -> Csr<'_> {
        Csr { offsets: &self.offsets, columns: &self.columns }
    }
}

/// Gradients of what [`Heads::gather`] reads.
pub struct GatherGradient {
    /// Of the scores before the softmax, one per edge and head.
    pub scores: Buffer,
    /// Of the rows that are summed.
    pub rows: Buffer,
    /// The edges by source.
    pub transposed: Transposed,
}

impl Heads {
    /// Numbers per node.
    pub fn width(&self) -> usize {
        self.count * self.dim
    }

    /// Sums `rows` over the edges of each target. `weigh` returns the weights of the edges of some targets. The edges
    /// of all targets are returned if they are to be kept; otherwise only a block of them exists at a time.
    pub fn gather(
        &self,
        hop: &Hop,
        rows: &[f32],
        keep: bool,
        weigh: impl Fn(Csr, Range<usize>) -> Buffer,
    ) -> (Buffer, Option<WeightedEdges>) {
        let (targets, width) = (hop.targets(), self.width());
        let mut y = stale(targets * width);
        let size = if keep { targets } else { BLOCK.min(targets) };
        let mut kept = None;
        for start in (0..targets).step_by(size.max(1)) {
            let block = start..(start + size).min(targets);
            let (offsets, columns) = with_loops(hop, block.clone());
            let csr = Csr { offsets: &offsets, columns: &columns };
            let weights = weigh(csr, block.clone());
            let out = &mut y[start * width..block.end * width];
            spmm::gather_heads(csr, &weights, None, rows, self.count, self.dim, out, false);
            kept = keep.then_some(WeightedEdges { offsets, columns, weights });
        }
        (self.join(y), kept)
    }

    /// Backward of [`Heads::gather`] and of the softmax before it.
    pub fn gather_backward(
        &self,
        hop: &Hop,
        edges: &WeightedEdges,
        rows: &[f32],
        dy: &[f32],
    ) -> GatherGradient {
        let Self { count, dim, .. } = *self;
        let split = self.split(dy);
        let dy = split.as_deref().unwrap_or(dy);
        let (csr, weights) = (edges.csr(), &edges.weights);
        let mut scores = stale(weights.len());
        spmm::edge_dots(csr, dy, rows, count, dim, &mut scores);
        each_row(csr.offsets, &mut scores, count, |_, edges, scores| {
            through_softmax(&weights[edges.start * count..edges.end * count], scores, count);
        });
        let transposed = spmm::transpose(csr, hop.inputs);
        let mut drows = stale(hop.inputs * self.width());
        let order = Some(&transposed.edges[..]);
        spmm::gather_heads(transposed.csr(), weights, order, dy, count, dim, &mut drows, false);
        GatherGradient { scores, rows: drows, transposed }
    }

    /// The output of rows of all heads.
    fn join(&self, y: Buffer) -> Buffer {
        if self.concat {
            return y;
        }
        let Self { count, dim, .. } = *self;
        let share = 1.0 / count as f32;
        let mut means = stale(y.len() / count);
        let rows = means.par_chunks_exact_mut(dim).zip(y.par_chunks_exact(count * dim));
        rows.with_min_len(TASK_ROWS).for_each(|(means, y)| {
            for (at, mean) in means.iter_mut().enumerate() {
                *mean = y.iter().skip(at).step_by(dim).sum::<f32>() * share;
            }
        });
        means
    }

    /// Backward of [`Heads::join`]; `None`: the gradient as it is.
    fn split(&self, dy: &[f32]) -> Option<Buffer> {
        if self.concat {
            return None;
        }
        let Self { count, dim, .. } = *self;
        let share = 1.0 / count as f32;
        let mut spread = stale(dy.len() * count);
        let rows = spread.par_chunks_exact_mut(count * dim).zip(dy.par_chunks_exact(dim));
        rows.with_min_len(TASK_ROWS).for_each(|(spread, dy)| {
            for (at, value) in spread.iter_mut().enumerate() {
                *value = dy[at % dim] * share;
            }
        });
        Some(spread)
    }
}

/// LeakyReLU.
pub fn leaky(score: f32) -> f32 {
    score * leaky_slope(score)
}

pub fn leaky_slope(score: f32) -> f32 {
    if score < 0.0 { SLOPE } else { 1.0 }
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
pub fn each_row<T: Send>(
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
pub fn softmax(scores: &mut [f32], heads: usize) {
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

/// Turns gradients of the weights of one target's edges into gradients of their scores, in place.
fn through_softmax(weights: &[f32], dscores: &mut [f32], heads: usize) {
    for head in 0..heads {
        let entries = (head..weights.len()).step_by(heads);
        let mean: f32 = entries.clone().map(|e| weights[e] * dscores[e]).sum();
        entries.for_each(|e| dscores[e] = weights[e] * (dscores[e] - mean));
    }
}
