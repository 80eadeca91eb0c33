//! Products of matrices for training, where both factors are new each time: they are packed as they
//! are multiplied.
//!
//! Where an output is small and its sums are long, as those of a weight's gradient are, the sums are
//! cut into pieces of a length that only the shape decides, and the pieces added in order.
//!
//! GFLOP/s on a Zen 4 core that was doing other work too, against the crate `gemm` 0.19 and, where
//! there is one, a [`Linear`](super::Linear) whose weights were packed before:
//!
//! | product                              | here | gemm | Linear |
//! |--------------------------------------|------|------|--------|
//! | 512 × 256 by (256 × 256)ᵀ            | 112  | 107  | 116    |
//! | 64 × 256 by (256 × 256)ᵀ             | 98   | 67   | 116    |
//! | 5,632 × 100 by (256 × 100)ᵀ          | 84   | 83   | 80     |
//! | 60,000 × 602 by (41 × 602)ᵀ          | 75   | 59   | 75     |
//! | (60,000 × 256)ᵀ by 60,000 × 256      | 84   | 89   | –      |
//! | (60,000 × 602)ᵀ by 60,000 × 256      | 90   | 89   | –      |
//! | (60,000 × 3)ᵀ by 60,000 × 64         | 31   | 71   | –      |

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use super::Activation;
use super::blocks;
pub use super::factor::Matrix;
use super::layer::kernels;
use super::panels::{Panels, View};
use super::rows::LayerScratch;
use super::tile::{Kernels, Output, Target};
use crate::detect::{self, Bf16, Cpu, Isa};
use crate::vector::add_scaled;

/// Rows of the left factor that meet all panels before the next ones.
const ROWS_AT_ONCE: usize = 96;
/// Elements of the inner dimension that are packed at a time.
const INNER_AT_ONCE: usize = 1024;
/// With this many blocks of rows, the rows are enough for threads to share.
const ROWS_MANY: usize = 16 * ROWS_AT_ONCE;
/// Into how many pieces long sums are cut at most, how long these are at least, and how many
/// elements all of their outputs together may have.
const PIECES_MAX: usize = 16;
const PIECE_MIN: usize = 1024;
const PIECES_ELEMENTS: usize = 1 << 21;
/// Elements of both factors that a piece of a long sum packs at once: they stay in the second-level
/// cache, beside the output.
const PACKED: usize = 1 << 18;
/// Elements of an output to which the pieces are added at a time.
const ADDED_AT_ONCE: usize = 1 << 14;
/// For no more rows than this the right factor is read where it lies: packing would take longer.
const ROWS_FEW: usize = 14;
/// Fewer multiplications than this are done in the calling thread.
const PARALLEL_MIN: usize = 1 << 20;

/// `out = a · b`, with `bias` added to every row; or that is added to what `out` holds.
///
/// # Panics
/// If the shapes do not fit each other, the bias or `out`.
pub fn product(a: Matrix, b: Matrix, bias: Option<&[f32]>, out: &mut [f32], accumulate: bool) {
    product_by(detect::cpu().isa, a, b, bias, out, accumulate);
}

/// [`product`] by kernels of no more than this instruction set.
pub fn product_by(
    isa: Isa,
    a: Matrix,
    b: Matrix,
    bias: Option<&[f32]>,
    out: &mut [f32],
    accumulate: bool,
) {
    let ((rows, inner), (b_rows, cols)) = (a.shape(), b.shape());
    assert_eq!(inner, b_rows, "a product of {rows} × {inner} and {b_rows} × {cols}");
    assert_eq!(Some(out.len()), rows.checked_mul(cols), "elements of a {rows} × {cols} product");
    assert!(bias.is_none_or(|bias| bias.len() == cols), "a bias of {cols} columns");
    if out.is_empty() {
        return;
    }
    let cpu = Cpu { isa: isa.lowered(), bf16: Bf16::Emulated };
    let Some((_, kernels)) = kernels(false, cpu) else {
        return plain(a, b, bias, out, accumulate);
    };
    let mut padded = bias.map_or_else(|| vec![0.0; cols], <[f32]>::to_vec);
    padded.resize(cols.next_multiple_of(2 * kernels.lanes), 0.0);
    let work = rows.saturating_mul(cols).saturating_mul(inner);
    let par = rayon::current_num_threads() > 1 && work >= PARALLEL_MIN;
    let product = Product { a, b, kernels, cols, par };
    let pieces = pieces(rows, inner, cols);
    if pieces > 1 {
        product.by_pieces(pieces, inner, &padded, out, accumulate);
    } else {
        product.compute(0..inner, INNER_AT_ONCE, &padded, out, accumulate);
    }
}

/// How many pieces the inner dimension is cut into. The shape alone decides, not the threads.
fn pieces(rows: usize, inner: usize, cols: usize) -> usize {
    if rows >= ROWS_MANY {
        return 1;
    }
    (inner / PIECE_MIN).min(PIECES_ELEMENTS / (rows * cols)).clamp(1, PIECES_MAX)
}

#[derive(Clone, Copy)]
struct Product<'a> {
    a: Matrix<'a>,
    b: Matrix<'a>,
    kernels: &'static Kernels,
    cols: usize,
    par: bool,
}

/// A thread's memory for packed factors, kept from product to product.
#[derive(Default)]
struct Packed {
    panels: Panels,
    scratch: LayerScratch,
}

