//! Graph attention with dynamic scores (GATv2, Brody et al., 2022): as GAT, but a neighbour's score depends on the
//! node that asks, because the vector that scores comes after the nonlinearity.

use std::ops::Range;

use hither_kernels::memory::{reuse, stale, zeros};
use hither_kernels::spmm::{self, Csr, Transposed};
use hither_kernels::vector;
use rayon::prelude::*;

use super::heads::{BLOCK, Heads, TASK_ROWS, each_row, leaky, leaky_slope, softmax, with_loops};
use super::{Backward, ForwardCache, InputGradient, Linear, Rows, add_to_rows};
use crate::sample::Hop;

/// l = x · Wₗᵀ + bₗ, r = x · Wᵣᵀ + bᵣ; y = Σ softmax(a · leaky(lⱼ + rᵢ)) lⱼ, over neighbours j of i and i itself.
#[derive(Clone, Debug)]
pub struct Gatv2 {
    pub heads: Heads,
    /// Wₗ and bₗ: the neighbours.
    pub source: Linear,
    /// Wᵣ and bᵣ: the node itself.
    pub target: Linear,
    /// a: one vector per head.
    pub score: Range<usize>,
    pub bias: Range<usize>,
}

/// What a forward pass leaves: the edges with each target among its neighbours, their weights, and both projections.
pub struct Scored {
    offsets: Vec<u64>,
    columns: Vec<u32>,
    /// One per edge and head.
    weights: Vec<f32>,
    sources: Vec<f32>,
    targets: Vec<f32>,
}

impl Scored {
    pub fn reuse(self) {
        [self.weights, self.sources, self.targets].into_iter().for_each(reuse);
    }
}

impl Gatv2 {
    pub fn forward(
        &self,
        params: &[f32],
        x: &Rows,
        hop: &Hop,
        keep: bool,
    ) -> (Vec<f32>, ForwardCache) {
        let (Heads { count, dim, .. }, targets) = (self.heads, hop.targets());
        let width = count * dim;
        let sources = self.source.forward(params, x);
        let own = self.target.forward_first(params, x, targets);
        let mut y = stale(targets * width);
        let size = if keep { targets } else { BLOCK.min(targets) };
        let mut cache = ForwardCache::Nothing;
        for start in (0..targets).step_by(size.max(1)) {
            let block = start..(start + size).min(targets);
            let (offsets, columns) = with_loops(hop, block.clone());
            let csr = Csr { offsets: &offsets, columns: &columns };
            let rows = &own[start * width..block.end * width];
            let weights = self.weights(csr, &params[self.score.clone()], &sources, rows);
            let out = &mut y[start * width..block.end * width];
            spmm::gather_heads(csr, &weights, None, &sources, count, dim, out, false);
            if keep {
                let kept = Scored { offsets, columns, weights, sources, targets: own };
                cache = ForwardCache::Gatv2(Box::new(kept));
                break;
            }
        }
        let mut y = self.heads.join(y);
        add_to_rows(&mut y, &params[self.bias.clone()]);
        (y, cache)
    }

    /// The softmax over the edges of each target.
    fn weights(&self, csr: Csr, score: &[f32], sources: &[f32], targets: &[f32]) -> Vec<f32> {
        let Heads { count, dim, .. } = self.heads;
        let width = count * dim;
        let mut weights = stale(csr.columns.len() * count);
        each_row(csr.offsets, &mut weights, count, |row, edges, weights| {
            let target = &targets[row * width..][..width];
            for (weights, column) in weights.chunks_exact_mut(count).zip(&csr.columns[edges]) {
                let source = &sources[*column as usize * width..][..width];
                for (head, weight) in weights.iter_mut().enumerate() {
                    let part = head * dim..(head + 1) * dim;
                    let ends = source[part.clone()].iter().zip(&target[part.clone()]);
                    let terms = ends.zip(&score[part]).map(|((l, r), a)| a * leaky(l + r));
                    *weight = terms.sum();
                }
            }
            softmax(weights, count);
        });
        weights
    }

