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
//! one instruction (`vpdpbusd`) then multiplies it by the four rows' digits and adds the products.
//! Without it, words of 16 bits are multiplied (`vpmaddwd`), and the two upper digits are one factor.
//! Where no scale of a bag is below an eighth of the largest, all lowest digits are zero and are left
//! out. None of this changes a bit of the result.

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
    use crate::bag::ahead::{Ahead, by_ahead};
    use crate::bag::avx512::Avx512Vnni;
    use crate::bag::kernel::{Work, pool_floats};
    use crate::bag::pooling::write;
    use crate::bag::quant::Params;
    use crate::bag::resolve::Bag;
    use crate::detect::Isa;
    use crate::simd::{Avx2, Lanes};

    /// What a byte holds, as constants: enums cannot be parameters yet.
    pub(in crate::bag) mod plane {
        /// One element.
        pub const BYTES: u8 = 0;
        /// Two elements of 4 bits.
        pub const HALVES: u8 = 1;
    }
    use plane::*;

    /// Up to so many rows, sums of products with a digit of 14 bits fit 32 bits, and sums with two of
    /// 7 bits are exact in fp32: joined, both give the same number.
    pub(in crate::bag) const WIDE_ROWS_MAX: usize = 512;

    /// An instruction set's vectors of bytes and of 32-bit sums.
    ///
    /// # Safety
    /// All functions need the instruction set; loads need their memory.
    pub(in crate::bag) unsafe trait Quads {
        type L: Lanes;
        type I: Copy;
        /// A digit of a scale.
        type Digit: Copy;
        const ISA: Isa;
        /// Bytes of a vector.
        const BYTES: usize;
        /// The fewest digits that a bag's scales have.
        const DIGITS_MIN: usize;

        unsafe fn zero() -> Self::I;
        /// A vector of a row; `WHOLE`, or its first `bytes` only.
        unsafe fn load_bytes<const WHOLE: bool>(row: *const u8, bytes: usize) -> Self::I;
        /// Words of four bytes, one of each row. In every 16 bytes, the first vector has the first
        /// four, and so on.
        unsafe fn interleave(rows: [Self::I; 4]) -> [Self::I; 4];
        /// Adds to each word of the first sum the products of its four bytes and the four digits; of
        /// [`HALVES`], to both sums.
        unsafe fn add<const PLANE: u8>(
            x: Self::I,
            digits: *const Self::Digit,
            sums: [Self::I; 2],
        ) -> [Self::I; 2];
        /// The sums of the low and of the high halves, from what [`Quads::add`] made.
        unsafe fn halves(sums: [Self::I; 2]) -> [Self::I; 2];
        unsafe fn floats(x: Self::I) -> <Self::L as Lanes>::V;
        /// Undoes the order of [`Quads::interleave`].
        unsafe fn in_order(x: [<Self::L as Lanes>::V; 4]) -> [<Self::L as Lanes>::V; 4];
        /// The largest scale, as bits.
        unsafe fn largest_scale(params: *const Params, rows: usize) -> u16;
        /// Writes the digits of all scales, the highest first, with zeros behind the last row.
        unsafe fn scales(
            params: *const Params,
            rows: usize,
            step: f32,
            to: &mut Digits<Self::Digit>,
        ) -> Scales;

        /// Runs [`bags`] in a function that has the instruction set.
        unsafe fn enter<const PLANE: u8, const AHEAD: u8, const WHOLE: bool>(work: &Work);
    }

    /// The digits of a bag's scales: for each digit one per row, and zeros up to the next 16.
    pub(in crate::bag) type Digits<T> = [[MaybeUninit<T>; ROWS_MAX + 16]; DIGITS];

    /// What is known of a bag's scales.
    pub(in crate::bag) struct Scales {
        pub biases: f64,
        /// How many digits they have.
        pub digits: usize,
        /// Whether the lowest of 7 bits was zero everywhere, and is not among the digits.
        pub is_low_zero: bool,
    }

    /// # Safety
    /// As [`pool`](super::super::kernel::pool) promises of its work; all bags are
    /// [long enough](super::is_long), and the processor has AVX2 at least.
    pub(in crate::bag) unsafe fn pool(work: &Work, isa: Isa) {
        // SAFETY: as the caller promises, of the processor too.
        unsafe {
            match isa {
                Isa::Avx512Vnni => by_type::<Avx512Vnni>(work),
                _ => by_type::<Avx2>(work),
            }
        }
    }

    unsafe fn by_type<Q: Quads>(work: &Work) {
        // SAFETY: see `pool`.
        unsafe {
            match work.dtype {
                Dtype::Int8 => by_prefetch::<Q, BYTES>(work),
                _ => by_prefetch::<Q, HALVES>(work),
            }
        }
    }

    unsafe fn by_prefetch<Q: Quads, const PLANE: u8>(work: &Work) {
        // SAFETY: see `pool`.
        unsafe {
            match work.dtype.row_bytes(work.dim) >= Q::BYTES {
                true => by_ahead!(work.prefetch, A => Q::enter::<PLANE, A, true>(work)),
                false => by_ahead!(work.prefetch, A => Q::enter::<PLANE, A, false>(work)),
            }
        }
    }

    /// The loop over bags.
    ///
    /// # Safety
    /// As for [`pool`]; rows are `WHOLE` if they have a vector at least.
    #[inline(always)]
    pub(in crate::bag) unsafe fn bags<
        Q: Quads,
        const PLANE: u8,
        const AHEAD: u8,
        const WHOLE: bool,
    >(
        work: &Work,
    ) {
        let mut digits: Digits<Q::Digit> = [[MaybeUninit::uninit(); ROWS_MAX + 16]; DIGITS];
        let ahead = Ahead::<AHEAD, false>::new(work);
        let is_wide = work.dtype.row_bytes(work.dim) > Q::BYTES;
        let mut first = 0;
        // SAFETY: rows and params from `first` on are those of the bag at hand.
        unsafe {
            ahead.begin(work);
            for (b, bag) in work.bags.iter().enumerate() {
                ahead.bag(work, b, 0, work.dim);
                let rows = bag.rows as usize;
                let (at, params) = (first, work.params.add(first));
                first += rows;
                let Some(step) = super::step_for(Q::largest_scale(params, rows)) else {
                    pool_floats(&work.bag(bag, at), Q::ISA);
                    continue;
                };
                let scales = Q::scales(params, rows, step, &mut digits);
                let sum = Sum::<AHEAD> { work, bag, first: at, ahead: &ahead, scales, step };
                match (PLANE, sum.scales.digits) {
                    (HALVES, 1) => {
                        if Q::DIGITS_MIN == 1 {
                            sum.parts::<Q, HALVES, WHOLE, 1, 2>(&digits);
                        }
                    }
                    (HALVES, 2) => sum.parts::<Q, HALVES, WHOLE, 2, 2>(&digits),
                    (HALVES, _) => sum.parts::<Q, HALVES, WHOLE, 3, 2>(&digits),
                    (_, 1) if Q::DIGITS_MIN == 1 && is_wide && WHOLE => {
                        sum.parts::<Q, BYTES, WHOLE, 1, 2>(&digits);
                    }
                    (_, 1) => {
                        if Q::DIGITS_MIN == 1 {
                            sum.parts::<Q, BYTES, WHOLE, 1, 1>(&digits);
                        }
                    }
                    // Two vectors of a row at once where there are registers for their sums.
                    (_, 2) if Q::DIGITS_MIN > 1 && is_wide && WHOLE => {
                        sum.parts::<Q, BYTES, WHOLE, 2, 2>(&digits);
                    }
                    (_, 2) => sum.parts::<Q, BYTES, WHOLE, 2, 1>(&digits),
                    (_, _) if Q::DIGITS_MIN > 1 && is_wide && WHOLE => {
                        sum.parts::<Q, BYTES, WHOLE, 3, 2>(&digits);
                    }
                    (_, _) => sum.parts::<Q, BYTES, WHOLE, 3, 1>(&digits),
                }
            }
        }
    }

    /// The sum of one bag.
    struct Sum<'a, const AHEAD: u8> {
        work: &'a Work<'a>,
        bag: &'a Bag,
        /// The place of its first row in the work's list.
        first: usize,
        ahead: &'a Ahead<AHEAD, false>,
        scales: Scales,
        step: f32,
    }

    impl<const AHEAD: u8> Sum<'_, AHEAD> {
        /// Sums all rows part by part, with `D` digits and `SETS` of four vectors of sums for each. The
        /// last part ends with the row, so that it may sum some bytes again.
        ///
        /// # Safety
        /// As for [`bags`]; the digits are those of the bag's scales, and a part fits a row.
        #[inline(always)]
        unsafe fn parts<
            Q: Quads,
            const PLANE: u8,
            const WHOLE: bool,
            const D: usize,
            const SETS: usize,
        >(
            &self,
            digits: &Digits<Q::Digit>,
        ) {
            let Self { work, bag, first, ahead, .. } = self;
            let chunks = if PLANE == HALVES { 1 } else { SETS };
            let bytes = chunks * Q::BYTES;
            let row_bytes = work.dtype.row_bytes(work.dim);
            // Behind these a row is padded.
            let used = if PLANE == HALVES { work.dim.div_ceil(32) * 16 } else { work.dim };
            let (rows, full) = (bag.rows as usize, bag.rows as usize / 4);
            // SAFETY: the list goes on behind the bag's last row for as long as a prefetch may look;
            // digits behind that row are zero, and what they are multiplied by is a row of the bag.
            unsafe {
                let list = work.rows.add(*first);
                let mut last = [*list.add(rows - 1); 4];
                for (r, last) in last.iter_mut().enumerate().take(rows % 4) {
                    *last = *list.add(full * 4 + r);
                }
                let mut part = 0;
                while part < used {
                    let skip = part.min(row_bytes.saturating_sub(bytes));
                    let mut sums = [[[Q::zero(); 4]; D]; SETS];
                    for group in 0..rows.div_ceil(4) {
                        let next = list.add(group * 4);
                        for r in 0..4 {
                            ahead.row(next.add(r), skip, bytes);
                        }
                        let four = select_unpredictable(group < full, next, last.as_ptr());
                        for c in 0..chunks {
                            let at = skip + c * Q::BYTES;
                            let x = Q::interleave([
                                Q::load_bytes::<WHOLE>((*four).add(at), row_bytes),
                                Q::load_bytes::<WHOLE>((*four.add(1)).add(at), row_bytes),
                                Q::load_bytes::<WHOLE>((*four.add(2)).add(at), row_bytes),
                                Q::load_bytes::<WHOLE>((*four.add(3)).add(at), row_bytes),
                            ]);
                            for k in 0..4 {
                                for d in 0..D {
                                    let digits = digits[d].as_ptr().add(group * 4).cast();
                                    // The second is used with halves only.
                                    let other = if PLANE == HALVES { 1 } else { c };
                                    let own = [sums[c][d][k], sums[other][d][k]];
                                    let own = Q::add::<PLANE>(x[k], digits, own);
                                    sums[c][d][k] = own[0];
                                    if PLANE == HALVES {
                                        sums[other][d][k] = own[1];
                                    }
                                }
                            }
                        }
                    }
                    if PLANE == HALVES {
                        #[expect(
                            clippy::needless_range_loop,
                            reason = "with iterators the compiler keeps the sums in memory"
                        )]
                        for d in 0..D {
                            for k in 0..4 {
                                let own = Q::halves([sums[0][d][k], sums[SETS - 1][d][k]]);
                                [sums[0][d][k], sums[SETS - 1][d][k]] = own;
                            }
                        }
                    }
                    for (set, sums) in sums.iter().enumerate() {
                        self.write::<Q, PLANE, D>(sums, skip, set);
                    }
                    part += bytes;
                }
            }
        }

        /// Joins the sums of all digits: those of vector `set` from byte `skip` of a row on, or those
        /// of the low or the high halves.
        ///
        /// # Safety
        /// The bag's elements lie inside of the output.
        #[inline(always)]
        unsafe fn write<Q: Quads, const PLANE: u8, const D: usize>(
            &self,
            sums: &[[Q::I; 4]; D],
            skip: usize,
            set: usize,
        ) {
            let unit = self.step * if self.scales.is_low_zero { BASE } else { 1.0 };
            // SAFETY: only elements of the bag are written.
            unsafe {
                let base = Q::L::splat(BASE);
                let mut values = [base; 4];
                for (k, value) in values.iter_mut().enumerate() {
                    let mut sum = Q::floats(sums[0][k]);
                    for digit in &sums[1..] {
                        sum = Q::L::fma(sum, base, Q::floats(digit[k]));
                    }
                    let sum = Q::L::mul(sum, Q::L::splat(unit));
                    let sum = Q::L::add(sum, Q::L::splat(self.scales.biases as f32));
                    *value = Q::L::mul(sum, Q::L::splat(self.bag.scale));
                }
                for (v, value) in Q::in_order(values).into_iter().enumerate() {
                    let element = match PLANE {
                        BYTES => skip + set * Q::BYTES + v * Q::L::LANES,
                        _ => {
                            let byte = skip + v * Q::L::LANES;
                            byte / 16 * 32 + byte % 16 + set * 16
                        }
                    };
                    let lanes = self.work.dim.saturating_sub(element).min(Q::L::LANES);
                    if lanes > 0 {
                        write::<Q::L>(self.work.out, self.bag.out + element, value, lanes);
                    }
                }
            }
        }
    }
}
