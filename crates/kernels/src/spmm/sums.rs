//! The loops over edges, once for all instruction sets: the sums of a row, or of some of its
//! columns, stay in registers from its first edge to its last.
//!
//! Columns and offsets may lie in a mapped file, which another process can change at any time. Each
//! is therefore read once, and the value that was read is checked before it becomes an address.
//! The check of a column is hidden behind the row's loads: in a replica of the loop with all rows in the
//! second-level cache (Zen 3, AVX2, shortest of many interleaved passes) it takes 12 % with 8 columns,
//! 1 % with 16 and 32, and nothing with 64.

use std::ops::Range;

use super::attention::Heads;
use super::fetch::Ahead;
use super::{Csr, Gather};
use crate::fetch;
use crate::simd::Lanes;

/// A group of neighbouring columns: `vectors` vectors of them, the last of which has `last` lanes.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub first: usize,
    pub vectors: usize,
    pub last: usize,
}

impl Part {
    /// From column `first` on, no more than so many vectors.
    pub fn starting_at(first: usize, width: usize, vectors_max: usize, lanes: usize) -> Self {
        let vectors = (width - first).div_ceil(lanes).min(vectors_max);
        Self { first, vectors, last: (width - first - (vectors - 1) * lanes).min(lanes) }
    }

    pub fn columns(&self, lanes: usize) -> usize {
        (self.vectors - 1) * lanes + self.last
    }
}

/// Some rows of a [`gather`](super::gather), and one part of their columns.
pub(super) struct Job<'a> {
    pub gather: &'a Gather<'a>,
    pub x: &'a [f32],
    pub dim: usize,
    pub part: Part,
    pub rows: Range<usize>,
    /// The first of these rows, and its first column.
    pub out: *mut f32,
    pub accumulate: bool,
}

pub(super) type SumsFn = unsafe fn(&Job);

/// Reads an element exactly once: the value that is checked is the one that is used.
#[inline(always)]
fn read_once<T: Copy>(element: &T) -> T {
    // SAFETY: a reference is valid and aligned.
    unsafe { std::ptr::read_volatile(element) }
}

/// The numbers of a row's edges: no edge is beyond the columns.
#[inline(always)]
fn bounds(csr: Csr, row: usize) -> (usize, usize) {
    let start = read_once(&csr.offsets[row]) as usize;
    let end = read_once(&csr.offsets[row + 1]) as usize;
    if start > end || end > csr.columns.len() {
        offsets_fall(start, end, csr.columns.len());
    }
    (start, end)
}

/// The input row that an edge leads to, which is below `inputs`.
///
/// # Safety
/// `edge` is below the number of columns.
#[inline(always)]
unsafe fn column_of(csr: Csr, edge: usize, inputs: usize) -> usize {
    // SAFETY: the caller's promise.
    let column = read_once(unsafe { csr.columns.get_unchecked(edge) }) as usize;
    if column >= inputs {
        no_such_row(column, inputs);
    }
    column
}

#[cold]
fn offsets_fall(start: usize, end: usize, columns: usize) -> ! {
    panic!("offsets of a sparse matrix fall, or pass its {columns} columns: {start} to {end}")
}

#[cold]
fn no_such_weights(at: usize, weighted: usize) -> ! {
    panic!("edge {at} of {weighted} weighted ones")
}

#[cold]
fn no_such_row(column: usize, inputs: usize) -> ! {
    panic!("column {column} of {inputs} rows")
}

/// How many rows ahead an output row's own input row is called.
const OWN_AHEAD: usize = 8;

