//! One trained row per node: what a graph without features begins with.

use hither_kernels::memory::{Buffer, stale};
use hither_kernels::spmm::{self, Csr, Gather};

use super::mean::plain;
use super::{Backward, InputGradient, Reads, Rows};
use crate::model::Table;

/// y = the rows of a table that the node's features name: for a node without features, its own row.
#[derive(Clone, Debug)]
pub struct Embedding {
    pub table: Table,
}

impl Embedding {
    pub fn reads(&self) -> Reads {
        Reads::default()
    }

    pub fn forward(&self, params: &[f32], x: &Rows) -> Buffer {
        let (csr, values) = sparse(x);
        let mut y = stale(x.count() * self.table.dim);
        let gather = Gather { edge_weights: values, ..plain(csr) };
        spmm::gather(&gather, &params[self.table.at.clone()], self.table.dim, &mut y, false);
        y
    }

    pub fn backward(&self, pass: Backward, grads: &mut [f32]) -> InputGradient {
        let (csr, values) = sparse(pass.x);
        let by_row = spmm::transpose(csr, self.table.rows());
        let ordered: Option<Vec<f32>> =
            values.map(|values| by_row.edges.iter().map(|edge| values[*edge as usize]).collect());
        let gather = Gather { edge_weights: ordered.as_deref(), ..plain(by_row.csr()) };
        spmm::gather(&gather, pass.dy, self.table.dim, &mut grads[self.table.at.clone()], true);
        None
    }
}

/// The entries of sparse rows, and their values.
fn sparse<'a>(x: &'a Rows<'_>) -> (Csr<'a>, Option<&'a [f32]>) {
    match x {
        Rows::Sparse { offsets, indices, values, .. } => {
            (Csr { offsets, columns: indices }, values.as_deref())
        }
        Rows::Dense { .. } => unreachable!("an embedding reads sparse rows: see `Model::fits`"),
    }
}
