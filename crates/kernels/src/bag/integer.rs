//! Sums of int8 and int4 rows in integers, four rows at a time.
//!
//! A row adds `scale · q + bias`, element by element. The scales of a bag become integers: multiples
//! of a step, the power of two with which the largest of them takes 21 bits. A half float has 11, so
//! a scale down to 2⁻¹⁰ of the bag's largest is exact, and a smaller one is off by half a step. An
//! integer scale is three digits of 7 bits, and the sum of digit · q over a bag is an exact integer
//! for each digit: it does not depend on the order of rows nor on the instruction set. Biases are
//! summed in fp64, which is exact too. All are joined and rounded to fp32 once per bag.
//!
//! The bytes of four rows are interleaved, so that each 32-bit word holds one element of four rows:
//! one instruction (`vpdpbusd`, or three without it) then multiplies it by the four rows' digits and
//! adds the products.

use half::f16;

use super::quant::Params;
use super::resolve::Bag;

pub(super) const DIGITS: usize = 3;
const DIGIT_BITS: u32 = 7;
/// What a digit counts in units of the one before it.
const BASE: f32 = (1 << DIGIT_BITS) as f32;

/// With fewer rows, preparing the scales costs more than it saves.
const ROWS_MIN: u32 = 4;
/// With more, sums of half floats might not be exact in fp64 (40 bits each), and sums of products
/// (15 bits each) not fit 32 bits.
const ROWS_MAX: usize = 1 << 13;

/// Whether a bag of quantised rows is summed in integers.
pub(super) fn is_long(bag: &Bag) -> bool {
    (ROWS_MIN..=ROWS_MAX as u32).contains(&bag.rows)
}

/// The unit of a bag's integer scales; `None` where a scale is below zero, infinite or NaN: such a
/// bag is summed in fp32.
pub(super) fn step(params: &[Params]) -> Option<f32> {
    // The bits of half floats are in order up to infinity; behind it are NaN and all below zero.
    step_for(params.iter().map(|params| params.scale.to_bits()).max()?)
}

#[inline(always)]
fn step_for(largest: u16) -> Option<f32> {
    const TOP_BIT: u32 = DIGITS as u32 * DIGIT_BITS - 1;
    // Of zero as of the least number: scales that are all zero have all digits zero.
    let exponent = (f16::from_bits(largest.max(1)).to_f32().to_bits() >> 23).wrapping_sub(TOP_BIT);
    (largest < f16::INFINITY.to_bits()).then(|| f32::from_bits(exponent << 23))
}

/// The digits of a scale, the lowest first.
pub(super) fn digits(scale: f16, step: f32) -> [u8; DIGITS] {
    let integer = (scale.to_f32() / step).round_ties_even() as u32;
    [0, 1, 2].map(|digit| (integer >> (DIGIT_BITS * digit)) as u8 & 127)
}

/// The sums of all digits as one number, in units of the step.
pub(super) fn joined([low, middle, high]: [i32; DIGITS]) -> f32 {
    (high as f32).mul_add(BASE, middle as f32).mul_add(BASE, low as f32)
}

#[cfg(target_arch = "x86_64")]
pub(super) use vectors::pool;

#[cfg(target_arch = "x86_64")]
pub(super) mod vectors {
    use std::hint::select_unpredictable;
    use std::mem::MaybeUninit;

    use super::{BASE, DIGITS, ROWS_MAX};
    use crate::bag::Dtype;
    use crate::bag::ahead::{Ahead, by_ahead, claim};
    use crate::bag::avx2::Avx2;
    use crate::bag::avx512::{Avx512, Avx512Vnni};
    use crate::bag::kernel::{Work, pool_floats};
    use crate::bag::pooling::Lanes;
    use crate::bag::quant::Params;
    use crate::detect::Isa;

    /// Which elements a byte holds, as constants: enums cannot be parameters yet.
    pub(in crate::bag) mod plane {
        /// One, of 8 bits.
        pub const BYTES: u8 = 0;
        /// Two of 4 bits, of which the low or the high one is summed.
        pub const LOW: u8 = 1;
        pub const HIGH: u8 = 2;
        /// Two, which are both summed: the byte as it is, and with its low half cleared.
        pub const BOTH: u8 = 3;
    }
    use plane::*;

