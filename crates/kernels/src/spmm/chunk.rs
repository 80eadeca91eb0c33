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
/// `dim` elements, and `out` has `dim` elements per row.
pub(super) fn each_rows(
    csr: Csr,
    dim: usize,
    out: &mut [f32],
    with: impl Fn(Range<usize>, &mut [f32]) + Sync,
) {
    each(csr, dim, |rows| rows.len() * dim, out, with);
}

/// The same where `out` has `width` elements per edge.
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
    let mut rest = out;
    let chunks: Vec<_> = ranges(csr, EDGES)
        .into_iter()
        .map(|rows| {
            let (mine, others) = std::mem::take(&mut rest).split_at_mut(len(rows.clone()));
            rest = others;
            (rows, mine)
        })
        .collect();
    chunks.into_par_iter().for_each(|(rows, out)| with(rows, out));
}

/// All rows, in order, in ranges of no more than so many edges and rows together; but for a row that
/// has more by itself.
pub(super) fn ranges(csr: Csr, edges: usize) -> Vec<Range<usize>> {
    let mut ranges = vec![];
    let mut first = 0;
    while first < csr.rows() {
        let limit = csr.offsets[first].saturating_add((first + edges) as u64);
        let more = csr.offsets[first + 1..].iter().enumerate();
        let fits = |(i, end): &(usize, &u64)| **end + (first + 1 + i) as u64 <= limit;
        let end = first + more.take_while(fits).count().max(1);
        ranges.push(first..end);
        first = end;
    }
    ranges
}
