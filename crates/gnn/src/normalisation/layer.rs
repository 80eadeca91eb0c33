//! Layer normalisation: each row by its own mean and variance.

use std::ops::Range;

use hither_kernels::memory::stale;
use rayon::prelude::*;

use super::batch::{column_sums, products};
use super::{BLOCK_ROWS, EPSILON, Normalised};

/// A layer normalisation: where its parameters lie in the model's vector.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    pub scale: Range<usize>,
    pub shift: Range<usize>,
}

impl LayerNorm {
    /// Normalises each row, in place.
    pub fn learn(&self, params: &[f32], y: &mut [f32]) -> Normalised {
        let dim = self.scale.len();
        let (scale, shift) = (&params[self.scale.clone()], &params[self.shift.clone()]);
        let mut rows = stale(y.len());
        let mut inverse = stale(y.len() / dim);
        y.par_chunks_exact_mut(dim)
            .zip(rows.par_chunks_exact_mut(dim))
            .zip(&mut inverse[..])
            .with_min_len(BLOCK_ROWS)
            .for_each(|((y, row), inverse)| {
                *inverse = normalise(y, row);
                for at in 0..dim {
                    y[at] = row[at] * scale[at] + shift[at];
                }
            });
        Normalised { rows, inverse }
    }

    /// As [`LayerNorm::learn`], and keeps nothing.
    pub fn apply(&self, params: &[f32], y: &mut [f32]) {
        let dim = self.scale.len();
        let (scale, shift) = (&params[self.scale.clone()], &params[self.shift.clone()]);
        y.par_chunks_mut(BLOCK_ROWS * dim).for_each(|y| {
            let mut row = vec![0.0; dim];
            for y in y.chunks_exact_mut(dim) {
                normalise(y, &mut row);
                for at in 0..dim {
                    y[at] = row[at] * scale[at] + shift[at];
                }
            }
        });
    }

    pub fn backward(
        &self,
        params: &[f32],
        normalised: &Normalised,
        dy: &mut [f32],
        grads: &mut [f32],
    ) {
        let dim = self.scale.len();
        let Normalised { rows, inverse } = normalised;
        let products = products(dy, rows);
        for (sums, at) in [(&*dy, &self.shift), (&products[..], &self.scale)] {
            let sums = column_sums(sums, dim, |value, _| f64::from(value));
            let grads = grads[at.clone()].iter_mut();
            grads.zip(sums).for_each(|(grad, sum)| *grad += sum as f32);
        }
        let scale = &params[self.scale.clone()];
        dy.par_chunks_exact_mut(dim)
            .zip(rows.par_chunks_exact(dim))
            .zip(&inverse[..])
            .with_min_len(BLOCK_ROWS)
            .for_each(|((dy, x), inverse)| {
                dy.iter_mut().zip(scale).for_each(|(dy, scale)| *dy *= scale);
                let mean = dy.iter().sum::<f32>() / dim as f32;
                let along = dy.iter().zip(x).map(|(dy, x)| dy * x).sum::<f32>() / dim as f32;
                dy.iter_mut().zip(x).for_each(|(dy, x)| *dy = inverse * (*dy - mean - x * along));
            });
    }
}

/// Puts the row with mean 0 and variance 1 into `normalised`; returns 1/√(variance + ε).
fn normalise(row: &[f32], normalised: &mut [f32]) -> f32 {
    let count = row.len() as f32;
    let mean = row.iter().sum::<f32>() / count;
    let squares: f32 = row.iter().map(|value| (value - mean) * (value - mean)).sum();
    let inverse = 1.0 / (squares / count + EPSILON).sqrt();
    normalised.iter_mut().zip(row).for_each(|(out, value)| *out = (value - mean) * inverse);
    inverse
}
