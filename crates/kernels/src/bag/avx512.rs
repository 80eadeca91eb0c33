//! Vectors of 16.

use std::arch::x86_64::*;

use super::integer::DIGITS;
use super::integer::vectors::plane::*;
use super::integer::vectors::{self, Digits, Quads, Scales};
use super::kernel::Work;
use super::pooling::{self, Rows, case::*};
use super::quant::Params;
use crate::detect::Isa;
use crate::simd::Avx512;

/// # Safety
/// As [`pool`](super::kernel::pool) promises of its work; the processor has AVX-512 F, BW, DQ, VL.
pub(super) unsafe fn pool(work: &Work) {
    // SAFETY: as the caller promises.
    unsafe { pooling::pool::<Avx512>(work) }
}

// SAFETY: nothing is read or written but what the trait says.
unsafe impl Rows for Avx512 {
    const VECTORS_MAX: usize = 16;

    #[inline(always)]
    unsafe fn row<const DTYPE: u8>(row: *const u8, v: usize) -> __m512 {
        // SAFETY: the whole vector belongs to the row, as the caller promises.
        unsafe {
            match DTYPE {
                F32 => _mm512_loadu_ps(row.add(v * 64).cast()),
                F16 => _mm512_cvtph_ps(_mm256_loadu_si256(row.add(v * 32).cast())),
                BF16 => from_bf16(_mm256_loadu_si256(row.add(v * 32).cast())),
                INT8 => from_bytes(_mm512_cvtepu8_epi32(_mm_loadu_si128(row.add(v * 16).cast()))),
                _ => {
                    // Two vectors share their bytes: the first in the low halves.
                    let bytes = _mm_loadu_si128(row.add(v / 2 * 16).cast());
                    let bytes = _mm512_cvtepu8_epi32(bytes);
                    from_bytes(match v % 2 {
                        0 => _mm512_and_si512(bytes, _mm512_set1_epi32(15)),
                        _ => _mm512_srli_epi32::<4>(bytes),
                    })
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn row_part<const DTYPE: u8>(row: *const u8, v: usize, lanes: usize) -> __m512 {
        let mask = Avx512::mask(lanes);
        // SAFETY: masked lanes are not read; quantised rows are padded to whole vectors.
        unsafe {
            match DTYPE {
                F32 => _mm512_maskz_loadu_ps(mask, row.add(v * 64).cast()),
                F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row.add(v * 32).cast())),
                BF16 => from_bf16(_mm256_maskz_loadu_epi16(mask, row.add(v * 32).cast())),
                _ => Self::row::<DTYPE>(row, v),
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
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
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
            unsafe { pooling::bags::<Avx512, DTYPE, MODE, AHEAD, N, RAGGED>(work) }
        }
        // SAFETY: as the caller promises.
        unsafe { inside::<DTYPE, MODE, AHEAD, N, RAGGED>(work) }
    }
}

#[inline(always)]
unsafe fn from_bytes(bytes: __m512i) -> __m512 {
    // SAFETY: the trait's callers have the instruction set.
    unsafe { _mm512_cvtepi32_ps(bytes) }
}

#[inline(always)]
unsafe fn from_bf16(halves: __m256i) -> __m512 {
    // SAFETY: as above.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))) }
}

/// [`Avx512`] with dot products of bytes. Without them, AVX2 sums in integers.
pub(super) struct Avx512Vnni;

// SAFETY: nothing is read or written but what the trait says.
unsafe impl Quads for Avx512Vnni {
    type L = Avx512;
    type I = __m512i;
    type Digit = u8;
    const ISA: Isa = Isa::Avx512Vnni;
    const BYTES: usize = 64;
    const DIGITS_MIN: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: the trait's callers have the instruction set.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load_bytes<const WHOLE: bool>(row: *const u8, bytes: usize) -> __m512i {
        // SAFETY: the bytes are the row's; masked ones are not read.
        unsafe {
            match WHOLE {
                true => _mm512_loadu_si512(row.cast()),
                false => _mm512_maskz_loadu_epi8((1 << bytes) - 1, row.cast()),
            }
        }
    }

    #[inline(always)]
    unsafe fn interleave(rows: [__m512i; 4]) -> [__m512i; 4] {
        // SAFETY: as in `zero`.
        unsafe { interleave(rows) }
    }

    /// Of two halves of a byte, the sums are of the byte as it is and of its high half.
    #[inline(always)]
    unsafe fn add<const PLANE: u8>(
        x: __m512i,
        digits: *const u8,
        [both, high]: [__m512i; 2],
    ) -> [__m512i; 2] {
        // SAFETY: four digits can be read.
        unsafe {
            let digits = _mm512_set1_epi32(digits.cast::<i32>().read_unaligned());
            let both = _mm512_dpbusd_epi32(both, x, digits);
            if PLANE == BYTES {
                return [both, high];
            }
            let upper = _mm512_and_si512(x, _mm512_set1_epi8(-16));
            [both, _mm512_dpbusd_epi32(high, upper, digits)]
        }
    }

    #[inline(always)]
    unsafe fn halves([both, high]: [__m512i; 2]) -> [__m512i; 2] {
        // SAFETY: as in `zero`.
        unsafe { [_mm512_sub_epi32(both, high), _mm512_srai_epi32::<4>(high)] }
    }

    #[inline(always)]
    unsafe fn floats(x: __m512i) -> __m512 {
        // SAFETY: as in `zero`.
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    unsafe fn in_order(x: [__m512; 4]) -> [__m512; 4] {
        // SAFETY: as in `zero`.
        unsafe { in_order(x) }
    }

    #[inline(always)]
    unsafe fn largest_scale(params: *const Params, rows: usize) -> u16 {
        // SAFETY: as the caller promises.
        unsafe { largest_scale(params, rows) }
    }

    #[inline(always)]
    unsafe fn scales(params: *const Params, rows: usize, step: f32, to: &mut Digits<u8>) -> Scales {
        // SAFETY: as the caller promises.
        unsafe { scales(params, rows, step, to) }
    }

    #[inline(always)]
    unsafe fn enter<const PLANE: u8, const AHEAD: u8, const WHOLE: bool>(work: &Work) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        unsafe fn inside<const PLANE: u8, const AHEAD: u8, const WHOLE: bool>(work: &Work) {
            // SAFETY: as the caller promises.
            unsafe { vectors::bags::<Avx512Vnni, PLANE, AHEAD, WHOLE>(work) }
        }
        // SAFETY: as the caller promises.
        unsafe { inside::<PLANE, AHEAD, WHOLE>(work) }
    }
}

#[inline(always)]
unsafe fn interleave([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: as above.
    unsafe {
        let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
        [
            _mm512_unpacklo_epi16(ab, cd),
            _mm512_unpackhi_epi16(ab, cd),
            _mm512_unpacklo_epi16(ab_high, cd_high),
            _mm512_unpackhi_epi16(ab_high, cd_high),
        ]
    }
}

/// Quarter `v` of all four vectors, one behind the other, for each `v`.
#[inline(always)]
unsafe fn in_order([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    // SAFETY: as above.
    unsafe {
        let (ab, cd) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0x44>(c, d));
        let (ab_high, cd_high) =
            (_mm512_shuffle_f32x4::<0xee>(a, b), _mm512_shuffle_f32x4::<0xee>(c, d));
        [
            _mm512_shuffle_f32x4::<0x88>(ab, cd),
            _mm512_shuffle_f32x4::<0xdd>(ab, cd),
            _mm512_shuffle_f32x4::<0x88>(ab_high, cd_high),
            _mm512_shuffle_f32x4::<0xdd>(ab_high, cd_high),
        ]
    }
}

/// Params from `i` on, zeros behind the last.
#[inline(always)]
unsafe fn params_at(params: *const Params, i: usize, rows: usize) -> __m512i {
    // SAFETY: masked ones are not read.
    unsafe { _mm512_maskz_loadu_epi32(Avx512::mask(rows - i), params.wrapping_add(i).cast()) }
}

#[inline(always)]
unsafe fn largest_scale(params: *const Params, rows: usize) -> u16 {
    // SAFETY: as many params as rows; 16 bits of each are looked at.
    unsafe {
        let mut most = _mm512_setzero_si512();
        for i in (0..rows).step_by(16) {
            let scales = _mm512_and_si512(params_at(params, i, rows), _mm512_set1_epi32(0xffff));
            most = _mm512_max_epu32(most, scales);
        }
        _mm512_reduce_max_epu32(most) as u16
    }
}

#[inline(always)]
unsafe fn scales(params: *const Params, rows: usize, step: f32, to: &mut Digits<u8>) -> Scales {
    // SAFETY: as many params as rows, and room for as many digits, in whole groups of 16.
    unsafe {
        let per_step = _mm512_set1_ps(1.0 / step);
        let digit = _mm512_set1_epi32(127);
        let mut biases = [_mm512_setzero_pd(); 2];
        let mut all = _mm512_setzero_si512();
        for i in (0..rows).step_by(16) {
            let params = params_at(params, i, rows);
            let scales = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(params));
            let integers = _mm512_cvtps_epi32(_mm512_mul_ps(scales, per_step));
            all = _mm512_or_si512(all, integers);
            let digits = [
                _mm512_srli_epi32::<14>(integers),
                _mm512_and_si512(_mm512_srli_epi32::<7>(integers), digit),
                _mm512_and_si512(integers, digit),
            ];
            for (to, digits) in to.iter_mut().zip(digits) {
                _mm_storeu_si128(to.as_mut_ptr().add(i).cast(), _mm512_cvtepi32_epi8(digits));
            }
            let bias = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(params)));
            let parts = [_mm512_castps512_ps256(bias), _mm512_extractf32x8_ps::<1>(bias)];
            for (sum, bias) in biases.iter_mut().zip(parts) {
                *sum = _mm512_add_pd(*sum, _mm512_cvtps_pd(bias));
            }
        }
        let is_low_zero = _mm512_test_epi32_mask(all, digit) == 0;
        Scales {
            biases: _mm512_reduce_add_pd(_mm512_add_pd(biases[0], biases[1])),
            digits: DIGITS - usize::from(is_low_zero),
            is_low_zero,
        }
    }
}
