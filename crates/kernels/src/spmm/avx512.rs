//! Vectors of 16; up to 16 of them are summed at once, or 8 where weights are spread over heads.

use std::arch::x86_64::*;

use super::sums::{self, DotsJob, HeadsFn, HeadsJob, Job, Sums, SumsFn};
use super::vectors::Kernels;
use crate::gemm::avx512::F32x16;

impl Sums for F32x16 {
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut f32, value: __m512, count: usize) {
        // SAFETY: the caller's promise; lanes behind `count` are not written.
        unsafe { _mm512_mask_storeu_ps(to, ((1_u32 << count) - 1) as __mmask16, value) }
    }
    #[inline(always)]
    unsafe fn spread(value: __m512, lanes: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_permutexvar_ps(_mm512_castps_si512(lanes), value) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn gather<const N: usize, const WEIGHTED: bool>(job: &Job) {
    // SAFETY: the caller's promise.
    unsafe { sums::gather::<F32x16, N, WEIGHTED>(job) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn gather_heads<const N: usize>(job: &HeadsJob) {
    // SAFETY: the caller's promise.
    unsafe { sums::gather_heads::<F32x16, N>(job) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn edge_dots(job: DotsJob) {
    // SAFETY: the caller's promise.
    unsafe { sums::edge_dots::<F32x16>(job) }
}

macro_rules! widths {
    ($weighted:literal, $($n:literal),*) => { [$(gather::<$n, $weighted> as SumsFn),*] };
}

pub(super) static KERNELS: Kernels = Kernels {
    lanes: 16,
    plain: &widths!(false, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16),
    weighted: &widths!(true, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16),
    heads: &[
        gather_heads::<1> as HeadsFn,
        gather_heads::<2>,
        gather_heads::<3>,
        gather_heads::<4>,
        gather_heads::<5>,
        gather_heads::<6>,
        gather_heads::<7>,
        gather_heads::<8>,
    ],
    dots: edge_dots,
};
