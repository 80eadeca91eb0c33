//! bf16 on tiles: 32 rows against 32 columns, in four accumulators of 16 by 16.
//!
//! Written for hardware with AMX and checked only there: the property tests of `gemm` run this
//! variant where the processor has it, and say that they skip it elsewhere.

use std::arch::asm;
use std::marker::PhantomData;

use super::tile::{Target, Tile, finish};

/// Rows and columns of a block.
pub(crate) const ROWS: usize = 32;
pub(crate) const COLUMNS: usize = 32;
/// Steps (pairs of bf16) that a tile holds in a row.
pub(crate) const STEPS: usize = 16;
const TILE_ROWS: usize = 16;
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
    /// 5 are rows of x, 6 and 7 weights. Up to 16 rows, lower tiles repeat the upper ones.
    ///
    /// # Safety
    /// The processor has AMX, and the system lets this process use it.
    pub unsafe fn new(rows: usize) -> Self {
        assert!((1..=ROWS).contains(&rows), "a block of tiles has 1 to 32 rows");
        let upper = rows.min(TILE_ROWS) as u8;
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

    /// The block's rows of x against one panel, then bias, activation and conversion into y.
    ///
    /// # Safety
    /// The tile's pointers hold what its fields say, its steps are a multiple of [`STEPS`] above
    /// zero, and its panel is [`COLUMNS`] wide, as is the bias.
    pub unsafe fn block(&self, tile: &Tile) {
        let mut sums = Sums([0.0; ROWS * COLUMNS]);
        let lower_from = if self.rows > TILE_ROWS { TILE_ROWS } else { 0 };
        // SAFETY: the caller's promise on x and the panel; `sums` has room for four tiles, as
        // rows of 128 bytes.
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
                lower = inout(reg) tile.x.add(lower_from * tile.x_stride) => _,
                x_stride = in(reg) tile.x_stride,
                panel = inout(reg) tile.panel => _,
                row = in(reg) COLUMNS * 4,
                count = inout(reg) tile.steps / STEPS => _,
                sums = in(reg) sums.0.as_mut_ptr(),
                sums_lower = in(reg) sums.0.as_mut_ptr().add(lower_from * COLUMNS),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
        let sums = &mut sums.0[..self.rows * COLUMNS];
        // SAFETY: the bias is as wide as the panel, by the caller's promise.
        let bias = unsafe { std::slice::from_raw_parts(tile.bias, COLUMNS) };
        for row in sums.chunks_exact_mut(COLUMNS) {
            for (sum, bias) in row.iter_mut().zip(bias) {
                *sum += bias;
            }
        }
        // SAFETY: y has the block's rows, by the caller's promise.
        unsafe { finish_avx512(&tile.target, sums) }
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
struct Sums([f32; ROWS * COLUMNS]);

/// # Safety
/// As for [`finish`]; every processor with AMX has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn finish_avx512(target: &Target, sums: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { finish(target, sums, COLUMNS) }
}