    /// An instruction set's vectors of bytes and of 32-bit sums.
    ///
    /// # Safety
    /// All functions need the instruction set; loads need their memory.
    pub(in crate::bag) unsafe trait Quads {
        type L: Lanes;
        type I: Copy;
        const ISA: Isa;
        /// Bytes of a vector.
        const BYTES: usize;
        /// Vectors of a row that are summed at once: as many as registers have sums for.
        const CHUNKS_MAX: usize;
        /// Whether [`BOTH`] halves of a byte are summed at once.
        const BOTH_AT_ONCE: bool;
        /// What bytes are off by after [`Quads::plane`].
        const OFFSET: i32;

        unsafe fn zero() -> Self::I;
        /// A vector of a row; `WHOLE`, or its first `bytes` only.
        unsafe fn load_bytes<const WHOLE: bool>(row: *const u8, bytes: usize) -> Self::I;
        /// Words of four bytes, one of each row. In every 16 bytes, the first vector has the first
        /// four, and so on.
        unsafe fn interleave(rows: [Self::I; 4]) -> [Self::I; 4];
        /// The factors that interleaved bytes hold.
        unsafe fn plane<const PLANE: u8>(x: Self::I) -> Self::I;
        /// Adds to each word the products of its four bytes and the four digits.
        unsafe fn dot(sum: Self::I, x: Self::I, digits: *const u8) -> Self::I;
        unsafe fn add(a: Self::I, b: i32) -> Self::I;
        /// Sums of the low and of the high halves, from those of bytes and of their high halves.
        unsafe fn halves(both: Self::I, high: Self::I) -> [Self::I; 2];
        unsafe fn floats(x: Self::I) -> <Self::L as Lanes>::V;
        /// Undoes the order of [`Quads::interleave`].
        unsafe fn in_order(x: [<Self::L as Lanes>::V; 4]) -> [<Self::L as Lanes>::V; 4];
        /// The largest scale, as bits.
        unsafe fn largest_scale(params: *const Params, rows: usize) -> u16;
        /// Writes the digits of all scales, with zeros behind the last.
        unsafe fn scales(params: *const Params, rows: usize, step: f32, to: &mut Digits) -> Sums;

        /// Runs [`bags`] in a function that has the instruction set.
        unsafe fn enter<const PLANE: u8, const AHEAD: u8, const SETS: usize, const WHOLE: bool>(
            work: &Work,
            skip: usize,
        );
    }

    /// The digits of a bag's scales: for each digit one per row, and zeros up to the next 16.
    pub(in crate::bag) type Digits = [[MaybeUninit<u8>; ROWS_MAX + 16]; DIGITS];

    /// What else is known of a bag's params.
    pub(in crate::bag) struct Sums {
        pub biases: f64,
        /// For each digit; where bytes have an offset.
        pub digits: [i32; DIGITS],
    }

    /// # Safety
    /// As [`pool`](super::super::kernel::pool) promises of its work; all bags are
    /// [long enough](super::is_long), and the processor has AVX2 at least.
    pub(in crate::bag) unsafe fn pool(work: &Work, isa: Isa) {
        // SAFETY: as the caller promises, of the processor too.
        unsafe {
            match isa {
                Isa::Avx512Vnni => by_type::<Avx512Vnni>(work),
                Isa::Avx512 => by_type::<Avx512>(work),
                _ => by_type::<Avx2>(work),
            }
        }
    }

    unsafe fn by_type<Q: Quads>(work: &Work) {
        let bytes = work.dtype.row_bytes(work.dim);
        let both = work.dtype == Dtype::Int4;
        // Behind these a row is padded.
        let used = if both { work.dim.div_ceil(32) * 16 } else { work.dim };
        let at_once = Q::BYTES * if both { 1 } else { Q::CHUNKS_MAX };
        // SAFETY: see `pool`.
        unsafe {
            if bytes <= at_once && (!both || Q::BOTH_AT_ONCE) {
                return part::<Q>(work, 0);
            }
            // Bag by bag: its rows are near by when the next part comes.
            let mut row = 0;
            for bag in work.bags {
                let one = work.bag(bag, row);
                (0..used).step_by(at_once).for_each(|skip| part::<Q>(&one, skip));
                row += bag.rows as usize;
            }
        }
    }

