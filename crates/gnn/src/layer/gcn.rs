//! Graph convolution: the weighted mean of a node and its neighbours, through one matrix.

use std::ops::Range;

use hither_kernels::memory::zeros;
use hither_kernels::spmm::Own;
use hither_kernels::vector;

use super::mean::{Norm, project_first};
use super::{InputGradient, Kept, Matrix, Rows, Seen, add_to_rows};
use crate::sample::Hop;

/// y = Â x · Wᵀ + b
#[derive(Clone, Debug)]
pub struct Gcn {
    pub weight: Matrix,
    pub bias: Range<usize>,
    pub norm: Norm,
}

impl Gcn {
    pub fn forward(&self, params: &[f32], x: &Rows, hop: &Hop, keep: bool) -> (Vec<f32>, Kept) {
        let outputs = self.bias.len();
        let scales = self.norm.scales(hop);
        let bias = &params[self.bias.clone()];
        if project_first(x.is_sparse(), x.dim(), hop, outputs) {
            let mut projected = zeros(x.count() * outputs);
            x.project(Own::prefix(x.count()), &self.weight, params, None, &mut projected, false);
            let mut y = scales.forward(&projected, outputs);
            add_to_rows(&mut y, bias);
            return (y, Kept::Nothing);
        }
        let Rows::Dense { values, dim } = x else { unreachable!("sparse rows are projected") };
        let mut y = zeros(hop.targets() * outputs);
        let kept = scales.forward_blocks(values, *dim, keep, |targets, means| {
            let y = &mut y[targets.start * outputs..targets.end * outputs];
            let (means, all) = (Rows::dense(means, *dim), Own::prefix(targets.len()));
            means.project(all, &self.weight, params, Some(bias), y, false);
        });
        (y, kept)
    }

    pub fn backward(
        &self,
        seen: Seen,
        dy: &[f32],
        grads: &mut [f32],
        wanted: bool,
    ) -> InputGradient {
        let Seen { params, x, hops: [hop, ..], kept } = seen else { unreachable!("one hop") };
        let (inputs, outputs) = (x.dim(), self.bias.len());
        let scales = self.norm.scales(hop);
        vector::column_sums(dy, outputs, &mut grads[self.bias.clone()]);
        if let Kept::Means(means) = kept {
            let rows = Rows::dense(means, inputs);
            rows.weight_gradient(Own::prefix(hop.targets()), &self.weight, dy, grads);
            return wanted
                .then(|| scales.backward(&self.weight.input_gradient(params, dy), inputs));
        }
        let dprojected = scales.backward(dy, outputs);
        x.weight_gradient(Own::prefix(x.count()), &self.weight, &dprojected, grads);
        wanted.then(|| self.weight.input_gradient(params, &dprojected))
    }
}
