//! Vectors of 8; up to 8 of them are summed at once, or 4 where weights are spread over heads.

use std::arch::x86_64::*;

use super::sums::{self, DotsJob, HeadsFn, HeadsJob, Job, Sums, SumsFn};
use super::vectors::Kernels;
use crate::gemm::avx2::F32x8;

impl Sums for F32x8 {
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut f32, value: __m256, count: usize) {
        // SAFETY: the caller's promise; lanes behind `count` are not written.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let wanted = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lane);
            _mm256_maskstore_ps(to, wanted, value);
        }
    }
    #[inline(always)]
    unsafe fn spread(value: __m256, lanes: __m256) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_permutevar8x32_ps(value, _mm256_castps_si256(lanes)) }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn gather<const N: usize, const WEIGHTED: bool>(job: &Job) {
    // SAFETY: the caller's promise.
    unsafe { sums::gather::<F32x8, N, WEIGHTED>(job) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn gather_heads<const N: usize>(job: &HeadsJob) {
    // SAFETY: the caller's promise.
    unsafe { sums::gather_heads::<F32x8, N>(job) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn edge_dots(job: DotsJob) {
    // SAFETY: the caller's promise.
    unsafe { sums::edge_dots::<F32x8>(job) }
}

macro_rules! widths {
    ($weighted:literal, $($n:literal),*) => { [$(gather::<$n, $weighted> as SumsFn),*] };
}

pub(super) static KERNELS: Kernels = Kernels {
    lanes: 8,
    plain: &widths!(false, 1, 2, 3, 4, 5, 6, 7, 8),
    weighted: &widths!(true, 1, 2, 3, 4, 5, 6, 7, 8),
    heads: &[gather_heads::<1> as HeadsFn, gather_heads::<2>, gather_heads::<3>, gather_heads::<4>],
    dots: edge_dots,
};
