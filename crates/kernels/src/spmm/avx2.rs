//! Vectors of 8; up to 8 of them are summed at once, or 4 where weights are spread over heads.

use super::sums::{self, DotsJob, HeadsFn, HeadsJob, Job, SumsFn};
use super::vectors::Kernels;
use crate::simd::Avx2;

#[target_feature(enable = "avx2,fma")]
unsafe fn gather<const N: usize, const WEIGHTED: bool>(job: &Job) {
    // SAFETY: the caller's promise.
    unsafe { sums::gather::<Avx2, N, WEIGHTED>(job) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn gather_heads<const N: usize>(job: &HeadsJob) {
    // SAFETY: the caller's promise.
    unsafe { sums::gather_heads::<Avx2, N>(job) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn edge_dots(job: DotsJob) {
    // SAFETY: the caller's promise.
    unsafe { sums::edge_dots::<Avx2>(job) }
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
