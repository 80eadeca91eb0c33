//! Sums over the neighbours of a node: products of a sparse matrix with rows of features.
//!
//! Forward, `x` is what the neighbours hold; backward, the same runs over the transposed matrix with
//! the two scales swapped, and an undirected graph is its own transpose. With `x` a table of
//! features and columns that are nodes of the whole graph, sampled neighbours are averaged without a
//! copy; with `x` the weights of a layer and columns that are words, sparse features are multiplied.
//!
//! Columns are summed in parts that fit the registers, a part of all rows before the next: so every
//! line of `x` is read once an edge, fetched ahead. On a Zen 4 core, rows of 128 elements in huge
//! pages, random columns, ten edges a row; the best of rounds on a machine that was doing other work:
//!
//! | rows                           | ns per edge | GB/s moved | of a sequential read |
//! |--------------------------------|------------|------------|----------------------|
//! | 2,000 (in L2)                  | 8.5        | 73         | –                    |
//! | 20,000 (in L3)                 | 15.7       | 39         | –                    |
//! | 200,000                        | 32.5       | 19         | 65 %                 |
//! | 1,000,000                      | 44         | 14         | 57 %                 |
//! | 200,000, two cores             | 26.7       | 23         | 63 %                 |
//! | 1,000,000, two cores           | 23.0       | 27         | 74 %                 |
//!
//! Moved are 618 bytes per edge: the row of 512, its part of an output row, which is fetched and
//! written, and its column. A sequential read of the same minutes took 25 to 29 GB/s, and 36 with
//! two cores. Without fetching ahead 200,000 rows take 73 ns, with small pages 50. Narrower parts, so
//! that a part of all of `x` fits the third level, gained nothing: 34 ns in fours, 44 in twos.

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod chunk;
mod fetch;
mod reference;
mod sums;
mod transpose;
mod vectors;

pub use attention::{edge_dots, edge_dots_by, gather_heads, gather_heads_by};
pub use transpose::{Transposed, transpose};

use self::sums::Job;
use self::vectors::Kernels;
use crate::detect::{self, Isa};

/// A sparse matrix, row by row: the entries of row `i` are edges `offsets[i]..offsets[i + 1]`.
#[derive(Clone, Copy, Debug)]
pub struct Csr<'a> {
    pub offsets: &'a [u64],
    pub columns: &'a [u32],
}

/// Which input row is the output row's own.
#[derive(Clone, Copy, Debug)]
pub enum Own<'a> {
    /// Input row `first + i` is output row `i`'s own, for so many; the others have none.
    Run { first: usize, len: usize },
    /// Input row `ids[i]` is output row `i`'s own.
    Ids(&'a [u32]),
}

impl Own<'_> {
    /// Input row `i` is output row `i`'s own, for the first so many.
    pub fn prefix(len: usize) -> Self {
        Self::Run { first: 0, len }
    }
}

/// What is summed, with which factors.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    pub csr: Csr<'a>,
    /// One per edge.
    pub edge_weights: Option<&'a [f32]>,
    /// One per input row.
    pub source_scale: Option<&'a [f32]>,
    /// One per output row.
    pub target_scale: Option<&'a [f32]>,
    /// The output row's own input row, added with a factor per output row; the other scales do not
    /// touch it.
    pub own: Option<(Own<'a>, Option<&'a [f32]>)>,
}

/// `out[i] = target_scale[i] · Σ edge_weights[e] · source_scale[c] · x[c] + own_scale[i] · x[own(i)]`
/// over the edges `e` of row `i`, which lead to the input rows `c`; or is added to what `out` holds.
/// A row is summed in the order of its edges, by one thread.
///
/// # Panics
/// If lengths do not fit each other, or a column or id names an input row that is not there.
pub fn gather(gather: &Gather, x: &[f32], dim: usize, out: &mut [f32], accumulate: bool) {
    gather_by(detect::cpu().isa, gather, x, dim, out, accumulate);
}