    /// The part of all rows from byte `skip` on that is summed at once.
    unsafe fn part<Q: Quads>(work: &Work, skip: usize) {
        let bytes = work.dtype.row_bytes(work.dim) - skip;
        // SAFETY: see `pool`.
        unsafe {
            match work.dtype {
                Dtype::Int8 if Q::CHUNKS_MAX > 1 && bytes > Q::BYTES => {
                    run::<Q, BYTES, 2>(work, skip)
                }
                Dtype::Int8 => run::<Q, BYTES, 1>(work, skip),
                _ if Q::BOTH_AT_ONCE => run::<Q, BOTH, 2>(work, skip),
                _ => {
                    run::<Q, LOW, 1>(work, skip);
                    run::<Q, HIGH, 1>(work, skip);
                }
            }
        }
    }

    unsafe fn run<Q: Quads, const PLANE: u8, const SETS: usize>(work: &Work, skip: usize) {
        let whole = work.dtype.row_bytes(work.dim) - skip >= Q::BYTES;
        // SAFETY: see `pool`.
        unsafe {
            match whole {
                true => by_ahead!(work.prefetch, A => Q::enter::<PLANE, A, SETS, true>(work, skip)),
                false => {
                    by_ahead!(few work.prefetch, A => Q::enter::<PLANE, A, SETS, false>(work, skip))
                }
            }
        }
    }

