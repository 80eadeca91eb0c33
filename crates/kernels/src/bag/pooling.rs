//! The pooling loop, once for all instruction sets, element types, widths and prefetch schemes.
//!
//! What differs is known when the program is compiled: each combination becomes a loop of its own,
//! with the sum of a bag in registers from its first row to its last.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::Dtype;
use super::kernel::{Mode, Work};
use super::prefetch::{FAR_NEAR, OUTPUT_BAGS, Prefetch};
use super::quant::Params;

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

    pub const OFF: u8 = 0;
    pub const NEAR: u8 = 1;
    pub const FAR: u8 = 2;
}
use case::*;

/// An instruction set's vectors of fp32.
///
/// # Safety
/// All functions need the instruction set; loads and stores need their memory.
pub(super) unsafe trait Lanes {
    type V: Copy;
    const LANES: usize;
    /// As many sums as registers hold, beside what a row needs on its way.
    const VECTORS_MAX: usize;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// a · b + c, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; `b` where one is no number.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Vector number `v` of a row, from element `v · LANES` on.
    unsafe fn load<const DTYPE: u8>(row: *const u8, v: usize) -> Self::V;
    /// The same, of which only the first `lanes` may be read (where rows are not padded).
    unsafe fn load_part<const DTYPE: u8>(row: *const u8, v: usize, lanes: usize) -> Self::V;
    unsafe fn store_f32(out: *mut f32, x: Self::V, lanes: usize);
    unsafe fn store_bf16(out: *mut u16, x: Self::V, lanes: usize);

    /// Runs [`bags`] in a function that has the instruction set.
    unsafe fn enter<const DTYPE: u8, const MODE: u8, const AHEAD: u8, const N: usize>(
        work: &Work,
        part: Part,
    );
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

/// Some of a row's vectors.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// The first of them.
    first: usize,
    /// Lanes of the last that belong to the row.
    last_lanes: usize,
}

/// # Safety
/// As [`pool`](super::kernel::pool) promises of its work; the processor has the instruction set.
pub(super) unsafe fn pool<L: Lanes>(work: &Work) {
    // SAFETY: for this and the calls that follow, as the caller promises.
    unsafe {
        match work.dtype {
            Dtype::F32 => by_mode::<L, F32>(work),
            Dtype::F16 => by_mode::<L, F16>(work),
            Dtype::Bf16 => by_mode::<L, BF16>(work),
            Dtype::Int8 => by_mode::<L, INT8>(work),
            Dtype::Int4 => by_mode::<L, INT4>(work),
        }
    }
}

unsafe fn by_mode<L: Lanes, const DTYPE: u8>(work: &Work) {
    // SAFETY: see `pool`.
    unsafe {
        match work.mode {
            Mode::Sum => by_prefetch::<L, DTYPE, SUM>(work),
            Mode::WeightedSum => by_prefetch::<L, DTYPE, WEIGHTED_SUM>(work),
            Mode::Max => by_prefetch::<L, DTYPE, MAX>(work),
        }
    }
}

unsafe fn by_prefetch<L: Lanes, const DTYPE: u8, const MODE: u8>(work: &Work) {
    // SAFETY: see `pool`.
    unsafe {
        match work.prefetch {
            Prefetch::Off => by_width::<L, DTYPE, MODE, OFF>(work),
            Prefetch::Near { .. } => by_width::<L, DTYPE, MODE, NEAR>(work),
            Prefetch::Far { .. } => by_width::<L, DTYPE, MODE, FAR>(work),
        }
    }
}

unsafe fn by_width<L: Lanes, const DTYPE: u8, const MODE: u8, const AHEAD: u8>(work: &Work) {
    let vectors = work.dim.div_ceil(L::LANES);
    // SAFETY: see `pool`.
    unsafe {
        if vectors.is_power_of_two() && vectors <= L::VECTORS_MAX {
            return some::<L, DTYPE, MODE, AHEAD>(work, 0, vectors);
        }
        // Rows too wide for the registers, or of an odd width, are walked in parts, bag by bag: the
        // rows of a bag are near by when the next part comes.
        let mut row = 0;
        for bag in work.bags {
            let one = Work {
                bags: std::slice::from_ref(bag),
                rows: work.rows.add(row),
                params: work.params.wrapping_add(row),
                weights: work.weights.wrapping_add(row),
                ..*work
            };
            let mut first = 0;
            while first < vectors {
                let count = (1 << (vectors - first).ilog2()).min(L::VECTORS_MAX);
                some::<L, DTYPE, MODE, AHEAD>(&one, first, count);
                first += count;
            }
            row += bag.rows as usize;
        }
    }
}

/// `count` is a power of two.
unsafe fn some<L: Lanes, const DTYPE: u8, const MODE: u8, const AHEAD: u8>(
    work: &Work,
    first: usize,
    count: usize,
) {
    let last_lanes = (work.dim - (first + count - 1) * L::LANES).min(L::LANES);
    let part = Part { first, last_lanes };
    // SAFETY: see `pool`.
    unsafe {
        match count {
            1 => L::enter::<DTYPE, MODE, AHEAD, 1>(work, part),
            2 => L::enter::<DTYPE, MODE, AHEAD, 2>(work, part),
            4 => L::enter::<DTYPE, MODE, AHEAD, 4>(work, part),
            8 => L::enter::<DTYPE, MODE, AHEAD, 8>(work, part),
            _ => L::enter::<DTYPE, MODE, AHEAD, 16>(work, part),
        }
    }
}

