//! Dot products of all pairs of a sample's features, a block of pairs at a time.

use crate::simd::Lanes;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// Features against which a block's rows are multiplied.
const COLUMNS: usize = 4;

/// Where the products of feature `i` begin. Each feature has products with those before it, and
/// with itself where `itself` says so.
fn start(i: usize, itself: bool) -> usize {
    i * i.saturating_sub(1) / 2 + if itself { i } else { 0 }
}

/// The number of features that `pooled` holds beside the dense one.
fn features(dense: &[f32], pooled: &[f32]) -> usize {
    1 + pooled.len() / dense.len().max(1)
}

pub(super) fn reference(dense: &[f32], pooled: &[f32], itself: bool, products: &mut [f32]) {
    let dim = dense.len();
    let feature = |i: usize| if i == 0 { dense } else { &pooled[(i - 1) * dim..][..dim] };
    for i in 0..features(dense, pooled) {
        let products = &mut products[start(i, itself)..start(i + 1, itself)];
        for (j, product) in products.iter_mut().enumerate() {
            *product = feature(i).iter().zip(feature(j)).map(|(a, b)| a * b).sum();
        }
    }
}

/// # Safety
/// The processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn avx512(dense: &[f32], pooled: &[f32], itself: bool, products: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { all::<Avx512, 4>(dense, pooled, itself, products) }
}

/// # Safety
/// The processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn avx2(dense: &[f32], pooled: &[f32], itself: bool, products: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { all::<Avx2, 2>(dense, pooled, itself, products) }
}

/// # Safety
/// The processor has the features of `L`.
#[inline(always)]
unsafe fn all<L: Lanes, const ROWS: usize>(
    dense: &[f32],
    pooled: &[f32],
    itself: bool,
    products: &mut [f32],
) {
    let dim = dense.len();
    let features = features(dense, pooled);
    // At the edge the last feature is repeated, and its products are not kept.
    let feature = |i: usize| match i.min(features - 1) {
        0 => dense.as_ptr(),
        i => pooled[(i - 1) * dim..].as_ptr(),
    };
    for i in (0..features).step_by(ROWS) {
        let rows: [*const f32; ROWS] = std::array::from_fn(|r| feature(i + r));
        let last = i + ROWS - 1 + usize::from(itself);
        for j in (0..last.min(features - 1 + usize::from(itself))).step_by(COLUMNS) {
            let columns: [*const f32; COLUMNS] = std::array::from_fn(|c| feature(j + c));
            // SAFETY: each feature has `dim` elements.
            let sums = unsafe { block::<L, ROWS>(rows, columns, dim) };
            for (i, sums) in (i..features).zip(sums) {
                let row = &mut products[start(i, itself)..start(i + 1, itself)];
                let out = row.get_mut(j..).unwrap_or_default();
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = sum;
                }
            }
        }
    }
}

/// Loops, not closures: those would be compiled without the processor's features.
///
/// # Safety
/// As for [`all`]; each pointer holds `dim` elements.
#[inline(always)]
unsafe fn block<L: Lanes, const ROWS: usize>(
    rows: [*const f32; ROWS],
    columns: [*const f32; COLUMNS],
    dim: usize,
) -> [[f32; COLUMNS]; ROWS] {
    // SAFETY: `k` plus what is loaded stays within `dim`.
    unsafe {
        let zero = L::load_first(rows[0], 0);
        let mut acc = [[zero; COLUMNS]; ROWS];
        let mut k = 0;
        while k + L::LANES <= dim {
            let mut b = [zero; COLUMNS];
            for (b, column) in b.iter_mut().zip(columns) {
                *b = L::load(column.add(k));
            }
            for (acc, row) in acc.iter_mut().zip(rows) {
                let a = L::load(row.add(k));
                for (acc, b) in acc.iter_mut().zip(b) {
                    *acc = L::fma(a, b, *acc);
                }
            }
            k += L::LANES;
        }
        if k < dim {
            let mut b = [zero; COLUMNS];
            for (b, column) in b.iter_mut().zip(columns) {
                *b = L::load_first(column.add(k), dim - k);
            }
            for (acc, row) in acc.iter_mut().zip(rows) {
                let a = L::load_first(row.add(k), dim - k);
                for (acc, b) in acc.iter_mut().zip(b) {
                    *acc = L::fma(a, b, *acc);
                }
            }
        }
        let mut sums = [[0.0; COLUMNS]; ROWS];
        for (sums, acc) in sums.iter_mut().zip(acc) {
            *sums = L::sums(acc);
        }
        sums
    }
}
