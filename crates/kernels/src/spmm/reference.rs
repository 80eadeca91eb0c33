//! The plain truth, element by element: every kernel of `gather` and `gather_heads` does the same
//! operations in the same order and must agree to the last bit.

use std::ops::Range;

use super::Gather;
use super::attention::Heads;

pub(super) fn gather(
    gather: &Gather,
    x: &[f32],
    dim: usize,
    rows: Range<usize>,
    out: &mut [f32],
    accumulate: bool,
) {
    let weighted = gather.edge_weights.is_some() || gather.source_scale.is_some();
    let mut sum = vec![0.0_f32; dim];
    for (row, out) in rows.zip(out.chunks_exact_mut(dim)) {
        sum.fill(0.0);
        for edge in gather.csr.edges(row..row + 1) {
            let column = gather.csr.columns[edge] as usize;
            let factor = gather.factor(edge, column);
            for (sum, x) in sum.iter_mut().zip(&x[column * dim..][..dim]) {
                *sum = if weighted { x.mul_add(factor, *sum) } else { *sum + x };
            }
        }
        if let Some(scale) = gather.target_scale {
            sum.iter_mut().for_each(|sum| *sum *= scale[row]);
        }
        if let Some((input, factor)) = gather.own_of(row) {
            for (sum, x) in sum.iter_mut().zip(&x[input * dim..][..dim]) {
                *sum = x.mul_add(factor, *sum);
            }
        }
        for (out, sum) in out.iter_mut().zip(&sum) {
            *out = if accumulate { *out + sum } else { *sum };
        }
    }
}

pub(super) fn gather_heads(
    heads: &Heads,
    weights: &[f32],
    order: Option<&[u32]>,
    x: &[f32],
    rows: Range<usize>,
    out: &mut [f32],
    accumulate: bool,
) {
    let width = heads.count * heads.dim;
    let mut sum = vec![0.0_f32; width];
    for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
        sum.fill(0.0);
        for edge in heads.csr.edges(row..row + 1) {
            let column = heads.csr.columns[edge] as usize;
            let at = order.map_or(edge, |order| order[edge] as usize);
            for (i, sum) in sum.iter_mut().enumerate() {
                let factor = weights[at * heads.count + i / heads.dim];
                *sum = x[column * width + i].mul_add(factor, *sum);
            }
        }
        for (out, sum) in out.iter_mut().zip(&sum) {
            *out = if accumulate { *out + sum } else { *sum };
        }
    }
}

/// Kernels add the products of a head in an order of their own.
pub(super) fn edge_dots(heads: &Heads, a: &[f32], b: &[f32], rows: Range<usize>, out: &mut [f32]) {
    let Heads { csr, count, dim } = *heads;
    let first = csr.edges(rows.clone()).start;
    for row in rows {
        for edge in csr.edges(row..row + 1) {
            let column = csr.columns[edge] as usize;
            for head in 0..count {
                let a = &a[(row * count + head) * dim..][..dim];
                let b = &b[(column * count + head) * dim..][..dim];
                let dot = a.iter().zip(b).fold(0.0_f32, |sum, (a, b)| a.mul_add(*b, sum));
                out[(edge - first) * count + head] = dot;
            }
        }
    }
}
