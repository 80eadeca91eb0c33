//! Vectors of 8.

use std::arch::x86_64::*;

use super::kernel::Work;
use super::pooling::{self, Lanes, Part, case::*};

/// # Safety
/// As [`pool`](super::kernel::pool) promises of its work; the processor has AVX2, FMA and F16C.
pub(super) unsafe fn pool(work: &Work) {
    // SAFETY: as the caller promises.
    unsafe { pooling::pool::<Avx2>(work) }
}

struct Avx2;

// SAFETY: nothing is read or written but what the trait says.
unsafe impl Lanes for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const VECTORS_MAX: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // SAFETY: the trait's callers have the instruction set.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn load<const DTYPE: u8>(row: *const u8, v: usize) -> __m256 {
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
    unsafe fn load_part<const DTYPE: u8>(row: *const u8, v: usize, lanes: usize) -> __m256 {
        let mut buffer = [0u32; 8];
        let size = if DTYPE == F32 { 4 } else { 2 };
        // SAFETY: `lanes` elements belong to the row; quantised rows are padded to whole vectors.
        unsafe {
            match DTYPE {
                INT8 | INT4 => return Self::load::<DTYPE>(row, v),
                _ => std::ptr::copy_nonoverlapping(
                    row.add(v * 8 * size),
                    buffer.as_mut_ptr().cast::<u8>(),
                    lanes * size,
                ),
            }
            Self::load::<DTYPE>(buffer.as_ptr().cast(), 0)
        }
    }

    #[inline(always)]
    unsafe fn store_f32(out: *mut f32, x: __m256, lanes: usize) {
        // SAFETY: the first `lanes` belong to the bag.
        unsafe {
            if lanes == 8 {
                return _mm256_storeu_ps(out, x);
            }
            let mut buffer = [0.0f32; 8];
            _mm256_storeu_ps(buffer.as_mut_ptr(), x);
            std::ptr::copy_nonoverlapping(buffer.as_ptr(), out, lanes);
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(out: *mut u16, x: __m256, lanes: usize) {
        let mut buffer = [0.0f32; 8];
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(buffer.as_mut_ptr(), x);
            let halves = buffer.map(|x| half::bf16::from_f32(x).to_bits());
            std::ptr::copy_nonoverlapping(halves.as_ptr(), out, lanes);
        }
    }

    #[inline(always)]
    unsafe fn enter<const DTYPE: u8, const MODE: u8, const AHEAD: u8, const N: usize>(
        work: &Work,
        part: Part,
    ) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn inside<const DTYPE: u8, const MODE: u8, const AHEAD: u8, const N: usize>(
            work: &Work,
            part: Part,
        ) {
            // SAFETY: as the caller promises.
            unsafe { pooling::bags::<Avx2, DTYPE, MODE, AHEAD, N>(work, part) }
        }
        // SAFETY: as the caller promises.
        unsafe { inside::<DTYPE, MODE, AHEAD, N>(work, part) }
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