/// # Safety
/// The processor has the features of `L`; lengths are as [`Gather::check`] demands, and `out` has
/// room for the rows.
#[inline(always)]
pub(super) unsafe fn gather<L: Lanes, const N: usize, const WEIGHTED: bool>(job: &Job) {
    let Job { gather, x, dim, part, .. } = *job;
    let (csr, inputs) = (gather.csr, x.len() / dim);
    let whole = part.last == L::LANES;
    let ahead = Ahead::new(csr, job.rows.clone(), x, dim, part.first, part.columns(L::LANES));
    let mut ahead = ahead.with_scales(gather.source_scale);
    let mut out = job.out;
    for row in job.rows.start..job.rows.end {
        let later = row + OWN_AHEAD;
        if later < job.rows.end
            && let Some((input, _)) = gather.own_of(later)
        {
            fetch::far(&x[input * dim + part.first..][..part.columns(L::LANES)]);
        }
        // SAFETY: `bounds` keeps edges below the number of columns, `column_of` keeps columns below
        // the number of rows of x, and the caller promises room in `out`.
        unsafe {
            let mut sums = [L::load_first(x.as_ptr(), 0); N];
            let (mut edge, end) = bounds(csr, row);
            while edge < end {
                let until = ahead.reach(edge).min(end);
                while edge < until {
                    let column = column_of(csr, edge, inputs);
                    let from = x.as_ptr().add(column * dim + part.first);
                    if WEIGHTED {
                        let factor = L::splat(factor(gather, edge, column));
                        add_row::<L, N>(&mut sums, from, whole, part.last, |sum, x| {
                            L::fma(x, factor, sum)
                        });
                    } else {
                        add_row::<L, N>(&mut sums, from, whole, part.last, |sum, x| L::add(sum, x));
                    }
                    edge += 1;
                }
            }
            if let Some(scale) = gather.target_scale {
                let scale = L::splat(*scale.get_unchecked(row));
                for sum in &mut sums {
                    *sum = L::mul(*sum, scale);
                }
            }
            if let Some((input, factor)) = gather.own_of(row) {
                if input >= inputs {
                    no_such_row(input, inputs);
                }
                let from = x.as_ptr().add(input * dim + part.first);
                let factor = L::splat(factor);
                add_row::<L, N>(&mut sums, from, whole, part.last, |sum, x| L::fma(x, factor, sum));
            }
            if job.accumulate {
                add_row::<L, N>(&mut sums, out, whole, part.last, |sum, out| L::add(out, sum));
            }
            store_row::<L, N>(out, &sums, part.last);
            out = out.wrapping_add(dim);
        }
    }
}

/// Some rows of a [`gather_heads`](super::gather_heads), and one part of their columns.
pub(super) struct HeadsJob<'a> {
    pub heads: &'a Heads<'a>,
    pub weights: &'a [f32],
    pub order: Option<&'a [u32]>,
    pub x: &'a [f32],
    pub part: Part,
    pub rows: Range<usize>,
    /// The first of these rows, and its first column.
    pub out: *mut f32,
    pub accumulate: bool,
}

pub(super) type HeadsFn = unsafe fn(&HeadsJob);

/// The weights of an edge are one vector: each vector of columns takes those of its heads from it.
///
/// # Safety
/// As for [`gather`]; the part's columns are of no more heads than a vector has lanes; `order` has
/// an entry for each column, and without it `weights` have a row for each.
#[inline(always)]
pub(super) unsafe fn gather_heads<L: Lanes, const N: usize>(job: &HeadsJob) {
    let HeadsJob { x, part, weights, order, .. } = *job;
    let Heads { csr, count, dim } = *job.heads;
    let width = count * dim;
    let whole = part.last == L::LANES;
    let (head, head_last) = (part.first / dim, (part.first + part.columns(L::LANES) - 1) / dim);
    let heads_here = head_last - head + 1;
    let (inputs, weighted) = (x.len() / width, weights.len() / count);
    let mut ahead = Ahead::new(csr, job.rows.clone(), x, width, part.first, part.columns(L::LANES));
    let mut out = job.out;
    // SAFETY: `bounds` keeps edges below the number of columns, `column_of` keeps columns below the
    // number of rows of x, `at` is below the rows of weights, and the caller promises room in `out`.
    unsafe {
        let mut lanes = [L::load_first(x.as_ptr(), 0); N];
        for (v, lanes) in lanes.iter_mut().enumerate() {
            let mut words = [0_u32; 16];
            for (i, word) in words.iter_mut().enumerate().take(L::LANES) {
                let of = (part.first + v * L::LANES + i) / dim;
                *word = (of.min(head_last) - head) as u32;
            }
            *lanes = L::load(words.as_ptr().cast());
        }
        for row in job.rows.start..job.rows.end {
            let mut sums = [L::load_first(x.as_ptr(), 0); N];
            let (mut edge, end) = bounds(csr, row);
            while edge < end {
                let until = ahead.reach(edge).min(end);
                while edge < until {
                    let column = column_of(csr, edge, inputs);
                    let at = match order {
                        Some(order) => read_once(order.get_unchecked(edge)) as usize,
                        None => edge,
                    };
                    if at >= weighted {
                        no_such_weights(at, weighted);
                    }
                    let from = weights.as_ptr().add(at * count + head);
                    let factors = match heads_here == L::LANES {
                        true => L::load(from),
                        false => L::load_first(from, heads_here),
                    };
                    let from = x.as_ptr().add(column * width + part.first);
                    let mut v = 0;
                    add_row::<L, N>(&mut sums, from, whole, part.last, |sum, x| {
                        v += 1;
                        L::fma(x, L::permute(factors, lanes[v - 1]), sum)
                    });
                    edge += 1;
                }
            }
            if job.accumulate {
                add_row::<L, N>(&mut sums, out, whole, part.last, |sum, out| L::add(out, sum));
            }
            store_row::<L, N>(out, &sums, part.last);
            out = out.wrapping_add(width);
        }
    }
}

