//! How the micro-kernel takes values of x: a step of a product over fp32, or over pairs of bf16.

use half::bf16;

use crate::simd::Lanes;

/// # Safety
/// Of all methods: as for [`Lanes`].
pub(crate) trait Step {
    type L: Lanes;
    /// What a step takes of a row of x, in all lanes.
    type X: Copy;
    /// Its bytes in the row.
    const X_BYTES: usize = size_of::<Self::X>() / Self::L::LANES;
    /// Reads `X_BYTES`.
    unsafe fn x(from: *const u8) -> Self::X;
    /// `acc` plus the product, or the products, of a step's words.
    unsafe fn step(acc: Vector<Self>, x: Self::X, weights: Vector<Self>) -> Vector<Self>;
    /// Rounded to the nearest, ties to even. Processors that do it by one instruction make zero of
    /// numbers below 1.2e-38, as their products do.
    unsafe fn store_bf16(to: *mut bf16, value: Vector<Self>);
}

pub(crate) type Vector<S> = <<S as Step>::L as Lanes>::V;
