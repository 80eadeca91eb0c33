//! Batch normalisation of columns.

use std::ops::Range;

use hither_kernels::memory::{Buffer, stale};
use rayon::prelude::*;

use super::{BLOCK_ROWS, EPSILON, Normalised};

/// As PyTorch has it.
const MOMENTUM: f32 = 0.1;

/// A batch normalisation: where its parameters and statistics lie in the model's vectors.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// Range among the parameters.
    pub scale: Range<usize>,
    pub shift: Range<usize>,
    /// Range among the statistics.
    pub mean: Range<usize>,
    pub variance: Range<usize>,
}

impl BatchNorm {
    /// Normalises by the rows given, in place, and moves the running statistics towards theirs.
    pub fn learn(&self, params: &[f32], stats: &mut [f32], y: &mut [f32]) -> Normalised {
        let dim = self.scale.len();
        let rows = (y.len() / dim).max(1) as f64;
        let sums = column_sums(y, dim, |value, _| f64::from(value));
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / rows) as f32).collect();
        let squares = column_sums(y, dim, |value, at| f64::from(value - mean[at]).powi(2));
        let mut inverse = stale(dim);
        for (inverse, sum) in inverse.iter_mut().zip(&squares) {
            *inverse = 1.0 / ((sum / rows) as f32 + EPSILON).sqrt();
        }
        // The running variance is the unbiased one; of a single row there is none.
        let unbiased = (rows - 1.0).max(1.0);
        let towards = |stat: &mut f32, value: f32| *stat += MOMENTUM * (value - *stat);
        stats[self.mean.clone()].iter_mut().zip(&mean).for_each(|(s, m)| towards(s, *m));
        let variances = stats[self.variance.clone()].iter_mut().zip(&squares);
        variances.for_each(|(stat, sum)| towards(stat, (sum / unbiased) as f32));
        let (scale, shift) = (&params[self.scale.clone()], &params[self.shift.clone()]);
        let mut normalised = stale(y.len());
        let blocks = y.par_chunks_mut(BLOCK_ROWS * dim);
        blocks.zip(normalised.par_chunks_mut(BLOCK_ROWS * dim)).for_each(|(y, normalised)| {
            for (y, normalised) in y.chunks_exact_mut(dim).zip(normalised.chunks_exact_mut(dim)) {
                for at in 0..dim {
                    normalised[at] = (y[at] - mean[at]) * inverse[at];
                    y[at] = normalised[at] * scale[at] + shift[at];
                }
            }
        });
        Normalised { rows: normalised, inverse }
    }

    /// Normalises by the running statistics, in place.
    pub fn apply(&self, params: &[f32], stats: &[f32], y: &mut [f32]) {
        let dim = self.scale.len();
        let variance = &stats[self.variance.clone()];
        let scale = params[self.scale.clone()].iter().zip(variance);
        let scale: Vec<f32> = scale.map(|(s, variance)| s / (variance + EPSILON).sqrt()).collect();
        let (mean, shift) = (&stats[self.mean.clone()], &params[self.shift.clone()]);
        y.par_chunks_mut(BLOCK_ROWS * dim).for_each(|y| {
            for y in y.chunks_exact_mut(dim) {
                for at in 0..dim {
                    y[at] = (y[at] - mean[at]) * scale[at] + shift[at];
                }
            }
        });
    }

    /// Turns the gradient of the output into that of the input; adds to those of the parameters.
    pub fn backward(
        &self,
        params: &[f32],
        normalised: &Normalised,
        dy: &mut [f32],
        grads: &mut [f32],
    ) {
        let dim = self.scale.len();
        let rows = (dy.len() / dim).max(1) as f32;
        let Normalised { rows: normalised, inverse } = normalised;
        let dshift = column_sums(dy, dim, |value, _| f64::from(value));
        let dscale = column_sums(&products(dy, normalised), dim, |value, _| f64::from(value));
        let add = |grads: &mut [f32], sums: &[f64]| {
            grads.iter_mut().zip(sums).for_each(|(grad, sum)| *grad += *sum as f32);
        };
        add(&mut grads[self.shift.clone()], &dshift);
        add(&mut grads[self.scale.clone()], &dscale);
        let scale = &params[self.scale.clone()];
        let factor: Vec<f32> = scale.iter().zip(inverse.iter()).map(|(s, i)| s * i).collect();
        let mean_dy: Vec<f32> = dshift.iter().map(|sum| *sum as f32 / rows).collect();
        let mean_dyx: Vec<f32> = dscale.iter().map(|sum| *sum as f32 / rows).collect();
        let blocks = dy.par_chunks_mut(BLOCK_ROWS * dim);
        blocks.zip(normalised.par_chunks(BLOCK_ROWS * dim)).for_each(|(dy, x)| {
            for (dy, x) in dy.chunks_exact_mut(dim).zip(x.chunks_exact(dim)) {
                for at in 0..dim {
                    dy[at] = factor[at] * (dy[at] - mean_dy[at] - x[at] * mean_dyx[at]);
                }
            }
        });
    }
}

/// The products of the elements of two matrices.
pub(super) fn products(a: &[f32], b: &[f32]) -> Buffer {
    const BLOCK: usize = 1 << 16;
    let mut products = stale(a.len());
    products.par_chunks_mut(BLOCK).zip(a.par_chunks(BLOCK)).zip(b.par_chunks(BLOCK)).for_each(
        |((products, a), b)| {
            products.iter_mut().zip(a).zip(b).for_each(|((product, a), b)| *product = a * b);
        },
    );
    products
}

/// The sum over rows of `of(value, column)`.
pub(super) fn column_sums(
    values: &[f32],
    dim: usize,
    of: impl Fn(f32, usize) -> f64 + Sync,
) -> Vec<f64> {
    let block = |rows: &[f32]| {
        let mut sums = vec![0.0; dim];
        for row in rows.chunks_exact(dim) {
            for at in 0..dim {
                sums[at] += of(row[at], at);
            }
        }
        sums
    };
    let blocks: Vec<Vec<f64>> = values.par_chunks(BLOCK_ROWS * dim).map(block).collect();
    let mut sums = vec![0.0; dim];
    for block in blocks {
        sums.iter_mut().zip(block).for_each(|(sum, more)| *sum += more);
    }
    sums
}
