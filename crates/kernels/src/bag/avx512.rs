//! Vectors of 16.

use std::arch::x86_64::*;

use super::kernel::Work;
use super::pooling::{self, Lanes, Part, case::*};

/// # Safety
/// As [`pool`](super::kernel::pool) promises of its work; the processor has AVX-512 F, BW, DQ, VL.
pub(super) unsafe fn pool(work: &Work) {
    // SAFETY: as the caller promises.
    unsafe { pooling::pool::<Avx512>(work) }
}

struct Avx512;

fn mask(lanes: usize) -> __mmask16 {
    if lanes >= 16 { !0 } else { (1 << lanes) - 1 }
}

// SAFETY: nothing is read or written but what the trait says.
unsafe impl Lanes for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const VECTORS_MAX: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the trait's callers have the instruction set.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn load<const DTYPE: u8>(row: *const u8, v: usize) -> __m512 {
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
    unsafe fn load_part<const DTYPE: u8>(row: *const u8, v: usize, lanes: usize) -> __m512 {
        let mask = mask(lanes);
        // SAFETY: masked lanes are not read; quantised rows are padded to whole vectors.
        unsafe {
            match DTYPE {
                F32 => _mm512_maskz_loadu_ps(mask, row.add(v * 64).cast()),
                F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row.add(v * 32).cast())),
                BF16 => from_bf16(_mm256_maskz_loadu_epi16(mask, row.add(v * 32).cast())),
                _ => Self::load::<DTYPE>(row, v),
            }
        }
    }

    #[inline(always)]
    unsafe fn store_f32(out: *mut f32, x: __m512, lanes: usize) {
        // SAFETY: the first `lanes` belong to the bag.
        unsafe { _mm512_mask_storeu_ps(out, mask(lanes), x) }
    }

    #[inline(always)]
    unsafe fn store_bf16(out: *mut u16, x: __m512, lanes: usize) {
        // SAFETY: as above.
        unsafe { _mm256_mask_storeu_epi16(out.cast(), mask(lanes), to_bf16(x)) }
    }

    #[inline(always)]
    unsafe fn enter<const DTYPE: u8, const MODE: u8, const AHEAD: u8, const N: usize>(
        work: &Work,
        part: Part,
    ) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn inside<const DTYPE: u8, const MODE: u8, const AHEAD: u8, const N: usize>(
            work: &Work,
            part: Part,
        ) {
            // SAFETY: as the caller promises.
            unsafe { pooling::bags::<Avx512, DTYPE, MODE, AHEAD, N>(work, part) }
        }
        // SAFETY: as the caller promises.
        unsafe { inside::<DTYPE, MODE, AHEAD, N>(work, part) }
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

/// To the nearest, ties to even; what is no number stays none.
#[inline(always)]
unsafe fn to_bf16(x: __m512) -> __m256i {
    // SAFETY: as above.
    unsafe {
        let bits = _mm512_castps_si512(x);
        let high = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, up));
        let no_number = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        let quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
        _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(no_number, rounded, quiet))
    }
}
