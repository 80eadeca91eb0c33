//! Rows, cut into chunks of nearly equal work.

use std::ops::Range;

use rayon::prelude::*;

use super::Csr;

/// Edges (and rows) of a chunk: enough that fetching ahead gets going, few enough that threads end
/// together.
const EDGES: usize = 8192;
/// Below this many elements read, a call stays in its thread.
const ELEMENTS_MIN: usize = 1 << 17;

/// Calls with neighbouring rows and their part of `out`, in parallel where that pays. An edge reads
/// `dim` elements, and `out` has `dim` elements a row.
pub(super) fn each_rows(
    csr: Csr,
    dim: usize,
    out: &mut [f32],
    with: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    each(csr, dim, |rows| rows.len() * dim, out, with);
}

/// The same where `out` has `width` elements an edge.
pub(super) fn each_edges(
    csr: Csr,
    dim: usize,
    width: usize,
    out: &mut [f32],
    with: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    // Edges that no row has, before the first.
    let skipped = csr.offsets.first().map_or(0, |first| *first as usize);
    each(csr, dim, |rows| csr.edges(rows).len() * width, &mut out[skipped * width..], with);
}

fn each(
    csr: Csr,
    dim: usize,
    len: impl Fn(Range<usize>) -> usize,
    out: &mut [f32],
    with: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    let rows = csr.rows();
    if rows == 0 {
        return;
    }
    let cost = |row: usize| csr.offsets[row].saturating_sub(csr.offsets[0]) as usize + row;
    if rayon::current_num_threads() == 1 || cost(rows).saturating_mul(dim) < ELEMENTS_MIN {
        return with(0..rows, out);
    }
    split(csr, len, out).into_par_iter().for_each(|(rows, out)| with(rows, out));
}

fn split<'a>(
    csr: Csr,
    len: impl Fn(Range<usize>) -> usize,
    mut out: &'a mut [f32],
) -> Vec<(Range<usize>, &'a mut [f32])> {
    let mut chunks = vec![];
    let mut first = 0;
    while first < csr.rows() {
        let from = csr.offsets[first] + first as u64;
        let rest = &csr.offsets[first + 1..];
        let more = rest.iter().enumerate().take(EDGES);
        let fits = |(i, end): &(usize, &u64)| **end + (first + 1 + i) as u64 <= from + EDGES as u64;
        // A row that is too long for a chunk is one alone.
        let end = first + more.take_while(fits).count().max(1);
        let (mine, others) = out.split_at_mut(len(first..end));
        chunks.push((first..end, mine));
        (first, out) = (end, others);
    }
    chunks
}
