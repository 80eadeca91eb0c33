//! The input of a layer: rows of numbers, most of which may be zero.

use std::borrow::Cow;

use hither_kernels::gemm::{Matrix as View, product};
use hither_kernels::memory::{Buffer, stale};
use hither_kernels::spmm::{self, Csr, Gather, Own};

use super::mean::plain;
use super::{ParamMatrix, add_to_rows};
use crate::Features;

/// The input of a layer, one row per node: dense, or the entries that are not zero.
#[derive(Clone, Debug)]
pub enum Rows<'a> {
    Dense { values: Cow<'a, [f32]>, dim: usize },
    Sparse { offsets: Cow<'a, [u64]>, indices: Cow<'a, [u32]>, values: Values<'a>, dim: usize },
}

/// None: all ones.
type Values<'a> = Option<Cow<'a, [f32]>>;

impl<'a> Rows<'a> {
    pub fn dense(values: &'a [f32], dim: usize) -> Self {
        Self::Dense { values: Cow::Borrowed(values), dim }
    }

    /// All rows of a table of features, in place.
    pub fn all(features: &'a Features) -> Self {
        match features {
            Features::Dense { values, dim } => Self::dense(values, *dim),
            Features::Sparse { offsets, indices, values, dim } => Self::Sparse {
                offsets: Cow::Borrowed(offsets),
                indices: Cow::Borrowed(indices),
                values: values.as_ref().map(|values| Cow::Borrowed(&values[..])),
                dim: *dim,
            },
        }
    }

    /// Copies of some rows of a table of features.
    pub fn collect(features: &Features, nodes: &[u32]) -> Self {
        Rows::all(features).pick(nodes)
    }

    /// Copies of some rows.
    pub fn pick<'b>(&self, nodes: &[u32]) -> Rows<'b> {
        match self {
            Self::Dense { values, dim } => {
                let mut rows = Vec::with_capacity(nodes.len() * dim);
                for node in nodes {
                    let start = *node as usize * dim;
                    rows.extend_from_slice(&values[start..start + dim]);
                }
                Rows::Dense { values: Cow::Owned(rows), dim: *dim }
            }
            Self::Sparse { offsets, indices, values, dim } => {
                let mut ends = Vec::with_capacity(nodes.len() + 1);
                ends.push(0);
                let (mut taken, mut numbers) = (vec![], values.as_ref().map(|_| vec![]));
                for node in nodes {
                    let (start, end) = (offsets[*node as usize], offsets[*node as usize + 1]);
                    let range = start as usize..end as usize;
                    taken.extend_from_slice(&indices[range.clone()]);
                    if let (Some(numbers), Some(values)) = (&mut numbers, values) {
                        numbers.extend_from_slice(&values[range]);
                    }
                    ends.push(taken.len() as u64);
                }
                Rows::Sparse {
                    offsets: Cow::Owned(ends),
                    indices: Cow::Owned(taken),
                    values: numbers.map(Cow::Owned),
                    dim: *dim,
                }
            }
        }
    }

    /// The same rows for as long as these live.
    pub fn borrow(&self) -> Rows<'_> {
        match self {
            Self::Dense { values, dim } => Rows::dense(values, *dim),
            Self::Sparse { offsets, indices, values, dim } => Rows::Sparse {
                offsets: Cow::Borrowed(offsets),
                indices: Cow::Borrowed(indices),
                values: values.as_ref().map(|values| Cow::Borrowed(&values[..])),
                dim: *dim,
            },
        }
    }

    pub fn dim(&self) -> usize {
        match self {
            Self::Dense { dim, .. } | Self::Sparse { dim, .. } => *dim,
        }
    }

    pub fn count(&self) -> usize {
        match self {
            Self::Dense { values, dim } => values.len() / dim,
            Self::Sparse { offsets, .. } => offsets.len() - 1,
        }
    }

    pub fn is_sparse(&self) -> bool {
        matches!(self, Self::Sparse { .. })
    }

    /// Some rows, as one side of a product.
    fn view<'b>(values: &'b [f32], dim: usize, own: Own<'b>) -> View<'b> {
        match own {
            Own::Run { first, len } => {
                View::new(&values[first * dim..(first + len) * dim], len, dim)
            }
            Own::Ids(ids) => View::rows_of(values, dim, ids),
        }
    }

    /// Adds `rows[own] · weightᵀ` to `out`, or puts it there with a bias.
    pub fn project(
        &self,
        own: Own,
        weight: &ParamMatrix,
        params: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
        accumulate: bool,
    ) {
        let weights = &params[weight.at.clone()];
        match self {
            Self::Dense { values, dim } => {
                let weights = View::new(weights, weight.outputs, weight.inputs).t();
                product(Self::view(values, *dim, own), weights, bias, out, accumulate);
            }
            Self::Sparse { offsets, indices, values, .. } => {
                let rows = collected(own);
                // A sparse row times the weights is a sum of their columns.
                let columns = transposed(weights, weight.outputs, weight.inputs);
                let csr = Csr { offsets: &offsets[..rows + 1], columns: indices };
                let gather = Gather { edge_weights: values.as_deref(), ..plain(csr) };
                spmm::gather(&gather, &columns, weight.outputs, out, accumulate);
                if let Some(bias) = bias {
                    add_to_rows(out, bias);
                }
            }
        }
    }

    /// Adds `dyᵀ · rows[own]` to the gradient of `weight`.
    pub fn weight_gradient(&self, own: Own, weight: &ParamMatrix, dy: &[f32], grads: &mut [f32]) {
        let grads = &mut grads[weight.at.clone()];
        match self {
            Self::Dense { values, dim } => {
                let rows = Self::view(values, *dim, own);
                let dy = View::new(dy, dy.len() / weight.outputs, weight.outputs);
                product(dy.t(), rows, None, grads, true);
            }
            Self::Sparse { offsets, indices, values, dim } => {
                let rows = collected(own);
                let used = offsets[rows] as usize;
                let csr = Csr { offsets: &offsets[..rows + 1], columns: &indices[..used] };
                let by_feature = spmm::transpose(csr, *dim);
                let ordered: Option<Vec<f32>> = values.as_ref().map(|values| {
                    by_feature.edges.iter().map(|edge| values[*edge as usize]).collect()
                });
                let gather = Gather { edge_weights: ordered.as_deref(), ..plain(by_feature.csr()) };
                let mut columns = stale(dim * weight.outputs);
                spmm::gather(&gather, dy, weight.outputs, &mut columns, false);
                let rows = transposed(&columns, *dim, weight.outputs);
                grads.iter_mut().zip(rows.iter()).for_each(|(grad, more)| *grad += more);
            }
        }
    }
}

/// How many rows of a sparse table are meant: it holds what a batch collected, targets in front.
fn collected(own: Own) -> usize {
    let Own::Run { first: 0, len } = own else { unreachable!("sparse rows are collected") };
    len
}

/// Columns of a matrix as rows, in blocks that fit the first-level cache.
fn transposed(matrix: &[f32], rows: usize, columns: usize) -> Buffer {
    const BLOCK: usize = 32;
    let mut out = stale(matrix.len());
    for top in (0..rows).step_by(BLOCK) {
        for left in (0..columns).step_by(BLOCK) {
            for row in top..(top + BLOCK).min(rows) {
                for column in left..(left + BLOCK).min(columns) {
                    out[column * rows + row] = matrix[row * columns + column];
                }
            }
        }
    }
    out
}
