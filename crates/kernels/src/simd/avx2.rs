//! Eight lanes.

use std::arch::x86_64::*;

use super::{Lanes, inlined};

pub(crate) struct Avx2;

impl Avx2 {
    /// The first `count` lanes.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    pub unsafe fn mask(count: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lane)
        }
    }
}

impl Lanes for Avx2 {
    const LANES: usize = 8;
    type V = __m256;

    inlined! {
        fn splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        fn load(from: *const f32) -> __m256 { _mm256_loadu_ps(from) }
        fn load_first(from: *const f32, count: usize) -> __m256 {
            _mm256_maskload_ps(from, Self::mask(count))
        }
        fn store(to: *mut f32, value: __m256) { _mm256_storeu_ps(to, value) }
        fn store_first(to: *mut f32, value: __m256, count: usize) {
            match count {
                8 => _mm256_storeu_ps(to, value),
                _ => _mm256_maskstore_ps(to, Self::mask(count), value),
            }
        }
        fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        fn permute(value: __m256, lanes: __m256) -> __m256 {
            _mm256_permutevar8x32_ps(value, _mm256_castps_si256(lanes))
        }
        fn sum(value: __m256) -> f32 {
            let four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
        fn sums(values: [__m256; 4]) -> [f32; 4] {
            let [a, b, c, d] = values;
            let abcd = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let one = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
            std::mem::transmute::<__m128, [f32; 4]>(one)
        }
    }
}
