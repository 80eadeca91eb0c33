//! GraphSAGE: the node itself and the mean of its neighbours, each through weights of its own.

use std::ops::Range;

use hither_kernels::memory::zeros;
use hither_kernels::spmm::Own;
use hither_kernels::vector;

use super::mean::{Norm, project_first};
use super::{InputGradient, Kept, Matrix, Rows, Seen};
use crate::sample::Hop;

/// y = mean(x of neighbours) · Wₗᵀ + x · Wᵣᵀ + b
#[derive(Clone, Debug)]
pub struct Sage {
    /// Wₗ
    pub neighbours: Matrix,
    /// Wᵣ
    pub own: Matrix,
    pub bias: Range<usize>,
}

impl Sage {
    pub fn forward(&self, params: &[f32], x: &Rows, hop: &Hop, keep: bool) -> (Vec<f32>, Kept) {
        let outputs = self.bias.len();
        let scales = Norm::Neighbours.scales(hop);
        let bias = Some(&params[self.bias.clone()]);
        let mut y = zeros(hop.targets() * outputs);
        if project_first(x.is_sparse(), x.dim(), hop, outputs) {
            x.project(hop.own(), &self.own, params, bias, &mut y, false);
            let mut projected = zeros(x.count() * outputs);
            let all = Own::prefix(x.count());
            x.project(all, &self.neighbours, params, None, &mut projected, false);
            vector::add_scaled(&mut y, 1.0, &scales.forward(&projected, outputs));
            return (y, Kept::Nothing);
        }
        let Rows::Dense { values, dim } = x else { unreachable!("sparse rows are projected") };
        let kept = scales.forward_blocks(values, *dim, keep, |targets, means| {
            let y = &mut y[targets.start * outputs..targets.end * outputs];
            x.project(hop.own_of(targets.clone()), &self.own, params, bias, y, false);
            let (means, all) = (Rows::dense(means, *dim), Own::prefix(targets.len()));
            means.project(all, &self.neighbours, params, None, y, true);
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
        let scales = Norm::Neighbours.scales(hop);
        vector::column_sums(dy, outputs, &mut grads[self.bias.clone()]);
        x.weight_gradient(hop.own(), &self.own, dy, grads);
        let mut dx = match kept {
            Kept::Means(means) => {
                let rows = Rows::dense(means, inputs);
                rows.weight_gradient(Own::prefix(hop.targets()), &self.neighbours, dy, grads);
                wanted.then(|| scales.backward(&self.neighbours.input_gradient(params, dy), inputs))
            }
            _ => {
                let dprojected = scales.backward(dy, outputs);
                x.weight_gradient(Own::prefix(x.count()), &self.neighbours, &dprojected, grads);
                wanted.then(|| self.neighbours.input_gradient(params, &dprojected))
            }
        };
        if let Some(dx) = &mut dx {
            // Only a table of features has targets elsewhere than in front, and nobody wants the
            // gradient of that.
            self.own.add_input_gradient(params, dy, &mut dx[..hop.targets() * inputs]);
        }
        dx
    }
}
