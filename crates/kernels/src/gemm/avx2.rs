//! AVX2 and FMA: blocks of up to 6 rows and 16 columns, where 12 of the 16 registers accumulate.

use std::arch::x86_64::*;

use half::bf16;

use super::dot;
use super::step::Step;
use super::tile::{GROUP, Kernels, Tile, TileFn, run};
use crate::detect::Isa;
use crate::simd::{Avx2, Lanes as _, inlined};

/// Two bf16 a step, as two fp32 of x and a word of weights that is widened here.
struct WidenedPairs;

macro_rules! step {
    ($name:ty, $x:ty, |$from:ident| $load:expr, |$acc:ident, $value:ident, $w:ident| $step:expr) => {
        impl Step for $name {
            type L = Avx2;
            type X = $x;
            inlined! {
                fn x($from: *const u8) -> $x { $load }
                fn step($acc: __m256, $value: $x, $w: __m256) -> __m256 { $step }
                fn store_bf16(to: *mut bf16, value: __m256) {
                    _mm_storeu_si128(to.cast(), narrow(value))
                }
            }
        }
    };
}

step!(Avx2, __m256, |from| splat(from), |acc, x, w| _mm256_fmadd_ps(x, w, acc));
step!(WidenedPairs, [__m256; 2], |from| [splat(from), splat(from.add(4))], |acc, x, w| {
    let acc = _mm256_fmadd_ps(x[0], low(w), acc);
    _mm256_fmadd_ps(x[1], high(w), acc)
});

/// One word, at any address, in all lanes.
#[inline(always)]
unsafe fn splat(from: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { Avx2::splat(from.cast::<f32>().read_unaligned()) }
}

/// The first bf16 of each pair.
#[inline(always)]
unsafe fn low(v: __m256) -> __m256 {
    // SAFETY: only called where the processor has AVX2.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(v))) }
}

/// The second bf16 of each pair.
#[inline(always)]
unsafe fn high(v: __m256) -> __m256 {
    // SAFETY: only called where the processor has AVX2.
    unsafe {
        let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(v), mask))
    }
}

/// To bf16, as the scalar code does it: ties to even, NaN kept NaN.
#[inline(always)]
unsafe fn narrow(v: __m256) -> __m128i {
    // SAFETY: only called where the processor has AVX2.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let high = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let nearest = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
        let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let words = _mm256_blendv_epi8(nearest, quiet, nan);
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words))
    }
}

macro_rules! kernels {
    ($table:ident, $function:ident, $lanes:ty, $rows:tt) => {
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $function<const ROWS: usize, const VECTORS: usize, const PANELS: usize>(
            tile: &Tile,
        ) {
            // SAFETY: the caller's promise.
            unsafe { run::<$lanes, ROWS, VECTORS, PANELS>(tile) }
        }
        pub(crate) static $table: Kernels = Kernels {
            isa: Isa::Avx2,
            x_bytes: <$lanes>::X_BYTES,
            lanes: 8,
            wide: &kernels!($function, 2, $rows),
            narrow: &kernels!($function, 1, $rows),
            pair: &[],
            group: &[$function::<1, 2, GROUP>],
        };
    };
    ($function:ident, $vectors:literal, [$($rows:literal),*]) => {
        [$($function::<$rows, $vectors, 1> as TileFn),*]
    };
}

kernels!(F32, f32_tile, Avx2, [1, 2, 3, 4, 5, 6]);
// Widened weights take registers too.
kernels!(BF16_WIDENED, widened_tile, WidenedPairs, [1, 2, 3, 4]);

/// # Safety
/// As for [`dot::run`].
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn dots(job: &dot::Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dot::run::<Avx2>(job) }
}

/// Writes the elements of eight rows of one length step by step, `width` words from step to step,
/// for as many whole groups of eight steps as there are; returns how many steps these are.
#[target_feature(enable = "avx2,fma")]
pub(crate) fn interleave(rows: [&[f32]; 8], width: usize, words: &mut [f32]) -> usize {
    let whole = rows.iter().map(|row| row.len()).min().unwrap_or(0) / 8 * 8;
    assert!(whole == 0 || words.len() >= (whole - 1) * width + 8, "room for eight rows");
    for step in (0..whole).step_by(8) {
        // SAFETY: every row has `whole` elements, and `words` as many steps.
        unsafe {
            let r = rows.map(|row| _mm256_loadu_ps(row.as_ptr().add(step)));
            let pairs =
                |i: usize| (_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1]));
            let fours = |i: usize| {
                let ((a, b), (c, d)) = (pairs(i), pairs(i + 2));
                [
                    _mm256_shuffle_ps::<0b0100_0100>(a, c),
                    _mm256_shuffle_ps::<0b1110_1110>(a, c),
                    _mm256_shuffle_ps::<0b0100_0100>(b, d),
                    _mm256_shuffle_ps::<0b1110_1110>(b, d),
                ]
            };
            let (upper, lower) = (fours(0), fours(4));
            for i in 0..4 {
                let to = words.as_mut_ptr().add((step + i) * width);
                _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x20>(upper[i], lower[i]));
                let to = to.add(4 * width);
                _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x31>(upper[i], lower[i]));
            }
        }
    }
    whole
}
