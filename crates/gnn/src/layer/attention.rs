//! Graph attention (GAT): neighbours and the node itself, weighted by what a small scoring of both
//! ends says, for several heads at once.

use std::ops::Range;

use hither_kernels::memory::zeros;
use hither_kernels::spmm::{self, Csr, Own};
use hither_kernels::vector;

use super::{InputGradient, Matrix, Rows, Seen, add_to_rows};
use crate::sample::Hop;

/// The slope of the scores' LeakyReLU below zero.
const SLOPE: f32 = 0.2;

/// h = x · Wᵀ; y = Σ softmax(leaky(a · hⱼ + b · hᵢ)) hⱼ, over neighbours j of i and i itself.
#[derive(Clone, Debug)]
pub struct Attention {
    pub heads: usize,
    /// Heads stand beside each other in the output; otherwise it is their mean.
    pub concat: bool,
    pub weight: Matrix,
    /// a: one vector a head, on the neighbours' side.
    pub source: Range<usize>,
    /// b: on the node's own.
    pub target: Range<usize>,
    pub bias: Range<usize>,
}

pub struct Kept {
    /// The hop with each target among its own neighbours.
    offsets: Vec<u64>,
    columns: Vec<u32>,
    /// h, one row an input.
    projected: Vec<f32>,
    /// One an edge and head.
    weights: Vec<f32>,
    /// Where the score was below zero.
    below: Vec<bool>,
}

impl Kept {
    fn csr(&self) -> Csr<'_> {
        Csr { offsets: &self.offsets, columns: &self.columns }
    }
}

impl Attention {
    /// Numbers a head gives a node.
    fn dim(&self) -> usize {
        self.weight.outputs / self.heads
    }

    pub fn forward(&self, params: &[f32], x: &Rows, hop: &Hop) -> (Vec<f32>, super::Kept) {
        let (heads, dim) = (self.heads, self.dim());
        let mut projected = zeros(x.count() * heads * dim);
        x.project(Own::prefix(x.count()), &self.weight, params, None, &mut projected, false);
        let sources = self.scores(&projected, &params[self.source.clone()]);
        let own = &projected[..hop.targets() * heads * dim];
        let targets = self.scores(own, &params[self.target.clone()]);
        let (offsets, columns) = with_loops(hop);
        let (mut weights, mut below) = (zeros(columns.len() * heads), vec![]);
        for (target, bounds) in offsets.windows(2).enumerate() {
            for edge in bounds[0] as usize..bounds[1] as usize {
                for head in 0..heads {
                    let source = columns[edge] as usize * heads + head;
                    let score = sources[source] + targets[target * heads + head];
                    below.push(score < 0.0);
                    weights[edge * heads + head] = if score < 0.0 { SLOPE * score } else { score };
                }
            }
            let range = bounds[0] as usize * heads..bounds[1] as usize * heads;
            softmax(&mut weights[range], heads);
        }
        let kept = Kept { offsets, columns, projected, weights, below };
        let mut y = zeros(hop.targets() * heads * dim);
        let csr = kept.csr();
        spmm::gather_heads(csr, &kept.weights, None, &kept.projected, heads, dim, &mut y, false);
        let mut y = if self.concat { y } else { self.mean_of_heads(&y) };
        add_to_rows(&mut y, &params[self.bias.clone()]);
        (y, super::Kept::Attention(Box::new(kept)))
    }