    /// The loop: `SETS` of four vectors of sums for each digit.
    ///
    /// # Safety
    /// As for [`pool`]; and the part is one of the row.
    #[inline(always)]
    pub(in crate::bag) unsafe fn bags<
        Q: Quads,
        const PLANE: u8,
        const AHEAD: u8,
        const SETS: usize,
        const WHOLE: bool,
    >(
        work: &Work,
        skip: usize,
    ) {
        let chunks = if PLANE == BOTH { SETS / 2 } else { SETS };
        let lines = (chunks * Q::BYTES).div_ceil(64);
        let row_bytes = work.dtype.row_bytes(work.dim) - skip;
        let first = if PLANE == BYTES { skip } else { skip * 2 };
        let elements =
            (work.dim - first).min(chunks * Q::BYTES * if PLANE == BYTES { 1 } else { 2 });
        let mut digits: Digits = [[MaybeUninit::uninit(); ROWS_MAX + 16]; DIGITS];
        let mut i = 0;
        // SAFETY: rows and params from `i` on are those of the bag at hand; the list goes on behind
        // its last row for as long as a prefetch may look; digits behind a bag's last row are zero,
        // and what they are multiplied by is a row of the bag.
        unsafe {
            let ahead = Ahead::<AHEAD, false>::new(work, skip, chunks * Q::BYTES);
            ahead.begin(work, lines);
            for (b, bag) in work.bags.iter().enumerate() {
                claim(work, b, first, elements);
                let rows = bag.rows as usize;
                let params = work.params.add(i);
                let Some(step) = super::step_for(Q::largest_scale(params, rows)) else {
                    pool_floats(&work.bag(bag, i), Q::ISA);
                    i += rows;
                    continue;
                };
                let known = Q::scales(params, rows, step, &mut digits);
                let full = rows / 4;
                let mut last = [*work.rows.add(i + rows - 1); 4];
                for (r, last) in last.iter_mut().enumerate().take(rows % 4) {
                    *last = *work.rows.add(i + full * 4 + r);
                }
                let mut sums = [[[Q::zero(); 4]; DIGITS]; SETS];
                for group in 0..rows.div_ceil(4) {
                    let list = work.rows.add(i + group * 4);
                    for r in 0..4 {
                        ahead.row(list.add(r), lines);
                    }
                    let four = select_unpredictable(group < full, list, last.as_ptr());
                    for c in 0..chunks {
                        let load = |r: usize| (*four.add(r)).add(skip + c * Q::BYTES);
                        let x = Q::interleave([
                            Q::load_bytes::<WHOLE>(load(0), row_bytes),
                            Q::load_bytes::<WHOLE>(load(1), row_bytes),
                            Q::load_bytes::<WHOLE>(load(2), row_bytes),
                            Q::load_bytes::<WHOLE>(load(3), row_bytes),
                        ]);
                        for k in 0..4 {
                            let plane = Q::plane::<PLANE>(x[k]);
                            for d in 0..DIGITS {
                                let digits = digits[d].as_ptr().add(group * 4).cast();
                                if PLANE == BOTH {
                                    let sum = &mut sums[2 * c][d][k];
                                    *sum = Q::dot(*sum, x[k], digits);
                                    let sum = &mut sums[2 * c + 1][d][k];
                                    *sum = Q::dot(*sum, plane, digits);
                                } else {
                                    sums[c][d][k] = Q::dot(sums[c][d][k], plane, digits);
                                }
                            }
                        }
                    }
                }
                i += rows;
                let finish = Finish { step, bias: known.biases as f32, scale: bag.scale };
                for c in 0..chunks {
                    let out = |set: &[[Q::I; 4]; DIGITS], plane: u8| {
                        finish.write::<Q>(work, set, bag.out, skip + c * Q::BYTES, plane);
                    };
                    if PLANE == BOTH {
                        let [low, high] = split::<Q>(&sums[2 * c], &sums[2 * c + 1]);
                        out(&low, LOW);
                        out(&high, HIGH);
                    } else {
                        if PLANE == BYTES && Q::OFFSET != 0 {
                            for (sums, digits) in sums[c].iter_mut().zip(known.digits) {
                                *sums = sums.map(|sum| Q::add(sum, Q::OFFSET * digits));
                            }
                        }
                        out(&sums[c], PLANE);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn split<Q: Quads>(
        both: &[[Q::I; 4]; DIGITS],
        high: &[[Q::I; 4]; DIGITS],
    ) -> [[[Q::I; 4]; DIGITS]; 2] {
        let (mut low, mut upper) = (*both, *high);
        for d in 0..DIGITS {
            for k in 0..4 {
                // SAFETY: the processor has the instruction set.
                [low[d][k], upper[d][k]] = unsafe { Q::halves(both[d][k], high[d][k]) };
            }
        }
        [low, upper]
    }

    /// What makes a bag's integers its result.
    struct Finish {
        step: f32,
        bias: f32,
        scale: f32,
    }

    impl Finish {
        /// Joins the digits' sums of the bytes from `byte` of a row on.
        ///
        /// # Safety
        /// The bag's elements from `out` on lie inside of the output.
        #[inline(always)]
        unsafe fn write<Q: Quads>(
            &self,
            work: &Work,
            sums: &[[Q::I; 4]; DIGITS],
            out: usize,
            byte: usize,
            plane: u8,
        ) {
            let [low, middle, high] = sums;
            // SAFETY: only elements of the bag are written.
            unsafe {
                let base = Q::L::splat(BASE);
                let mut values = [base; 4];
                for (k, value) in values.iter_mut().enumerate() {
                    let sum = Q::L::fma(Q::floats(high[k]), base, Q::floats(middle[k]));
                    let sum = Q::L::fma(sum, base, Q::floats(low[k]));
                    let sum = Q::L::mul(sum, Q::L::splat(self.step));
                    let sum = Q::L::add(sum, Q::L::splat(self.bias));
                    *value = Q::L::mul(sum, Q::L::splat(self.scale));
                }
                for (v, value) in Q::in_order(values).into_iter().enumerate() {
                    let byte = byte + v * Q::L::LANES;
                    let element = match plane {
                        BYTES => byte,
                        LOW => byte / 16 * 32 + byte % 16,
                        _ => byte / 16 * 32 + byte % 16 + 16,
                    };
                    let lanes = work.dim.saturating_sub(element).min(Q::L::LANES);
                    if lanes > 0 {
                        Q::L::store(work.out.at(out + element), value, lanes);
                    }
                }
            }
        }
    }
}
