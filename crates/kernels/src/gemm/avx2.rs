//! AVX2 and FMA: blocks of up to 6 rows and 16 columns, where 12 of the 16 registers accumulate.

use std::arch::x86_64::*;

use half::bf16;

use super::dot;
use super::lanes::{Dots, Lanes};
use super::tile::{GROUP, Kernels, Tile, TileFn, run};
use crate::detect::Isa;

pub(crate) struct F32x8;
/// Two bf16 a step, as two fp32 of x and a word of weights that is widened here.
struct WidenedPairs;

macro_rules! lanes {
    ($name:ty, $x:ty, $splat:expr, $step:expr) => {
        impl Lanes for $name {
            const LANES: usize = 8;
            type V = __m256;
            type X = $x;
            const X_BYTES: usize = size_of::<$x>() / Self::LANES;
            #[inline(always)]
            unsafe fn load(from: *const u32) -> __m256 {
                // SAFETY: the caller's promise.
                unsafe { _mm256_loadu_ps(from.cast()) }
            }
            #[inline(always)]
            unsafe fn splat(from: *const u32) -> __m256 {
                // SAFETY: the caller's promise.
                unsafe { _mm256_set1_ps(from.cast::<f32>().read_unaligned()) }
            }
            #[inline(always)]
            unsafe fn x(from: *const u8) -> $x {
                // SAFETY: the caller's promise.
                unsafe { $splat(from.cast()) }
            }
            #[inline(always)]
            unsafe fn step(acc: __m256, x: $x, weights: __m256) -> __m256 {
                // SAFETY: the caller's promise.
                unsafe { $step(acc, x, weights) }
            }
            #[inline(always)]
            unsafe fn add(a: __m256, b: __m256) -> __m256 {
                // SAFETY: the caller's promise.
                unsafe { _mm256_add_ps(a, b) }
            }
            #[inline(always)]
            unsafe fn max(floor: __m256, value: __m256) -> __m256 {
                // SAFETY: the caller's promise.
                unsafe { _mm256_max_ps(floor, value) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut f32, value: __m256) {
                // SAFETY: the caller's promise.
                unsafe { _mm256_storeu_ps(to, value) }
            }
            #[inline(always)]
            unsafe fn store_bf16(to: *mut bf16, value: __m256) {
                // SAFETY: the caller's promise.
                unsafe { _mm_storeu_si128(to.cast(), narrow(value)) }
            }
        }
    };
}

lanes!(F32x8, __m256, Self::splat, |acc, x, w| _mm256_fmadd_ps(x, w, acc));
lanes!(
    WidenedPairs,
    [__m256; 2],
    |from: *const u32| [Self::splat(from), Self::splat(from.add(1))],
    |acc, x: [__m256; 2], w| {
        let acc = _mm256_fmadd_ps(x[0], low(w), acc);
        _mm256_fmadd_ps(x[1], high(w), acc)
    }
);

impl Dots for F32x8 {
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> __m256 {
        // SAFETY: the caller's promise; lanes behind `count` are not read.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let wanted = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lane);
            _mm256_maskload_ps(from, wanted)
        }
    }
    #[inline(always)]
    unsafe fn sum(value: __m256) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn sums([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        // SAFETY: the caller's promise; four fp32 are 16 bytes.
        unsafe {
            let abcd = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let one = _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
            std::mem::transmute::<__m128, [f32; 4]>(one)
        }
    }
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

kernels!(F32, f32_tile, F32x8, [1, 2, 3, 4, 5, 6]);
// Widened weights take registers too.
kernels!(BF16_WIDENED, widened_tile, WidenedPairs, [1, 2, 3, 4]);

/// # Safety
/// As for [`dot::run`].
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn dots(job: &dot::Job<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dot::run::<F32x8>(job) }
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