    pub fn backward(
        &self,
        seen: Seen,
        dy: &[f32],
        grads: &mut [f32],
        wanted: bool,
    ) -> InputGradient {
        let Seen { params, x, hops: [hop, ..], kept: super::Kept::Attention(kept) } = seen else {
            unreachable!("one hop, and what was kept of it")
        };
        let (heads, dim) = (self.heads, self.dim());
        vector::column_sums(dy, self.bias.len(), &mut grads[self.bias.clone()]);
        let spread;
        let dy = if self.concat {
            dy
        } else {
            spread = self.to_each_head(dy);
            &spread
        };
        let (csr, turned) = (kept.csr(), spmm::transpose(kept.csr(), hop.inputs));
        let back = Csr { offsets: &turned.offsets, columns: &turned.columns };
        let mut dscores = zeros(kept.weights.len());
        spmm::edge_dots(csr, dy, &kept.projected, heads, dim, &mut dscores);
        self.through_softmax(kept, &mut dscores);
        // What reaches the scores of both ends: sums over edges from and to a node.
        let mut dtargets = zeros(hop.targets() * heads);
        for (target, bounds) in kept.offsets.windows(2).enumerate() {
            let edges = &dscores[bounds[0] as usize * heads..bounds[1] as usize * heads];
            vector::column_sums(edges, heads, &mut dtargets[target * heads..][..heads]);
        }
        let mut dsources = zeros(hop.inputs * heads);
        for (source, bounds) in turned.offsets.windows(2).enumerate() {
            for entry in bounds[0] as usize..bounds[1] as usize {
                let edge = turned.edges[entry] as usize;
                for head in 0..heads {
                    dsources[source * heads + head] += dscores[edge * heads + head];
                }
            }
        }
        let mut dh = zeros(hop.inputs * heads * dim);
        let order = Some(&turned.edges[..]);
        spmm::gather_heads(back, &kept.weights, order, dy, heads, dim, &mut dh, false);
        self.through_scores(&dsources, params, &self.source, kept, &mut dh, grads);
        self.through_scores(&dtargets, params, &self.target, kept, &mut dh, grads);
        x.weight_gradient(Own::prefix(x.count()), &self.weight, &dh, grads);
        wanted.then(|| self.weight.input_gradient(params, &dh))
    }

    /// One number a row and head: the row's part of that head, dotted with its vector.
    fn scores(&self, rows: &[f32], vectors: &[f32]) -> Vec<f32> {
        let dim = self.dim();
        let dot = |(at, part): (usize, &[f32])| {
            let vector = &vectors[at % self.heads * dim..][..dim];
            part.iter().zip(vector).map(|(a, b)| a * b).sum()
        };
        rows.chunks_exact(dim).enumerate().map(dot).collect()
    }

    /// Backward of [`Self::scores`] over the first rows of h.
    fn through_scores(
        &self,
        dscores: &[f32],
        params: &[f32],
        vectors: &Range<usize>,
        kept: &Kept,
        dh: &mut [f32],
        grads: &mut [f32],
    ) {
        let dim = self.dim();
        for (at, dscore) in dscores.iter().enumerate() {
            let head = at % self.heads * dim;
            let row = at * dim..(at + 1) * dim;
            let vector = &params[vectors.start + head..][..dim];
            vector::add_scaled(&mut dh[row.clone()], *dscore, vector);
            let grad = &mut grads[vectors.start + head..][..dim];
            vector::add_scaled(grad, *dscore, &kept.projected[row]);
        }
    }

    fn through_softmax(&self, kept: &Kept, dscores: &mut [f32]) {
        let heads = self.heads;
        for bounds in kept.offsets.windows(2) {
            for head in 0..heads {
                let edges = (bounds[0] as usize..bounds[1] as usize).map(|e| e * heads + head);
                let mean: f32 = edges.clone().map(|e| kept.weights[e] * dscores[e]).sum();
                for e in edges {
                    let slope = if kept.below[e] { SLOPE } else { 1.0 };
                    dscores[e] = slope * kept.weights[e] * (dscores[e] - mean);
                }
            }
        }
    }

    fn mean_of_heads(&self, y: &[f32]) -> Vec<f32> {
        let dim = self.dim();
        let share = 1.0 / self.heads as f32;
        let row = |row: &[f32]| -> Vec<f32> {
            (0..dim).map(|at| row.iter().skip(at).step_by(dim).sum::<f32>() * share).collect()
        };
        y.chunks_exact(self.heads * dim).flat_map(row).collect()
    }

    fn to_each_head(&self, dy: &[f32]) -> Vec<f32> {
        let share = 1.0 / self.heads as f32;
        let row = |row: &[f32]| -> Vec<f32> { row.iter().map(|value| value * share).collect() };
        dy.chunks_exact(self.dim()).flat_map(|dy| row(dy).repeat(self.heads)).collect()
    }
}

/// Each target before its neighbours.
fn with_loops(hop: &Hop) -> (Vec<u64>, Vec<u32>) {
    let csr = hop.csr();
    let mut offsets = Vec::with_capacity(csr.offsets.len());
    let mut columns = Vec::with_capacity(csr.columns.len() + hop.targets());
    offsets.push(0);
    for (target, bounds) in csr.offsets.windows(2).enumerate() {
        columns.push(target as u32);
        columns.extend_from_slice(&csr.columns[bounds[0] as usize..bounds[1] as usize]);
        offsets.push(columns.len() as u64);
    }
    (offsets, columns)
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
