//! The pooling loop in fp32, once for all instruction sets, element types, widths and prefetch
//! schemes. Sums of quantised rows are in [`integer`](super::integer) where bags are long enough.
//!
//! What differs is known when the program is compiled: each combination becomes a loop of its own,
//! with the sum of a bag in registers from its first row to its last, and no branch per row.

use std::arch::x86_64::*;

use super::Dtype;
use super::ahead::{Ahead, by_ahead};
use super::kernel::{Mode, Target, Work};
use super::quant::Params;
use crate::simd::Lanes;

/// Cases of a loop, as constants: enums cannot be parameters yet.
pub(super) mod case {
    pub const F32: u8 = 0;
    pub const F16: u8 = 1;
    pub const BF16: u8 = 2;
    pub const INT8: u8 = 3;
    pub const INT4: u8 = 4;

    pub const SUM: u8 = 0;
    pub const WEIGHTED_SUM: u8 = 1;
    pub const MAX: u8 = 2;
}
use case::*;

/// How an instruction set reads rows.
///
/// # Safety
/// All functions need the instruction set and the memory that they read.
pub(super) unsafe trait Rows: Lanes {
    /// As many sums as registers hold, beside what a row needs on its way. Plain sums of fp32 need
    /// nothing: a row is added straight from memory, and sixteen sums fit always.
    const VECTORS_MAX: usize;

    /// Vector number `v` of the elements that begin at `row`. Where elements share bytes, `row` is
    /// the beginning of a group.
    unsafe fn row<const DTYPE: u8>(row: *const u8, v: usize) -> Self::V;
    /// The same, of which only the first `lanes` may be read (where rows are not padded).
    unsafe fn row_part<const DTYPE: u8>(row: *const u8, v: usize, lanes: usize) -> Self::V;

    /// Runs [`bags`] in a function that has the instruction set.
    unsafe fn enter<
        const DTYPE: u8,
        const MODE: u8,
        const AHEAD: u8,
        const N: usize,
        const RAGGED: bool,
    >(
        work: &Work,
    );
}

/// Writes the first lanes of a vector to an element of the output.
///
/// # Safety
/// The lanes lie inside of the output, and the processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn write<L: Lanes>(out: &Target, element: usize, value: L::V, lanes: usize) {
    // SAFETY: as the caller promises.
    unsafe { L::store_first(out.at(element), value, lanes) }
}

/// A quantised row's params, ready to compute with.
struct Widened {
    scale: f32,
    bias: f32,
}

/// Both halves at once, by the processor that has the AVX sets and so F16C.
#[inline(always)]
unsafe fn widened(params: *const Params) -> Widened {
    // SAFETY: four bytes, as the caller promises.
    unsafe {
        let halves = _mm_cvtph_ps(_mm_loadu_si32(params.cast()));
        let bias = _mm_cvtss_f32(_mm_movehdup_ps(halves));
        Widened { scale: _mm_cvtss_f32(halves), bias }
    }
}

/// # Safety
/// As [`pool`](super::kernel::pool) promises of its work; the processor has the instruction set.
pub(super) unsafe fn pool<L: Rows>(work: &Work) {
    // SAFETY: for this and the calls that follow, as the caller promises.
    unsafe {
        match work.dtype {
            Dtype::F32 => by_mode::<L, F32>(work),
            Dtype::F16 => by_mode::<L, F16>(work),
            Dtype::Bf16 => by_mode::<L, BF16>(work),
            Dtype::Int8 => by_rare_mode::<L, INT8>(work),
            Dtype::Int4 => by_rare_mode::<L, INT4>(work),
        }
    }
}

unsafe fn by_mode<L: Rows, const DTYPE: u8>(work: &Work) {
    if work.mode == Mode::Sum {
        // SAFETY: see `pool`.
        return unsafe {
            by_ahead!(work.prefetch, AHEAD => by_width::<L, DTYPE, SUM, AHEAD>(work))
        };
    }
    // SAFETY: see `pool`.
    unsafe { by_rare_mode::<L, DTYPE>(work) }
}

/// Also sums of quantised rows in bags that are too short for integers.
unsafe fn by_rare_mode<L: Rows, const DTYPE: u8>(work: &Work) {
    // SAFETY: see `pool`.
    unsafe {
        match work.mode {
            Mode::Sum => {
                by_ahead!(work.prefetch, AHEAD => by_width::<L, DTYPE, SUM, AHEAD>(work))
            }
            Mode::WeightedSum => {
                by_ahead!(work.prefetch, AHEAD => by_width::<L, DTYPE, WEIGHTED_SUM, AHEAD>(work))
            }
            Mode::Max => {
                by_ahead!(work.prefetch, AHEAD => by_width::<L, DTYPE, MAX, AHEAD>(work))
            }
        }
    }
}

const fn is_quantised(dtype: u8) -> bool {
    dtype == INT8 || dtype == INT4
}

const fn bits(dtype: u8) -> usize {
    match dtype {
        F32 => 32,
        F16 | BF16 => 16,
        INT8 => 8,
        _ => 4,
    }
}

