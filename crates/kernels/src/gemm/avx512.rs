//! AVX-512: blocks of up to 14 rows and 32 columns, where 28 of the 32 registers accumulate.

use std::arch::x86_64::*;

use half::bf16;

use super::dot;
use super::step::Step;
use super::tile::{GROUP, Kernels, Tile, TileFn, run};
use crate::detect::Isa;
use crate::simd::{Avx512, Lanes as _, inlined};

/// Two bf16 a step, by `vdpbf16ps`.
struct Pairs;
/// Two bf16 a step, as two fp32 of x and a word of weights that is widened here.
struct WidenedPairs;

macro_rules! step {
    (
        $name:ty, $x:ty, |$from:ident| $load:expr,
        |$acc:ident, $value:ident, $w:ident| $step:expr, $narrow:ident
    ) => {
        impl Step for $name {
            type L = Avx512;
            type X = $x;
            inlined! {
                fn x($from: *const u8) -> $x { $load }
                fn step($acc: __m512, $value: $x, $w: __m512) -> __m512 { $step }
                fn store_bf16(to: *mut bf16, value: __m512) {
                    _mm256_storeu_si256(to.cast(), $narrow(value))
                }
            }
        }
    };
}

step!(Avx512, __m512, |from| splat(from), |acc, x, w| _mm512_fmadd_ps(x, w, acc), narrow);
step!(
    Pairs,
    __m512,
    |from| splat(from),
    |acc, x, w| _mm512_dpbf16_ps(acc, as_bf16(x), as_bf16(w)),
    narrow_at_once
);
step!(
    WidenedPairs,
    [__m512; 2],
    |from| [splat(from), splat(from.add(4))],
    |acc, x, w| {
        let acc = _mm512_fmadd_ps(x[0], low(w), acc);
        _mm512_fmadd_ps(x[1], high(w), acc)
    },
    narrow
);

/// One word, at any address, in all lanes.
#[inline(always)]
unsafe fn splat(from: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { Avx512::splat(from.cast::<f32>().read_unaligned()) }
}

#[inline(always)]
unsafe fn narrow_at_once(v: __m512) -> __m256i {
    // SAFETY: only called where the processor has the instruction; both are 32 bytes.
    unsafe { std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v)) }
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
    Avx512,
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
    unsafe { dot::run::<Avx512>(job) }
}
