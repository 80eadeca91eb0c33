//! Vectors of 8.

use std::arch::x86_64::*;

use super::integer::vectors::plane::*;
use super::integer::vectors::{self, Digits, Quads, Scales, WIDE_ROWS_MAX};
use super::kernel::Work;
use super::pooling::{self, Rows, case::*};
use super::quant::Params;
use crate::detect::Isa;
use crate::simd::Avx2;

/// # Safety
/// As [`pool`](super::kernel::pool) promises of its work; the processor has AVX2, FMA and F16C.
pub(super) unsafe fn pool(work: &Work) {
    // SAFETY: as the caller promises.
    unsafe { pooling::pool::<Avx2>(work) }
}

// SAFETY: nothing is read or written but what the trait says.
unsafe impl Rows for Avx2 {
    const VECTORS_MAX: usize = 8;

    #[inline(always)]
    unsafe fn row<const DTYPE: u8>(row: *const u8, v: usize) -> __m256 {
        // SAFETY: the whole vector belongs to the row, as the caller promises.
        unsafe {
            match DTYPE {
                F32 => _mm256_loadu_ps(row.add(v * 32).cast()),
                F16 => _mm256_cvtph_ps(_mm_loadu_si128(row.add(v * 16).cast())),
                BF16 => from_bf16(_mm_loadu_si128(row.add(v * 16).cast())),
                INT8 => _mm256_cvtepi32_ps(from_bytes(row.add(v * 8))),
                _ => {
                    // Four vectors share 16 bytes: the first two in the low halves.
                    let bytes = from_bytes(row.add(v / 4 * 16 + v % 2 * 8));
                    _mm256_cvtepi32_ps(match v % 4 {
                        0 | 1 => _mm256_and_si256(bytes, _mm256_set1_epi32(15)),
                        _ => _mm256_srli_epi32::<4>(bytes),
                    })
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn row_part<const DTYPE: u8>(row: *const u8, v: usize, lanes: usize) -> __m256 {
        // SAFETY: `lanes` elements belong to the row, and no others are read; quantised rows are
        // padded to whole vectors.
        unsafe {
            match DTYPE {
                INT8 | INT4 => Self::row::<DTYPE>(row, v),
                F32 => _mm256_maskload_ps(row.add(v * 32).cast(), Self::mask(lanes)),
                _ => {
                    let mut halves = [0u16; 8];
                    let own = row.add(v * 16).cast();
                    std::ptr::copy_nonoverlapping(own, halves.as_mut_ptr(), lanes);
                    Self::row::<DTYPE>(halves.as_ptr().cast(), 0)
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn enter<
        const DTYPE: u8,
        const MODE: u8,
        const AHEAD: u8,
        const N: usize,
        const RAGGED: bool,
    >(
        work: &Work,
    ) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn inside<
            const DTYPE: u8,
            const MODE: u8,
            const AHEAD: u8,
            const N: usize,
            const RAGGED: bool,
        >(
            work: &Work,
        ) {
            // SAFETY: as the caller promises.
            unsafe { pooling::bags::<Avx2, DTYPE, MODE, AHEAD, N, RAGGED>(work) }
        }
        // SAFETY: as the caller promises.
        unsafe { inside::<DTYPE, MODE, AHEAD, N, RAGGED>(work) }
    }
}

#[inline(always)]
unsafe fn from_bytes(bytes: *const u8) -> __m256i {
    // SAFETY: eight bytes of the row.
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.cast())) }
}

#[inline(always)]
unsafe fn from_bf16(halves: __m128i) -> __m256 {
    // SAFETY: the trait's callers have the instruction set.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))) }
}

// SAFETY: nothing is read or written but what the trait says.
unsafe impl Quads for Avx2 {
    type L = Self;
    type I = __m256i;
    /// Scales of 14 bits by one multiplication: sums of fewer than 512 products fit 32 bits.
    type Digit = u16;
    const ISA: Isa = Isa::Avx2;
    const BYTES: usize = 32;
    const DIGITS_MIN: usize = 1;

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        // SAFETY: the trait's callers have the instruction set.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load_bytes<const WHOLE: bool>(row: *const u8, _: usize) -> __m256i {
        // SAFETY: a quantised row has 16 bytes, or 32 and more.
        unsafe {
            match WHOLE {
                true => _mm256_loadu_si256(row.cast()),
                false => _mm256_zextsi128_si256(_mm_loadu_si128(row.cast())),
            }
        }
    }

    /// Rows 0 and 1 in the even bytes of a word, rows 2 and 3 in the odd ones.
    #[inline(always)]
    unsafe fn interleave([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
        // SAFETY: as in `zero`.
        unsafe {
            let (ac, bd) = (_mm256_unpacklo_epi8(a, c), _mm256_unpacklo_epi8(b, d));
            let (ac_high, bd_high) = (_mm256_unpackhi_epi8(a, c), _mm256_unpackhi_epi8(b, d));
            [
                _mm256_unpacklo_epi16(ac, bd),
                _mm256_unpackhi_epi16(ac, bd),
                _mm256_unpacklo_epi16(ac_high, bd_high),
                _mm256_unpackhi_epi16(ac_high, bd_high),
            ]
        }
    }

    #[inline(always)]
    unsafe fn add<const PLANE: u8>(
        x: __m256i,
        digits: *const u16,
        [low, high]: [__m256i; 2],
    ) -> [__m256i; 2] {
        // SAFETY: four digits can be read.
        unsafe {
            let first = _mm256_set1_epi32(digits.cast::<i32>().read_unaligned());
            let last = _mm256_set1_epi32(digits.add(2).cast::<i32>().read_unaligned());
            let odd = _mm256_srli_epi16::<8>(x);
            if PLANE == BYTES {
                let even = _mm256_and_si256(x, _mm256_set1_epi16(0xff));
                return [dot(low, [even, odd], [first, last]), high];
            }
            let half = _mm256_set1_epi16(15);
            let low_halves = [_mm256_and_si256(x, half), _mm256_and_si256(odd, half)];
            let high_halves =
                [_mm256_and_si256(_mm256_srli_epi16::<4>(x), half), _mm256_srli_epi16::<12>(x)];
            [dot(low, low_halves, [first, last]), dot(high, high_halves, [first, last])]
        }
    }

    #[inline(always)]
    unsafe fn halves(sums: [__m256i; 2]) -> [__m256i; 2] {
        sums
    }

    #[inline(always)]
    unsafe fn floats(x: __m256i) -> __m256 {
        // SAFETY: as in `zero`.
        unsafe { _mm256_cvtepi32_ps(x) }
    }

    #[inline(always)]
    unsafe fn in_order([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
        // SAFETY: as in `zero`.
        unsafe {
            [
                _mm256_permute2f128_ps::<0x20>(a, b),
                _mm256_permute2f128_ps::<0x20>(c, d),
                _mm256_permute2f128_ps::<0x31>(a, b),
                _mm256_permute2f128_ps::<0x31>(c, d),
            ]
        }
    }

    #[inline(always)]
    unsafe fn largest_scale(params: *const Params, rows: usize) -> u16 {
        // SAFETY: as many params as rows; 16 bits of each are looked at.
        unsafe {
            let mut most = _mm256_setzero_si256();
            for i in (0..rows).step_by(8) {
                let scales =
                    _mm256_and_si256(params_at(params, i, rows), _mm256_set1_epi32(0xffff));
                most = _mm256_max_epu32(most, scales);
            }
            let mut each = [0u32; 8];
            _mm256_storeu_si256(each.as_mut_ptr().cast(), most);
            each.into_iter().fold(0, u32::max) as u16
        }
    }

    #[inline(always)]
    unsafe fn scales(
        params: *const Params,
        rows: usize,
        step: f32,
        to: &mut Digits<u16>,
    ) -> Scales {
        // With more rows, sums of products with 14 bits would not fit.
        let wide = rows <= WIDE_ROWS_MAX;
        // SAFETY: as many params as rows, and room for as many digits, in whole groups of 16.
        unsafe {
            let per_step = _mm256_set1_ps(1.0 / step);
            let digit = _mm256_set1_epi32(127);
            let mut biases = [_mm256_setzero_pd(); 2];
            let mut all = _mm256_setzero_si256();
            for i in (0..rows.next_multiple_of(16)).step_by(8) {
                let params = params_at(params, i, rows);
                let halves = in_words(_mm256_and_si256(params, _mm256_set1_epi32(0xffff)));
                let integers = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtph_ps(halves), per_step));
                all = _mm256_or_si256(all, integers);
                let (upper, low) =
                    (_mm256_srli_epi32::<7>(integers), _mm256_and_si256(integers, digit));
                let digits = match wide {
                    true => [upper, low, low],
                    false => [_mm256_srli_epi32::<7>(upper), _mm256_and_si256(upper, digit), low],
                };
                for (to, digits) in to.iter_mut().zip(digits) {
                    _mm_storeu_si128(to.as_mut_ptr().add(i).cast(), in_words(digits));
                }
                let bias = _mm256_cvtph_ps(in_words(_mm256_srli_epi32::<16>(params)));
                let parts = [_mm256_castps256_ps128(bias), _mm256_extractf128_ps::<1>(bias)];
                for (sum, bias) in biases.iter_mut().zip(parts) {
                    *sum = _mm256_add_pd(*sum, _mm256_cvtps_pd(bias));
                }
            }
            let mut each = [0.0f64; 4];
            _mm256_storeu_pd(each.as_mut_ptr(), _mm256_add_pd(biases[0], biases[1]));
            let is_low_zero = _mm256_testz_si256(all, digit) != 0;
            Scales {
                biases: each[0] + each[1] + (each[2] + each[3]),
                digits: 3 - usize::from(wide) - usize::from(is_low_zero),
                is_low_zero,
            }
        }
    }

    #[inline(always)]
    unsafe fn enter<const PLANE: u8, const AHEAD: u8, const WHOLE: bool>(work: &Work) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn inside<const PLANE: u8, const AHEAD: u8, const WHOLE: bool>(work: &Work) {
            // SAFETY: as the caller promises.
            unsafe { vectors::bags::<Avx2, PLANE, AHEAD, WHOLE>(work) }
        }
        // SAFETY: as the caller promises.
        unsafe { inside::<PLANE, AHEAD, WHOLE>(work) }
    }
}

/// Adds the products of the even and of the odd bytes of words with their rows' digits.
#[inline(always)]
unsafe fn dot(sum: __m256i, [even, odd]: [__m256i; 2], [first, last]: [__m256i; 2]) -> __m256i {
    // SAFETY: the callers have the instruction set.
    unsafe {
        let products =
            _mm256_add_epi32(_mm256_madd_epi16(even, first), _mm256_madd_epi16(odd, last));
        _mm256_add_epi32(sum, products)
    }
}

/// Params from `i` on, zeros behind the last.
#[inline(always)]
unsafe fn params_at(params: *const Params, i: usize, rows: usize) -> __m256i {
    // SAFETY: `rows` params can be read, and no more are.
    unsafe {
        if i + 8 <= rows {
            return _mm256_loadu_si256(params.add(i).cast());
        }
        _mm256_maskload_epi32(params.wrapping_add(i).cast(), Avx2::mask(rows.saturating_sub(i)))
    }
}

/// Eight numbers of 32 bits, none above 65,535, as numbers of 16.
#[inline(always)]
unsafe fn in_words(x: __m256i) -> __m128i {
    // SAFETY: the callers have the instruction set.
    unsafe { _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x)) }
}