/// [`gather`] by kernels of no more than this instruction set. All give the same bits.
pub fn gather_by(
    isa: Isa,
    gather: &Gather,
    x: &[f32],
    dim: usize,
    out: &mut [f32],
    accumulate: bool,
) {
    gather.check(x, dim, out);
    if dim == 0 {
        return;
    }
    let Some(kernels) = Kernels::for_isa(isa) else {
        gather.csr.check_columns(x.len() / dim);
        return chunk::each_rows(gather.csr, dim, out, |rows, out| {
            reference::gather(gather, x, dim, rows, out, accumulate);
        });
    };
    let weighted = gather.edge_weights.is_some() || gather.source_scale.is_some();
    let runs = if weighted { kernels.weighted } else { kernels.plain };
    for part in kernels.parts(dim) {
        chunk::each_rows(gather.csr, dim, out, |rows, out| {
            let out = out[part.first..].as_mut_ptr();
            let job = Job { gather, x, dim, part, rows, out, accumulate };
            // SAFETY: `of` gave kernels that this processor can run, `check` compared all lengths,
            // and `out` is these rows'.
            unsafe { runs[part.vectors - 1](&job) }
        });
    }
}

impl Csr<'_> {
    pub fn rows(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The edges of some neighbouring rows, as numbers.
    fn edges(&self, rows: std::ops::Range<usize>) -> std::ops::Range<usize> {
        self.offsets[rows.start] as usize..self.offsets[rows.end] as usize
    }

    /// Checks that edges are in order and lead to one of the `inputs`.
    fn check_columns(&self, inputs: usize) {
        assert!(self.offsets.is_sorted(), "offsets of a sparse matrix fall");
        let columns = &self.columns[self.edges(0..self.rows())];
        // Not `max`: a fold over what may be nothing, in vectors.
        let last = columns.iter().fold(0, |last, column| (*column).max(last));
        assert!(columns.is_empty() || (last as usize) < inputs, "column {last} of {inputs} rows");
    }
}

impl Gather<'_> {
    /// Compares all lengths. Offsets, columns and ids are checked where they are used.
    fn check(&self, x: &[f32], dim: usize, out: &[f32]) {
        let rows = self.csr.rows();
        assert_eq!(Some(out.len()), rows.checked_mul(dim), "elements of {rows} rows of {dim}");
        if dim == 0 {
            return;
        }
        assert!(x.len().is_multiple_of(dim), "input of {} elements, rows of {dim}", x.len());
        let inputs = x.len() / dim;
        let edges = self.csr.columns.len();
        assert!(self.edge_weights.is_none_or(|w| w.len() == edges), "weights of {edges} edges");
        assert!(self.source_scale.is_none_or(|s| s.len() == inputs), "scales of {inputs} inputs");
        assert!(self.target_scale.is_none_or(|s| s.len() == rows), "scales of {rows} rows");
        if let Some((own, scale)) = self.own {
            assert!(scale.is_none_or(|s| s.len() == rows), "own scales of {rows} rows");
            match own {
                Own::Run { first, len } => {
                    let fits = inputs.checked_sub(first).is_some_and(|left| len <= left);
                    assert!(fits && len <= rows, "{len} own rows of {rows}, from {first}");
                }
                Own::Ids(ids) => assert_eq!(ids.len(), rows, "own ids"),
            }
        }
    }

    /// What the edge's row is multiplied by.
    #[inline(always)]
    fn factor(&self, edge: usize, column: usize) -> f32 {
        match (self.edge_weights, self.source_scale) {
            (None, None) => 1.0,
            (Some(weights), None) => weights[edge],
            (None, Some(scales)) => scales[column],
            (Some(weights), Some(scales)) => weights[edge] * scales[column],
        }
    }

    /// The row's own input row, and its factor.
    #[inline(always)]
    fn own_of(&self, row: usize) -> Option<(usize, f32)> {
        let (own, scale) = self.own?;
        let input = match own {
            Own::Run { first, len } => (row < len).then_some(first + row)?,
            Own::Ids(ids) => ids[row] as usize,
        };
        Some((input, scale.map_or(1.0, |scale| scale[row])))
    }
}
