//! Vectors of fp32, as all kernels of this crate see them: the one place where an instruction set's
//! plain operations stand. What only some kernels need (rows of other types, steps of a product, sums in
//! integers) stands beside those kernels.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;

/// The operations of an instruction set. They have no features of their own: they are compiled into
/// functions that enable them.
///
/// # Safety
/// Of all methods: the processor has the instruction set, and a pointer holds the words that are read or
/// written, at any address.
pub(crate) trait Lanes {
    const LANES: usize;
    type V: Copy;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    /// The first `count` words, zeros behind.
    unsafe fn load_first(from: *const f32, count: usize) -> Self::V;
    unsafe fn store(to: *mut f32, value: Self::V);
    /// The first `count` lanes.
    unsafe fn store_first(to: *mut f32, value: Self::V, count: usize);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// a · b + c, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of the two; `b` where one is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Lane `i` of the result is lane `lanes[i]` of the value; `lanes` are words.
    unsafe fn permute(value: Self::V, lanes: Self::V) -> Self::V;
    /// The sum of the lanes, always in the same order.
    unsafe fn sum(value: Self::V) -> f32;
    /// The sums of four, for less than four times the work.
    unsafe fn sums(values: [Self::V; 4]) -> [f32; 4];
}

/// Methods that are compiled into their callers.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_macros))]
macro_rules! inlined {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? { $($body:tt)* })*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) $(-> $out)? {
            // SAFETY: the caller's promise.
            unsafe { $($body)* }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
pub(crate) use inlined;
