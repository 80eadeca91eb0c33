//! Graph convolution: the weighted mean of a node and its neighbours, through one matrix.

use std::ops::Range;

use hither_kernels::memory::stale;
use hither_kernels::spmm::Own;
use hither_kernels::vector;

use super::mean::{Norm, project_first};
use super::{
    Backward, Forward, ForwardCache, InputGradient, ParamMatrix, Reads, Rows, add_to_rows,
};
use crate::sample::{Hop, Roots};

/// y = Â x · Wᵀ + b
#[derive(Clone, Debug)]
pub struct Gcn {
    pub weight: ParamMatrix,
    pub bias: Range<usize>,
    pub norm: Norm,
}

impl Gcn {
    pub fn reads(&self) -> Reads {
        let roots = (self.norm == Norm::Symmetric).then_some(Roots::WithSelf);
        let from_table = self.norm == Norm::Mean;
        Reads { hops: 1, roots, from_table, by_row: true, edge_weights: true, ..Reads::default() }
    }

    pub fn forward(&self, params: &[f32], x: &Rows, hop: &Hop, keep: bool) -> Forward {
        let outputs = self.bias.len();
        let scales = self.norm.scales(hop);
        let bias = &params[self.bias.clone()];
        if project_first(x.is_sparse(), x.dim(), hop, outputs) {
            let mut projected = stale(x.count() * outputs);
            x.project(Own::prefix(x.count()), &self.weight, params, None, &mut projected, false);
            let mut y = scales.forward(&projected, outputs);
            add_to_rows(&mut y, bias);
            return (y, ForwardCache::Nothing);
        }
        let Rows::Dense { values, dim } = x else { unreachable!("sparse rows are projected") };
        let mut y = stale(hop.targets() * outputs);
        let cache = scales.forward_blocks(values, *dim, keep, |targets, means| {
            let y = &mut y[targets.start * outputs..targets.end * outputs];
            let (means, all) = (Rows::dense(means, *dim), Own::prefix(targets.len()));
            means.project(all, &self.weight, params, Some(bias), y, false);
        });
        (y, cache)
    }

    pub fn backward(&self, pass: Backward, grads: &mut [f32]) -> InputGradient {
        let Backward { hops: [hop, ..], dy, .. } = pass else { unreachable!("a layer of one hop") };
        vector::add_column_sums(dy, self.bias.len(), &mut grads[self.bias.clone()]);
        self.norm.scales(hop).backward_through(&self.weight, pass, grads)
    }
}
