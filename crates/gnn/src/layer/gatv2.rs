//! Graph attention with dynamic scores (GATv2, Brody et al., 2022): as GAT, but a neighbour's score depends on the
//! node that asks, because the vector that scores comes after the nonlinearity.

use std::ops::Range;

use hither_kernels::memory::{Buffer, stale, zeros};
use hither_kernels::spmm::{Csr, Transposed};
use hither_kernels::vector;
use rayon::prelude::*;

use super::heads::{
    GatherGradient, Heads, TASK_ROWS, WeightedEdges, each_row, leaky, leaky_slope, softmax,
};
use super::{Backward, Forward, ForwardCache, InputGradient, Linear, Reads, Rows, add_to_rows};
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

/// What a forward pass leaves: the edges with their weights, and both projections.
pub struct Scored {
    edges: WeightedEdges,
    sources: Buffer,
    targets: Buffer,
}

impl Gatv2 {
    pub fn reads(&self) -> Reads {
        Reads { hops: 1, transposes: true, ..Reads::default() }
    }

    pub fn forward(&self, params: &[f32], x: &Rows, hop: &Hop, keep: bool) -> Forward {
        let width = self.heads.width();
        let sources = self.source.forward(params, x);
        let targets = self.target.forward_first(params, x, hop.targets());
        let score = &params[self.score.clone()];
        let (mut y, edges) = self.heads.gather(hop, &sources, keep, |csr, block| {
            let targets = &targets[block.start * width..block.end * width];
            self.weights(csr, score, &sources, targets)
        });
        add_to_rows(&mut y, &params[self.bias.clone()]);
        let kept = edges.map(|edges| Box::new(Scored { edges, sources, targets }));
        (y, kept.map_or(ForwardCache::Nothing, ForwardCache::Gatv2))
    }

    /// The softmax over the edges of each target.
    fn weights(&self, csr: Csr, score: &[f32], sources: &[f32], targets: &[f32]) -> Buffer {
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
        vector::add_column_sums(dy, self.bias.len(), &mut grads[self.bias.clone()]);
        let GatherGradient { scores: dscores, rows: mut dsources, transposed } =
            self.heads.gather_backward(hop, &kept.edges, &kept.sources, dy);
        let score = &params[self.score.clone()];
        self.to_sources(&transposed, score, kept, &dscores, &mut dsources);
        let (dtargets, dscore) = self.to_targets(score, kept, &dscores);
        vector::add_scaled(&mut grads[self.score.clone()], 1.0, &dscore);
        let pass = Backward { cache: &ForwardCache::Nothing, ..pass };
        let dx = self.source.backward(Backward { dy: &dsources, ..pass }, grads);
        let own = self.target.backward(Backward { dy: &dtargets, ..pass }, grads);
        dx.zip(own).map(|(mut dx, own)| {
            vector::add_scaled(&mut dx[..own.len()], 1.0, &own);
            dx
        })
    }

    /// Adds what the scores of a source's edges say of its row.
    fn to_sources(
        &self,
        transposed: &Transposed,
        score: &[f32],
        kept: &Scored,
        dscores: &[f32],
        dsources: &mut [f32],
    ) {
        let Heads { count, dim, .. } = self.heads;
        let width = count * dim;
        let Csr { offsets, columns } = transposed.csr();
        dsources.par_chunks_exact_mut(width).enumerate().with_min_len(TASK_ROWS).for_each(
            |(row, dsource)| {
                let source = &kept.sources[row * width..][..width];
                for entry in offsets[row] as usize..offsets[row + 1] as usize {
                    let target = &kept.targets[columns[entry] as usize * width..][..width];
                    let dscores = &dscores[transposed.edges[entry] as usize * count..][..count];
                    for at in 0..width {
                        let slope = leaky_slope(source[at] + target[at]);
                        dsource[at] += dscores[at / dim] * score[at] * slope;
                    }
                }
            },
        );
    }

    /// What the scores of a target's edges say of its row, and of the vectors that score.
    fn to_targets(&self, score: &[f32], kept: &Scored, dscores: &[f32]) -> (Buffer, Vec<f32>) {
        let (csr, Heads { count, dim, .. }) = (kept.edges.csr(), self.heads);
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
