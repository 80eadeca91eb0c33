//! GraphSAGE: the node itself and the mean of its neighbours, each through weights of its own.

use std::ops::Range;

use hither_kernels::memory::stale;
use hither_kernels::spmm::Own;
use hither_kernels::vector;

use super::mean::{Norm, project_first};
use super::{Backward, Forward, ForwardCache, InputGradient, ParamMatrix, Reads, Rows};
use crate::sample::Hop;

/// y = mean(x of neighbours) · Wₗᵀ + x · Wᵣᵀ + b
#[derive(Clone, Debug)]
pub struct Sage {
    /// Wₗ
    pub neighbours: ParamMatrix,
    /// Wᵣ
    pub own: ParamMatrix,
    pub bias: Range<usize>,
}

impl Sage {
    pub fn reads(&self) -> Reads {
        Reads { hops: 1, from_table: true, by_row: true, edge_weights: true, ..Reads::default() }
    }

    pub fn forward(&self, params: &[f32], x: &Rows, hop: &Hop, keep: bool) -> Forward {
        let outputs = self.bias.len();
        let scales = Norm::Neighbours.scales(hop);
        let bias = Some(&params[self.bias.clone()]);
        let mut y = stale(hop.targets() * outputs);
        if project_first(x.is_sparse(), x.dim(), hop, outputs) {
            x.project(hop.own(), &self.own, params, bias, &mut y, false);
            let mut projected = stale(x.count() * outputs);
            let all = Own::prefix(x.count());
            x.project(all, &self.neighbours, params, None, &mut projected, false);
            scales.add_forward(&projected, outputs, &mut y);
            return (y, ForwardCache::Nothing);
        }
        let Rows::Dense { values, dim } = x else { unreachable!("sparse rows are projected") };
        let cache = scales.forward_blocks(values, *dim, keep, |targets, means| {
            let y = &mut y[targets.start * outputs..targets.end * outputs];
            x.project(hop.own_of(targets.clone()), &self.own, params, bias, y, false);
            let (means, all) = (Rows::dense(means, *dim), Own::prefix(targets.len()));
            means.project(all, &self.neighbours, params, None, y, true);
        });
        (y, cache)
    }

    pub fn backward(&self, pass: Backward, grads: &mut [f32]) -> InputGradient {
        let Backward { params, x, hops: [hop, ..], dy, .. } = pass else {
            unreachable!("a layer of one hop")
        };
        vector::add_column_sums(dy, self.bias.len(), &mut grads[self.bias.clone()]);
        x.weight_gradient(hop.own(), &self.own, dy, grads);
        let scales = Norm::Neighbours.scales(hop);
        let mut dx = scales.backward_through(&self.neighbours, pass, grads);
        if let Some(dx) = &mut dx {
            // Targets are the first rows of x, except in a table of features, whose gradient is
            // never needed.
            self.own.put_input_gradient(params, dy, &mut dx[..hop.targets() * x.dim()], true);
        }
        dx
    }
}
