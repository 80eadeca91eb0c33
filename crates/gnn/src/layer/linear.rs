//! A node by itself: y = x · Wᵀ + b

use std::ops::Range;

use hither_kernels::memory::{Buffer, stale};
use hither_kernels::spmm::Own;
use hither_kernels::vector;

use super::{Backward, InputGradient, ParamMatrix, Reads, Rows};

/// y = x · Wᵀ + b, without neighbours.
#[derive(Clone, Debug)]
pub struct Linear {
    pub weight: ParamMatrix,
    pub bias: Range<usize>,
}

impl Linear {
    pub fn reads(&self) -> Reads {
        Reads { by_row: true, ..Reads::default() }
    }

    pub fn forward(&self, params: &[f32], x: &Rows) -> Buffer {
        self.forward_first(params, x, x.count())
    }

    /// Of the first rows only.
    pub fn forward_first(&self, params: &[f32], x: &Rows, rows: usize) -> Buffer {
        let mut y = stale(rows * self.bias.len());
        let bias = Some(&params[self.bias.clone()]);
        x.project(Own::prefix(rows), &self.weight, params, bias, &mut y, false);
        y
    }

    /// Of as many rows as `dy` has.
    pub fn backward(&self, pass: Backward, grads: &mut [f32]) -> InputGradient {
        let Backward { params, x, dy, needs_dx, .. } = pass;
        let rows = dy.len() / self.bias.len();
        vector::add_column_sums(dy, self.bias.len(), &mut grads[self.bias.clone()]);
        x.weight_gradient(Own::prefix(rows), &self.weight, dy, grads);
        needs_dx.then(|| self.weight.input_gradient(params, dy))
    }
}
