//! AVX-512: blocks of up to 14 rows and 32 columns, where 28 of the 32 registers accumulate.

use std::arch::x86_64::*;

use half::bf16;

use super::dot;
use super::lanes::{Dots, Lanes};
use super::tile::{GROUP, Kernels, Tile, TileFn, run};
use crate::detect::Isa;

pub(crate) struct F32x16;
/// Two bf16 a step, by `vdpbf16ps`.
struct Pairs;
/// Two bf16 a step, as two fp32 of x and a word of weights that is widened here.
struct WidenedPairs;

macro_rules! lanes {
    ($name:ty, $x:ty, $splat:expr, $step:expr, $narrow:expr) => {
        impl Lanes for $name {
            const LANES: usize = 16;
            type V = __m512;
            type X = $x;
            const X_BYTES: usize = size_of::<$x>() / Self::LANES;
            #[inline(always)]
            unsafe fn load(from: *const u32) -> __m512 {
                // SAFETY: the caller's promise.
                unsafe { _mm512_loadu_ps(from.cast()) }
            }
            #[inline(always)]
            unsafe fn splat(from: *const u32) -> __m512 {
                // SAFETY: the caller's promise.
                unsafe { _mm512_set1_ps(from.cast::<f32>().read_unaligned()) }
            }
            #[inline(always)]
            unsafe fn x(from: *const u8) -> $x {
                // SAFETY: the caller's promise.
                unsafe { $splat(from.cast()) }
            }
            #[inline(always)]
            unsafe fn step(acc: __m512, x: $x, weights: __m512) -> __m512 {
                // SAFETY: the caller's promise.
                unsafe { $step(acc, x, weights) }
            }
            #[inline(always)]
            unsafe fn add(a: __m512, b: __m512) -> __m512 {
                // SAFETY: the caller's promise.
                unsafe { _mm512_add_ps(a, b) }
            }
            #[inline(always)]
            unsafe fn max(floor: __m512, value: __m512) -> __m512 {
                // SAFETY: the caller's promise.
                unsafe { _mm512_max_ps(floor, value) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut f32, value: __m512) {
                // SAFETY: the caller's promise.
                unsafe { _mm512_storeu_ps(to, value) }
            }
            #[inline(always)]
            unsafe fn store_bf16(to: *mut bf16, value: __m512) {
                // SAFETY: the caller's promise.
                unsafe { _mm256_storeu_si256(to.cast(), $narrow(value)) }
            }
        }
    };
}

lanes!(F32x16, __m512, Self::splat, |acc, x, w| _mm512_fmadd_ps(x, w, acc), narrow);
lanes!(
    Pairs,
    __m512,
    Self::splat,
    |acc, x, w| _mm512_dpbf16_ps(acc, as_bf16(x), as_bf16(w)),
    |value| { std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(value)) }
);
lanes!(
    WidenedPairs,
    [__m512; 2],
    |from: *const u32| [Self::splat(from), Self::splat(from.add(1))],
    |acc, x: [__m512; 2], w| {
        let acc = _mm512_fmadd_ps(x[0], low(w), acc);
        _mm512_fmadd_ps(x[1], high(w), acc)
    },
    narrow
);

impl Dots for F32x16 {
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> __m512 {
        // SAFETY: the caller's promise; lanes behind `count` are not read.
        unsafe { _mm512_maskz_loadu_ps(((1u32 << count) - 1) as __mmask16, from) }
    }
    #[inline(always)]
    unsafe fn sum(value: __m512) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_reduce_add_ps(value) }
    }
    #[inline(always)]
    unsafe fn sums([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        // SAFETY: the caller's promise; four fp32 are 16 bytes.
        unsafe {
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let (low, high) = (
                _mm512_shuffle_ps::<0b0100_0100>(ab, cd),
                _mm512_shuffle_ps::<0b1110_1110>(ab, cd),
            );
            let abcd = _mm512_add_ps(low, high);
            let two =
                _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps::<1>(abcd));
            let one = _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps::<1>(two));
            std::mem::transmute::<__m128, [f32; 4]>(one)
        }
    }
}

#[inline(always)]
unsafe fn as_bf16(v: __m512) -> __m512bh {
    // SAFETY: both are 64 bytes, and no bits are invalid.
    unsafe { std::mem::transmute(v) }
}

/// The first bf16 of each pair.
#[inline(always)]
unsafe fn low(v: __m512) -> __m512 {
    // SAFETY: only called where the processor has AVX-512.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(v))) }
}

/// The second bf16 of each pair.
#[inline(always)]
unsafe fn high(v: __m512) -> __m512 {
    // SAFETY: only called where the processor has AVX-512.
    unsafe {
        let mask = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), mask))
    }
}

/// To bf16, as the scalar code does it: ties to even, NaN kept NaN.
#[inline(always)]
unsafe fn narrow(v: __m512) -> __m256i {
    // SAFETY: only called where the processor has AVX-512.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let high = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let nearest = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
        let quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(nearest, nan, quiet))
    }
}

macro_rules! kernels {
    ($table:ident, $function:ident, $lanes:ty, $features:literal, $rows:tt, $pair:tt) => {
        #[target_feature(enable = $features)]
        unsafe fn $function<const ROWS: usize, const VECTORS: usize, const PANELS: usize>(
            tile: &Tile,
        ) {
            // SAFETY: the caller's promise.
            unsafe { run::<$lanes, ROWS, VECTORS, PANELS>(tile) }
        }
        pub(crate) static $table: Kernels = Kernels {
            isa: Isa::Avx512,
            x_bytes: <$lanes>::X_BYTES,
            lanes: 16,
            wide: &kernels!($function, 2, 1, $rows),
            narrow: &kernels!($function, 1, 1, $rows),
            pair: &kernels!($function, 2, 2, $pair),
            group: &[$function::<1, 2, GROUP>, $function::<2, 2, GROUP>],
        };
    };
    ($function:ident, $vectors:literal, $panels:literal, [$($rows:literal),*]) => {
        [$($function::<$rows, $vectors, $panels> as TileFn),*]
    };
}

// Six rows against two panels are 24 sums, which leaves registers for four vectors of weights and one value of x.
// They reach 0.83 to 0.92 of the multiply-add peak of an Ice Lake core, where 14 rows against one panel reach 0.73
// to 0.82. They were measured in fp32 only, so bf16 has none.
kernels!(
    F32,
    f32_tile,
    F32x16,
    "avx512f,avx512bw,avx512dq,avx512vl",
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    [1, 2, 3, 4, 5, 6]
);
kernels!(
    BF16,
    bf16_tile,
    Pairs,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16",
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    []
);
// Widened weights take registers too.
kernels!(
    BF16_WIDENED,
    widened_tile,
    WidenedPairs,
    "avx512f,avx512bw,avx512dq,avx512vl",
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    []
);

/// # Safety
/// As for [`dot::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn dots(job: &dot::Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dot::run::<F32x16>(job) }
}