    pub fn backward(&self, pass: Backward, grads: &mut [f32]) -> InputGradient {
        let Backward { params, x, hops: [hop, ..], cache, dy, needs_dx } = pass else {
            unreachable!("a layer of one hop")
        };
        let ForwardCache::Gatv2(kept) = cache else {
            // Without targets there was nothing to keep.
            return needs_dx.then(|| zeros(x.count() * x.dim()));
        };
        let Heads { count, dim, .. } = self.heads;
        vector::add_column_sums(dy, self.bias.len(), &mut grads[self.bias.clone()]);
        let dy = &self.heads.split(dy)[..];
        let csr = Csr { offsets: &kept.offsets, columns: &kept.columns };
        let mut dscores = stale(kept.weights.len());
        spmm::edge_dots(csr, dy, &kept.sources, count, dim, &mut dscores);
        each_row(csr.offsets, &mut dscores, count, |_, edges, dscores| {
            let weights = &kept.weights[edges.start * count..edges.end * count];
            through_softmax(weights, dscores, count);
        });
        let turned = spmm::transpose(csr, hop.inputs);
        let mut dsources = stale(hop.inputs * count * dim);
        let order = Some(&turned.edges[..]);
        spmm::gather_heads(
            turned.csr(),
            &kept.weights,
            order,
            dy,
            count,
            dim,
            &mut dsources,
            false,
        );
        let score = &params[self.score.clone()];
        self.to_sources(&turned, score, kept, &dscores, &mut dsources);
        let (dtargets, dscore) = self.to_targets(csr, score, kept, &dscores);
        vector::add_scaled(&mut grads[self.score.clone()], 1.0, &dscore);
        let pass = Backward { cache: &ForwardCache::Nothing, ..pass };
        let dx = self.source.backward(Backward { dy: &dsources, ..pass }, grads);
        let own = self.target.backward(Backward { dy: &dtargets, ..pass }, grads);
        [dsources, dtargets, dscores].into_iter().for_each(reuse);
        dx.zip(own).map(|(mut dx, own)| {
            vector::add_scaled(&mut dx[..own.len()], 1.0, &own);
            reuse(own);
            dx
        })
    }

    /// Adds what the scores of a source's edges say of its row.
    fn to_sources(
        &self,
        turned: &Transposed,
        score: &[f32],
        kept: &Scored,
        dscores: &[f32],
        dsources: &mut [f32],
    ) {
        let Heads { count, dim, .. } = self.heads;
        let width = count * dim;
        let Csr { offsets, columns } = turned.csr();
        dsources.par_chunks_exact_mut(width).enumerate().with_min_len(TASK_ROWS).for_each(
            |(row, dsource)| {
                let source = &kept.sources[row * width..][..width];
                for entry in offsets[row] as usize..offsets[row + 1] as usize {
                    let target = &kept.targets[columns[entry] as usize * width..][..width];
                    let dscores = &dscores[turned.edges[entry] as usize * count..][..count];
                    for at in 0..width {
                        let slope = leaky_slope(source[at] + target[at]);
                        dsource[at] += dscores[at / dim] * score[at] * slope;
                    }
                }
            },
        );
    }

    /// What the scores of a target's edges say of its row, and of the vectors that score.
    fn to_targets(
        &self,
        csr: Csr,
        score: &[f32],
        kept: &Scored,
        dscores: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let Heads { count, dim, .. } = self.heads;
        let width = count * dim;
        let mut dtargets = zeros(csr.rows() * width);
        let tasks = dtargets.par_chunks_mut(TASK_ROWS * width).enumerate();
        let sums: Vec<Vec<f32>> = tasks
            .map(|(task, dtargets)| {
                let mut sums = vec![0.0; width];
                for (row, dtarget) in (task * TASK_ROWS..).zip(dtargets.chunks_exact_mut(width)) {
                    let target = &kept.targets[row * width..][..width];
                    for edge in csr.offsets[row] as usize..csr.offsets[row + 1] as usize {
                        let source = &kept.sources[csr.columns[edge] as usize * width..][..width];
                        let dscores = &dscores[edge * count..][..count];
                        for at in 0..width {
                            let (sum, dscore) = (source[at] + target[at], dscores[at / dim]);
                            dtarget[at] += dscore * score[at] * leaky_slope(sum);
                            sums[at] += dscore * leaky(sum);
                        }
                    }
                }
                sums
            })
            .collect();
        let mut dscore = vec![0.0; width];
        sums.iter().for_each(|sums| vector::add_scaled(&mut dscore, 1.0, sums));
        (dtargets, dscore)
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