/// Some rows of [`edge_dots`](super::edge_dots).
pub(super) struct DotsJob<'a> {
    pub heads: &'a Heads<'a>,
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub rows: Range<usize>,
    /// One value per head for each edge of these rows.
    pub out: &'a mut [f32],
}

pub(super) type DotsFn = unsafe fn(DotsJob);

/// Four edges at a time: their sums over lanes are made together.
///
/// # Safety
/// The processor has the features of `L`, and `a` has as many rows as the matrix.
#[inline(always)]
pub(super) unsafe fn edge_dots<L: Lanes>(job: DotsJob) {
    let Heads { csr, count, dim } = *job.heads;
    let width = count * dim;
    let inputs = job.b.len() / width;
    let mut ahead = Ahead::new(csr, job.rows.clone(), job.b, width, 0, width);
    let mut rest = job.out;
    for row in job.rows.start..job.rows.end {
        let (mut edge, end) = bounds(csr, row);
        let (out, later) = rest.split_at_mut((end - edge) * count);
        rest = later;
        let mut out = out.as_mut_ptr();
        // SAFETY: `bounds` keeps edges below the number of columns, `column_of` keeps columns below
        // the number of rows of b, the caller promises the rows of a, and `out` was split off for
        // the edges of this row.
        unsafe {
            let a = job.a.as_ptr().add(row * width);
            let b = |edge: usize| job.b.as_ptr().add(column_of(csr, edge, inputs) * width);
            while edge < end {
                ahead.reach(edge);
                if edge + 4 <= end {
                    let rows = [b(edge), b(edge + 1), b(edge + 2), b(edge + 3)];
                    for head in 0..count {
                        let sums = L::sums(products::<L, 4>(a, rows, head * dim, dim));
                        for (i, sum) in sums.into_iter().enumerate() {
                            *out.add(i * count + head) = sum;
                        }
                    }
                    edge += 4;
                    out = out.wrapping_add(4 * count);
                } else {
                    for head in 0..count {
                        let [sum] = products::<L, 1>(a, [b(edge)], head * dim, dim);
                        *out.add(head) = L::sum(sum);
                    }
                    edge += 1;
                    out = out.wrapping_add(count);
                }
            }
        }
    }
}

/// The products of a row with others, from column `first` on, lane by lane.
///
/// # Safety
/// The rows have `first + len` elements; the processor has the features of `L`.
#[inline(always)]
unsafe fn products<L: Lanes, const ROWS: usize>(
    a: *const f32,
    rows: [*const f32; ROWS],
    first: usize,
    len: usize,
) -> [L::V; ROWS] {
    // SAFETY: `k` and what is read from there on stay within the rows, by the caller's promise.
    unsafe {
        let mut sums = [L::load_first(a, 0); ROWS];
        let mut k = first;
        while k + L::LANES <= first + len {
            let a = L::load(a.add(k));
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = L::fma(a, L::load(row.add(k)), *sum);
            }
            k += L::LANES;
        }
        let left = first + len - k;
        if left > 0 {
            let a = L::load_first(a.add(k), left);
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum = L::fma(a, L::load_first(row.add(k), left), *sum);
            }
        }
        sums
    }
}

/// As [`Gather::factor`] has it, where there is one.
///
/// # Safety
/// There are as many weights as edges, and as many scales as input rows.
#[inline(always)]
unsafe fn factor(gather: &Gather, edge: usize, column: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        match (gather.edge_weights, gather.source_scale) {
            (None, None) => 1.0,
            (Some(weights), None) => *weights.get_unchecked(edge),
            (None, Some(scales)) => *scales.get_unchecked(column),
            (Some(weights), Some(scales)) => {
                weights.get_unchecked(edge) * scales.get_unchecked(column)
            }
        }
    }
}

/// # Safety
/// The processor has the features of `L`, and the row the columns of a part of `N` vectors.
#[inline(always)]
unsafe fn add_row<L: Lanes, const N: usize>(
    sums: &mut [L::V; N],
    row: *const f32,
    whole: bool,
    last: usize,
    mut with: impl FnMut(L::V, L::V) -> L::V,
) {
    for (v, sum) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let x = unsafe {
            match v + 1 < N || whole {
                true => L::load(row.add(v * L::LANES)),
                false => L::load_first(row.add(v * L::LANES), last),
            }
        };
        *sum = with(*sum, x);
    }
}

/// # Safety
/// As for [`add_row`], to write.
#[inline(always)]
unsafe fn store_row<L: Lanes, const N: usize>(row: *mut f32, sums: &[L::V; N], last: usize) {
    for (v, sum) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            match v + 1 < N || last == L::LANES {
                true => L::store(row.add(v * L::LANES), *sum),
                false => L::store_first(row.add(v * L::LANES), *sum, last),
            }
        }
    }
}
