//! Sums with a weight per edge and head, and the products that their gradients need.

use super::sums::{DotsJob, HeadsJob};
use super::vectors::Kernels;
use super::{Csr, chunk, reference};
use crate::detect::{self, Isa};

/// Rows of `count` heads of `dim` elements each, and the edges between them.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub csr: Csr<'a>,
    pub count: usize,
    pub dim: usize,
}

/// `out[i, h] = Σ weights[e, h] · x[c, h]` over the edges `e` of row `i`, which lead to the input
/// rows `c`; or is added to what `out` holds. A row of x and of out is `heads` times `dim` elements.
/// With an `order`, as of a transposed matrix, the weights of edge `e` are at `order[e]`.
///
/// # Panics
/// If lengths do not fit each other, or a column or an order is out of range.
#[expect(clippy::too_many_arguments, reason = "a kernel: what it reads, and where it writes")]
pub fn gather_heads(
    csr: Csr,
    weights: &[f32],
    order: Option<&[u32]>,
    x: &[f32],
    heads: usize,
    dim: usize,
    out: &mut [f32],
    accumulate: bool,
) {
    let isa = detect::cpu().isa;
    gather_heads_by(isa, csr, weights, order, x, heads, dim, out, accumulate);
}

/// [`gather_heads`] by kernels of no more than this instruction set. All give the same bits.
#[expect(clippy::too_many_arguments, reason = "a kernel: what it reads, and where it writes")]
pub fn gather_heads_by(
    isa: Isa,
    csr: Csr,
    weights: &[f32],
    order: Option<&[u32]>,
    x: &[f32],
    heads: usize,
    dim: usize,
    out: &mut [f32],
    accumulate: bool,
) {
    let heads = Heads { csr, count: heads, dim };
    let width = heads.width();
    assert_eq!(Some(out.len()), csr.rows().checked_mul(width), "elements of the output");
    if width == 0 {
        return;
    }
    assert!(x.len().is_multiple_of(width), "input of {} elements, rows of {width}", x.len());
    let edges = csr.columns.len();
    assert!(order.is_none_or(|order| order.len() == edges), "an order of {edges} edges");
    assert!(weights.len().is_multiple_of(heads.count), "weights of {} heads", heads.count);
    let weighted = weights.len() / heads.count;
    assert!(order.is_some() || weighted == edges, "weights of {edges} edges");
    let Some(kernels) = Kernels::for_isa(isa) else {
        return chunk::each_rows(csr, width, out, |rows, out| {
            reference::gather_heads(&heads, weights, order, x, rows, out, accumulate);
        });
    };
    for part in kernels.heads_parts(&heads) {
        chunk::each_rows(csr, width, out, |rows, out| {
            let out = out[part.first..].as_mut_ptr();
            let heads = &heads;
            let job = HeadsJob { heads, weights, order, x, part, rows, out, accumulate };
            // SAFETY: `of` gave kernels that this processor can run, lengths were compared above,
            // and `out` is these rows'.
            unsafe { kernels.heads[part.vectors - 1](&job) }
        });
    }
}

/// `out[e, h] = a[i, h] · b[c, h]` for every edge `e` from row `i` to input row `c`: the gradients
/// of the weights of [`gather_heads`].
///
/// # Panics
/// If lengths do not fit each other, or a column names a row that `b` does not have.
pub fn edge_dots(csr: Csr, a: &[f32], b: &[f32], heads: usize, dim: usize, out: &mut [f32]) {
    edge_dots_by(detect::cpu().isa, csr, a, b, heads, dim, out);
}

/// [`edge_dots`] by kernels of no more than this instruction set; these add in different orders.
pub fn edge_dots_by(
    isa: Isa,
    csr: Csr,
    a: &[f32],
    b: &[f32],
    heads: usize,
    dim: usize,
    out: &mut [f32],
) {
    let heads = Heads { csr, count: heads, dim };
    let width = heads.width();
    assert_eq!(Some(a.len()), csr.rows().checked_mul(width), "elements of the rows");
    assert_eq!(Some(out.len()), csr.columns.len().checked_mul(heads.count), "dots of the edges");
    if width == 0 {
        return out.fill(0.0);
    }
    assert!(b.len().is_multiple_of(width), "input of {} elements, rows of {width}", b.len());
    let kernels = Kernels::for_isa(isa);
    chunk::each_edges(csr, width, heads.count, out, |rows, out| {
        let Some(kernels) = kernels else {
            return reference::edge_dots(&heads, a, b, rows, out);
        };
        let job = DotsJob { heads: &heads, a, b, rows, out };
        // SAFETY: `of` gave kernels that this processor can run, and `a` has a row for each of the
        // matrix, as was asserted above.
        unsafe { (kernels.dots)(job) }
    });
}

impl Heads<'_> {
    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.count.checked_mul(self.dim).expect("the width of a row fits a word")
    }
}
