//! Vectors of fp32 lanes, as the kernels of this crate see them.
//!
//! The methods have no features of their own: they are compiled into functions that enable them.

use half::bf16;

pub(crate) trait Lanes {
    const LANES: usize;
    type V: Copy;
    /// What a step takes of a row of x, in all lanes.
    type X: Copy;
    /// Its bytes in the row.
    const X_BYTES: usize;
    /// # Safety
    /// The processor has the variant's features and `from` holds `LANES` words.
    unsafe fn load(from: *const u32) -> Self::V;
    /// One word in all lanes.
    /// # Safety
    /// As for `load`, with one word, at any address.
    unsafe fn splat(from: *const u32) -> Self::V;
    /// # Safety
    /// As for `load`, with `X_BYTES`, at any address.
    unsafe fn x(from: *const u8) -> Self::X;
    /// `acc` plus the product, or the products, of a step's words.
    /// # Safety
    /// The processor has the variant's features.
    unsafe fn step(acc: Self::V, x: Self::X, weights: Self::V) -> Self::V;
    /// # Safety
    /// The processor has the variant's features.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// The larger of the two; `value` where it is NaN.
    /// # Safety
    /// The processor has the variant's features.
    unsafe fn max(floor: Self::V, value: Self::V) -> Self::V;
    /// # Safety
    /// As for `load`, to write.
    unsafe fn store(to: *mut f32, value: Self::V);
    /// Rounded to the nearest, ties to even. Processors that do it by one instruction make zero of
    /// numbers below 1.2e-38, as their products do.
    /// # Safety
    /// As for `store`, with room for `LANES` halves of words.
    unsafe fn store_bf16(to: *mut bf16, value: Self::V);
}

/// Lanes whose steps are single fp32 values, for sums along a row.
pub(crate) trait Dots: Lanes<X = <Self as Lanes>::V> {
    /// The first `count` words, zeros behind.
    /// # Safety
    /// The processor has the variant's features and `from` holds `count` words.
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V;
    /// The sum of the lanes, always in the same order.
    /// # Safety
    /// The processor has the variant's features.
    unsafe fn sum(value: Self::V) -> f32;
    /// The sums of four, for less than four times the work.
    /// # Safety
    /// The processor has the variant's features.
    unsafe fn sums(values: [Self::V; 4]) -> [f32; 4];
}
