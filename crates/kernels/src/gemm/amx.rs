//! bf16 on tiles: 32 rows against 32 columns, in four accumulators of 16 by 16.
//!
//! Written for hardware with AMX and checked only there: the property tests of `gemm` run this
//! variant where the processor has it, and say that they skip it elsewhere.

use std::arch::asm;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::Activation;
use super::step::Step as _;
use super::tile::{Output, Target, Tile, finish};
use crate::simd::{Avx512, Lanes as _};

/// Rows and columns of a block.
pub(crate) const ROWS: usize = 32;
pub(crate) const COLUMNS: usize = 32;
/// Steps (pairs of bf16) that a tile holds in a row.
pub(crate) const STEPS: usize = 16;
/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
const TILE_BYTES: usize = 64;

/// Tiles are shaped for the current thread while this lives. Released, so that the system need
/// not save them at each switch of threads.
pub(crate) struct Shaped {
    rows: usize,
    /// Tiles are a thread's own: this stays where it was made.
    on_this_thread: PhantomData<*const ()>,
}

/// The layout that `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shaped {
    /// For blocks of `rows` (1 to [`ROWS`]). Tiles 0–3 accumulate (0 and 1 the upper rows), 4 and
    /// 5 are rows of x, 6 and 7 weights. Up to 16 rows, lower tiles are not used.
    ///
    /// # Safety
    /// The processor has AMX, and the system lets this process use it.
    pub unsafe fn new(rows: usize) -> Self {
        assert!((1..=ROWS).contains(&rows), "a block of tiles has 1 to 32 rows");
        let upper = rows.min(TILE_ROWS) as u8;
        // A tile of no rows is not a shape.
        let lower = if rows > TILE_ROWS { (rows - TILE_ROWS) as u8 } else { upper };
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..8].fill(TILE_BYTES as u16);
        config.rows[..8].copy_from_slice(&[
            upper,
            upper,
            lower,
            lower,
            upper,
            lower,
            STEPS as u8,
            STEPS as u8,
        ]);
        // SAFETY: the instruction reads the 64 bytes of `config`, which describe palette 1.
        unsafe {
            asm!("ldtilecfg [{config}]", config = in(reg) &raw const config,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags));
        }
        Self { rows, on_this_thread: PhantomData }
    }

    /// Some rows of x against one panel, then bias, activation and conversion into y: as many rows as
    /// tiles are shaped for, or as one tile of them has.
    ///
    /// # Safety
    /// The tile's pointers hold what its fields say, its steps are a multiple of [`STEPS`] above
    /// zero, and its panel is [`COLUMNS`] wide, as is the bias.
    pub unsafe fn block(&self, rows: usize, tile: &Tile) {
        let mut sums = Sums([const { MaybeUninit::uninit() }; ROWS * COLUMNS]);
        let start: *mut f32 = sums.0.as_mut_ptr().cast();
        // SAFETY: the caller's promise; `sums` has room for four tiles, as rows of 128 bytes, of which
        // those of the block are written.
        unsafe {
            if rows <= TILE_ROWS {
                assert_eq!(rows, self.rows.min(TILE_ROWS), "rows of a tile");
                upper(tile, start);
            } else {
                assert_eq!(rows, self.rows, "rows of two tiles");
                upper_and_lower(tile, start);
            }
            write(tile, std::slice::from_raw_parts_mut(start, rows * COLUMNS));
        }
    }
}

/// The sums of the upper rows.
///
/// # Safety
/// As for [`Shaped::block`], and `sums` has room for two tiles.
unsafe fn upper(tile: &Tile, sums: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{x} + {x_stride}*1]",
            "tileloadd tmm6, [{panel} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{panel} + {row}*1 + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {x}, 64",
            "add {panel}, 2048",
            "dec {count}",
            "jnz 2b",
            "tilestored [{sums} + {row}*1], tmm0",
            "tilestored [{sums} + {row}*1 + 64], tmm1",
            x = inout(reg) tile.x => _,
            x_stride = in(reg) tile.x_stride,
            panel = inout(reg) tile.panel => _,
            row = in(reg) COLUMNS * 4,
            count = inout(reg) tile.steps / STEPS => _,
            sums = in(reg) sums,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// The sums of upper and lower rows.
///
/// # Safety
/// As for [`Shaped::block`], and `sums` has room for four tiles.
unsafe fn upper_and_lower(tile: &Tile, sums: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{upper} + {x_stride}*1]",
            "tileloadd tmm6, [{panel} + {row}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{panel} + {row}*1 + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{lower} + {x_stride}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {upper}, 64",
            "add {lower}, 64",
            "add {panel}, 2048",
            "dec {count}",
            "jnz 2b",
            "tilestored [{sums} + {row}*1], tmm0",
            "tilestored [{sums} + {row}*1 + 64], tmm1",
            "tilestored [{sums_lower} + {row}*1], tmm2",
            "tilestored [{sums_lower} + {row}*1 + 64], tmm3",
            upper = inout(reg) tile.x => _,
            lower = inout(reg) tile.x.add(TILE_ROWS * tile.x_stride) => _,
            x_stride = in(reg) tile.x_stride,
            panel = inout(reg) tile.panel => _,
            row = in(reg) COLUMNS * 4,
            count = inout(reg) tile.steps / STEPS => _,
            sums = in(reg) sums,
            sums_lower = in(reg) sums.add(TILE_ROWS * COLUMNS),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Bias, activation and conversion of sums, [`COLUMNS`] a row, into y.
///
/// # Safety
/// y holds as many rows as `sums`, and the bias is as wide; every processor with AMX has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn write(tile: &Tile, sums: &mut [f32]) {
    let Target { y, columns, activation, .. } = tile.target;
    let is_plain = columns == COLUMNS && activation != Activation::Sigmoid;
    let lowest = if activation == Activation::Relu { 0.0f32 } else { f32::NEG_INFINITY };
    // SAFETY: the caller's promise.
    unsafe {
        let floor = Avx512::splat(lowest);
        for (r, row) in sums.chunks_exact_mut(COLUMNS).enumerate() {
            for column in (0..COLUMNS).step_by(Avx512::LANES) {
                let bias = Avx512::load(tile.bias.add(column));
                let own = row.as_mut_ptr().add(column);
                let sum = Avx512::add(Avx512::load(own), bias);
                match y {
                    _ if !is_plain => Avx512::store(own, sum),
                    Output::F32 { to, stride } => {
                        Avx512::store(to.add(r * stride + column), Avx512::max(floor, sum));
                    }
                    Output::Bf16 { to, stride } => {
                        Avx512::store_bf16(to.add(r * stride + column), Avx512::max(floor, sum));
                    }
                }
            }
        }
        if !is_plain {
            finish(&tile.target, sums, COLUMNS);
        }
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        // SAFETY: tiles were configured by `new`, so the processor has them.
        unsafe {
            asm!("tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem, preserves_flags));
        }
    }
}

#[repr(align(64))]
struct Sums([MaybeUninit<f32>; ROWS * COLUMNS]);