unsafe fn by_width<L: Rows, const DTYPE: u8, const MODE: u8, const AHEAD: u8>(work: &Work) {
    let (vectors, group) = (vectors::<L>(DTYPE, work.dim), group::<L>(DTYPE));
    // The fewest parts, and of those the narrowest.
    let most = if const { DTYPE == F32 && MODE == SUM } { 16 } else { L::VECTORS_MAX };
    let fits = |n: &usize| *n <= vectors.min(most) && n.is_multiple_of(group);
    let part = PARTS.into_iter().filter(fits).min_by_key(|n| (vectors.div_ceil(*n), *n));
    // SAFETY: see `pool`.
    unsafe {
        match part {
            Some(1) => by_end::<L, DTYPE, MODE, AHEAD, 1>(work),
            Some(2) => by_end::<L, DTYPE, MODE, AHEAD, 2>(work),
            Some(4) => by_end::<L, DTYPE, MODE, AHEAD, 4>(work),
            Some(6) => by_end::<L, DTYPE, MODE, AHEAD, 6>(work),
            Some(8) => by_end::<L, DTYPE, MODE, AHEAD, 8>(work),
            Some(16) if const { L::VECTORS_MAX >= 16 || DTYPE == F32 && MODE == SUM } => {
                by_end::<L, DTYPE, MODE, AHEAD, 16>(work);
            }
            _ => {}
        }
    }
}

/// Numbers of vectors that are summed at once: powers of two, and six for widths like 48 and 96.
const PARTS: [usize; 6] = [1, 2, 4, 6, 8, 16];

/// Vectors of a row.
fn vectors<L: Rows>(dtype: u8, dim: usize) -> usize {
    dim.div_ceil(L::LANES).next_multiple_of(group::<L>(dtype))
}

/// Vectors that share their bytes: an int4 row is read in groups of 32 elements, and a part that began
/// within one would have to look which half of a byte it wants.
const fn group<L: Rows>(dtype: u8) -> usize {
    if dtype == INT4 { 32 / L::LANES } else { 1 }
}

/// Quantised rows are padded to whole vectors and lines: they end like any other.
unsafe fn by_end<L: Rows, const DTYPE: u8, const MODE: u8, const AHEAD: u8, const N: usize>(
    work: &Work,
) {
    let bytes = work.dtype.row_bytes(work.dim);
    let is_cut = !work.dim.is_multiple_of(L::LANES);
    let ragged = is_cut || (bytes > 64 && !bytes.is_multiple_of(64));
    // SAFETY: see `pool`.
    unsafe {
        match ragged && !is_quantised(DTYPE) {
            true => L::enter::<DTYPE, MODE, AHEAD, N, true>(work),
            false => L::enter::<DTYPE, MODE, AHEAD, N, false>(work),
        }
    }
}

/// The loop. Rows of more than `N` vectors are summed in parts, bag by bag: the rows of a bag are near
/// by when the next part comes. The last part ends with the row, so that it may sum some vectors again.
/// `RAGGED` rows end within a vector or begin anywhere in a line.
///
/// # Safety
/// As for [`pool`]; and a row has `N` vectors at least.
#[inline(always)]
pub(super) unsafe fn bags<
    L: Rows,
    const DTYPE: u8,
    const MODE: u8,
    const AHEAD: u8,
    const N: usize,
    const RAGGED: bool,
>(
    work: &Work,
) {
    let quantised = is_quantised(DTYPE);
    let vectors = vectors::<L>(DTYPE, work.dim);
    let bytes = const { N * L::LANES * bits(DTYPE) / 8 };
    let mut begin = 0;
    // SAFETY: row, params and weight `i` are those of the bag at hand; the list goes on behind its
    // last row for as long as a prefetch may look.
    unsafe {
        let ahead = Ahead::<AHEAD, RAGGED>::new(work);
        ahead.begin(work);
        for (b, bag) in work.bags.iter().enumerate() {
            let end = begin + bag.rows as usize;
            let mut part = 0;
            while part < vectors {
                let first = part.min(vectors - N);
                let skip = first * L::LANES * bits(DTYPE) / 8;
                let last_lanes = work.dim.saturating_sub((first + N - 1) * L::LANES).min(L::LANES);
                ahead.bag(work, b, first * L::LANES, N * L::LANES);
                let start = if MODE == MAX { f32::NEG_INFINITY } else { 0.0 };
                let mut sum = [L::splat(start); N];
                let mut bias_sum = 0.0f32;
                let mut i = begin;
                while i < end {
                    ahead.row(work.rows.add(i), skip, bytes);
                    let row = (*work.rows.add(i)).add(skip);
                    let weight = if MODE == WEIGHTED_SUM { *work.weights.add(i) } else { 1.0 };
                    let (mut scale, mut bias) = (weight, 0.0);
                    if quantised {
                        let params = widened(work.params.add(i));
                        bias = params.bias;
                        scale *= params.scale;
                        bias_sum = bias.mul_add(weight, bias_sum);
                    }
                    let (scale, bias) = (L::splat(scale), L::splat(bias));
                    for (v, sum) in sum.iter_mut().enumerate() {
                        let x = match RAGGED && v + 1 == N {
                            true => L::row_part::<DTYPE>(row, v, last_lanes),
                            false => L::row::<DTYPE>(row, v),
                        };
                        *sum = match MODE {
                            MAX if quantised => L::max(L::fma(x, scale, bias), *sum),
                            MAX => L::max(x, *sum),
                            SUM if !quantised => L::add(*sum, x),
                            _ => L::fma(x, scale, *sum),
                        };
                    }
                    i += 1;
                }
                for (v, sum) in sum.into_iter().enumerate() {
                    let scale = L::splat(bag.scale);
                    let value = match MODE {
                        MAX if bag.rows == 0 => L::splat(0.0),
                        MAX => sum,
                        _ if quantised => L::mul(L::add(sum, L::splat(bias_sum)), scale),
                        _ => L::mul(sum, scale),
                    };
                    let element = (first + v) * L::LANES;
                    // Quantised rows have whole vectors behind their last element.
                    let lanes = match quantised || RAGGED {
                        true => work.dim.saturating_sub(element).min(L::LANES),
                        false => L::LANES,
                    };
                    if lanes > 0 {
                        write::<L>(work.out, bag.out + element, value, lanes);
                    }
                }
                part += N;
            }
            begin = end;
        }
    }
}