thread_local! {
    static PACKED_HERE: Cell<Packed> = Cell::default();
    /// Outputs of pieces: memory that is new at each call would be a fault per page.
    static OUTPUTS_HERE: Cell<Vec<f32>> = Cell::default();
}

impl Product<'_> {
    /// The sums over `inner`, so many elements at a time.
    fn compute(
        &self,
        inner: Range<usize>,
        depth: usize,
        bias: &[f32],
        out: &mut [f32],
        accumulate: bool,
    ) {
        // Taken, not borrowed: waiting for others, this thread may be given another product to do.
        let mut packed = PACKED_HERE.take();
        let zeros = vec![0.0; if inner.len() > depth { bias.len() } else { 0 }];
        let mut from = inner.start;
        loop {
            let to = inner.end.min(from + depth);
            let lanes = self.kernels.lanes;
            let few = out.len() <= ROWS_FEW * self.cols;
            let Packed { panels, scratch } = &mut packed;
            let view = few.then(|| self.b.view(from..to, lanes)).flatten().unwrap_or_else(|| {
                self.b.pack(from..to, self.kernels, panels, self.par);
                panels.view()
            });
            let first = from == inner.start;
            let bias = if first { bias } else { &zeros };
            self.slab(from..to, &view, scratch, bias, out, accumulate || !first);
            from = to;
            if from == inner.end {
                break;
            }
        }
        PACKED_HERE.set(packed);
    }

    /// All rows against the panels of `inner`.
    fn slab(
        &self,
        inner: Range<usize>,
        panels: &View,
        scratch: &mut LayerScratch,
        bias: &[f32],
        out: &mut [f32],
        accumulate: bool,
    ) {
        let rows = out.len() / self.cols;
        let block = |first: usize, out: &mut [f32], scratch: &mut LayerScratch| {
            let rows = first..first + out.len() / self.cols;
            let x = self.a.steps(rows, inner.clone(), panels, self.kernels, scratch);
            let y = Output::F32 { to: out.as_mut_ptr(), stride: self.cols };
            let (columns, activation) = (self.cols, Activation::None);
            let target = Target { y, columns, activation, accumulate };
            // SAFETY: the kernels are those of this processor, x has the steps of the panels, and
            // `out` the rows of x.
            unsafe { blocks::run(self.kernels, &x, panels, bias, &target) }
        };
        if !self.par {
            for (i, out) in out.chunks_mut(ROWS_AT_ONCE * self.cols).enumerate() {
                block(i * ROWS_AT_ONCE, out, scratch);
            }
            return;
        }
        let tasks = 4 * rayon::current_num_threads();
        let together =
            rows.div_ceil(tasks).next_multiple_of(blocks::rows_max(panels, self.kernels));
        let together = together.min(ROWS_AT_ONCE);
        out.par_chunks_mut(together * self.cols).enumerate().for_each(|(i, out)| {
            let mut packed = PACKED_HERE.take();
            block(i * together, out, &mut packed.scratch);
            PACKED_HERE.set(packed);
        });
    }

    /// Each piece into an output of its own; the first into `out`, to which the others are added.
    fn by_pieces(
        &self,
        pieces: usize,
        inner: usize,
        bias: &[f32],
        out: &mut [f32],
        accumulate: bool,
    ) {
        let rows = out.len() / self.cols;
        let depth = (PACKED / (rows + self.cols)).clamp(64, INNER_AT_ONCE);
        let range = |piece: usize| inner * piece / pieces..inner * (piece + 1) / pieces;
        let zeros = vec![0.0; bias.len()];
        let alone = Self { par: false, ..*self };
        let of = |piece: usize, out: &mut [f32]| {
            let bias = if piece == 0 { bias } else { &zeros };
            alone.compute(range(piece), depth, bias, out, piece == 0 && accumulate);
        };
        let len = out.len();
        let mut outputs = OUTPUTS_HERE.take();
        let room = if self.par { len * (pieces - 1) } else { len };
        outputs.resize(room.max(outputs.len()), 0.0);
        if self.par {
            let others = outputs[..room].par_chunks_mut(len).enumerate();
            let first = rayon::iter::once((0, &mut *out));
            let all = first.chain(others.map(|(i, other)| (i + 1, other)));
            all.for_each(|(piece, out)| of(piece, out));
            let parts = out.par_chunks_mut(ADDED_AT_ONCE).enumerate();
            parts.for_each(|(i, part)| {
                for other in outputs[..room].chunks_exact(len) {
                    add_scaled(part, 1.0, &other[i * ADDED_AT_ONCE..][..part.len()]);
                }
            });
        } else {
            of(0, out);
            for piece in 1..pieces {
                of(piece, &mut outputs[..len]);
                add_scaled(out, 1.0, &outputs[..len]);
            }
        }
        OUTPUTS_HERE.set(outputs);
    }
}

/// The plain truth: one sum after the other.
fn plain(a: Matrix, b: Matrix, bias: Option<&[f32]>, out: &mut [f32], accumulate: bool) {
    let (inner, cols) = b.shape();
    for (row, out) in out.chunks_mut(cols).enumerate() {
        let mut sums = bias.map_or_else(|| vec![0.0; cols], <[f32]>::to_vec);
        for k in 0..inner {
            let x = a.at(row, k);
            for (col, sum) in sums.iter_mut().enumerate() {
                *sum += x * b.at(k, col);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = if accumulate { *out + sum } else { sum };
        }
    }
}
