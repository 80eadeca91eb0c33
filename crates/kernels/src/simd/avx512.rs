//! Sixteen lanes: AVX-512 F, BW, DQ and VL.

use std::arch::x86_64::*;

use super::{Lanes, inlined};

pub(crate) struct Avx512;

impl Avx512 {
    /// The first `count` lanes, all from sixteen on.
    pub fn mask(count: usize) -> __mmask16 {
        if count >= 16 { !0 } else { (1 << count) - 1 }
    }
}

impl Lanes for Avx512 {
    const LANES: usize = 16;
    type V = __m512;

    inlined! {
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(from: *const f32) -> __m512 { _mm512_loadu_ps(from) }
        fn load_first(from: *const f32, count: usize) -> __m512 {
            _mm512_maskz_loadu_ps(Self::mask(count), from)
        }
        fn store(to: *mut f32, value: __m512) { _mm512_storeu_ps(to, value) }
        fn store_first(to: *mut f32, value: __m512, count: usize) {
            _mm512_mask_storeu_ps(to, Self::mask(count), value)
        }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn permute(value: __m512, lanes: __m512) -> __m512 {
            _mm512_permutexvar_ps(_mm512_castps_si512(lanes), value)
        }
        fn sum(value: __m512) -> f32 { _mm512_reduce_add_ps(value) }
        fn sums(values: [__m512; 4]) -> [f32; 4] {
            let [a, b, c, d] = values;
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let low = _mm512_shuffle_ps::<0b0100_0100>(ab, cd);
            let high = _mm512_shuffle_ps::<0b1110_1110>(ab, cd);
            let abcd = _mm512_add_ps(low, high);
            let two =
                _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps::<1>(abcd));
            let one = _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps::<1>(two));
            std::mem::transmute::<__m128, [f32; 4]>(one)
        }
    }
}