/// The loop.
///
/// # Safety
/// As for [`pool`]; and the part is one of the row.
#[inline(always)]
pub(super) unsafe fn bags<
    L: Lanes,
    const DTYPE: u8,
    const MODE: u8,
    const AHEAD: u8,
    const N: usize,
>(
    work: &Work,
    part: Part,
) {
    let quantised = DTYPE == INT8 || DTYPE == INT4;
    let whole = part.last_lanes == L::LANES;
    let mut i = 0;
    // SAFETY: row, params and weight `i` are those of the bag at hand; the list goes on behind its
    // last row for as long as a prefetch may look.
    unsafe {
        let ahead = Ahead::<L, DTYPE, AHEAD, N>::new(work, part);
        // What would have been fetched before the first row, had there been rows before it.
        for i in 0..ahead.distance.min(work.bags.iter().map(|bag| bag.rows as usize).sum()) {
            ahead.whole_row(*work.rows.add(i));
        }
        for (b, bag) in work.bags.iter().enumerate() {
            if AHEAD != OFF
                && let Some(next) = work.bags.get(b + OUTPUT_BAGS)
            {
                let out = work.out.at(next.out + part.first * L::LANES);
                for line in 0..(N * L::LANES * 4).div_ceil(64) {
                    _mm_prefetch::<_MM_HINT_ET0>(out.wrapping_add(line * 64).cast());
                }
            }
            let start = if MODE == MAX { f32::NEG_INFINITY } else { 0.0 };
            let mut sum = [L::splat(start); N];
            let mut bias_sum = 0.0f32;
            let end = i + bag.rows as usize;
            while i < end {
                ahead.of(work.rows.add(i));
                let row = *work.rows.add(i);
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
                    let x = match v + 1 < N || whole {
                        true => L::load::<DTYPE>(row, part.first + v),
                        false => L::load_part::<DTYPE>(row, part.first + v, part.last_lanes),
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
                let value = match MODE {
                    MAX if bag.rows == 0 => L::splat(0.0),
                    MAX => sum,
                    _ if quantised => L::mul(L::add(sum, L::splat(bias_sum)), L::splat(bag.scale)),
                    _ => L::mul(sum, L::splat(bag.scale)),
                };
                let lanes = if v + 1 < N { L::LANES } else { part.last_lanes };
                let out = work.out.at(bag.out + (part.first + v) * L::LANES);
                match work.out.is_bf16 {
                    true => L::store_bf16(out.cast(), value, lanes),
                    false => L::store_f32(out.cast(), value, lanes),
                }
            }
        }
    }
}

/// The prefetch scheme, as the loop over one part of the rows needs it.
struct Ahead<L, const DTYPE: u8, const AHEAD: u8, const N: usize> {
    distance: usize,
    /// Of those that a part has; all where it is fetched far ahead.
    lines: usize,
    /// Where the part begins in its row.
    skip: usize,
    /// Where the part's last byte is, if the row may begin anywhere in a line.
    last: Option<usize>,
    lanes: PhantomData<L>,
}

impl<L: Lanes, const DTYPE: u8, const AHEAD: u8, const N: usize> Ahead<L, DTYPE, AHEAD, N> {
    const BITS: usize = match DTYPE {
        F32 => 32,
        F16 | BF16 => 16,
        INT8 => 8,
        _ => 4,
    };
    const LINES: usize = (N * L::LANES * Self::BITS / 8).div_ceil(64);

    #[inline(always)]
    fn new(work: &Work, part: Part) -> Self {
        let skip = part.first * L::LANES * Self::BITS / 8;
        let bytes = work.dtype.row_bytes(work.dim);
        let end = (skip + Self::LINES * 64).min(bytes);
        let last = (!bytes.is_multiple_of(64) && bytes > 64).then_some(end - 1);
        let lines = match work.prefetch {
            Prefetch::Near { lines, .. } => lines,
            _ => Self::LINES,
        };
        Self { distance: work.prefetch.distance(), lines, skip, last, lanes: PhantomData }
    }

    /// What to fetch when the row at the head of the list is about to be pooled.
    ///
    /// # Safety
    /// The list goes on for the distance.
    #[inline(always)]
    unsafe fn of(&self, rows: *const *const u8) {
        // SAFETY: as the caller promises.
        unsafe {
            if AHEAD != OFF {
                self.whole_row(*rows.add(self.distance));
            }
            if AHEAD == FAR {
                let near = (*rows.add(FAR_NEAR)).wrapping_add(self.skip);
                _mm_prefetch::<_MM_HINT_T0>(near.cast());
            }
        }
    }

    #[inline(always)]
    fn whole_row(&self, row: *const u8) {
        for line in 0..Self::LINES {
            if AHEAD == FAR || line < self.lines {
                fetch::<AHEAD>(row.wrapping_add(self.skip + line * 64));
            }
        }
        if let Some(last) = self.last {
            fetch::<AHEAD>(row.wrapping_add(last));
        }
    }
}

#[inline(always)]
fn fetch<const AHEAD: u8>(line: *const u8) {
    // SAFETY: a prefetch reads nothing that the program could see, and never faults.
    unsafe {
        match AHEAD {
            FAR => _mm_prefetch::<_MM_HINT_T1>(line.cast()),
            _ => _mm_prefetch::<_MM_HINT_T0>(line.cast()),
        }
    }
}
