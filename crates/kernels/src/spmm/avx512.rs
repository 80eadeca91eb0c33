//! Vectors of 16; up to 16 of them are summed at once, or 8 where weights are spread over heads.

use super::sums::{self, DotsJob, HeadsFn, HeadsJob, Job, SumsFn};
use super::vectors::Kernels;
use crate::simd::Avx512;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn gather<const N: usize, const WEIGHTED: bool>(job: &Job) {
    // SAFETY: the caller's promise.
    unsafe { sums::gather::<Avx512, N, WEIGHTED>(job) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn gather_heads<const N: usize>(job: &HeadsJob) {
    // SAFETY: the caller's promise.
    unsafe { sums::gather_heads::<Avx512, N>(job) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn edge_dots(job: DotsJob) {
    // SAFETY: the caller's promise.
    unsafe { sums::edge_dots::<Avx512>(job) }
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
