//! The one micro-kernel behind every vector variant: a block of outputs held in registers while
//! the inputs pass by.
//!
//! Weights are seen as 32-bit *steps*: one fp32, or two neighbouring bf16. Inputs are seen in the same way, but may be
//! widened. An output is the sum over its steps in order, in one accumulator that starts at the bias, whatever the
//! block it is computed in: so a row's result does not depend on the rows beside it.

use std::mem::MaybeUninit;

use half::bf16;

use super::Activation;
use super::rows::sealed::Element as _;
use super::step::{Step, Vector};
use crate::detect::Isa;
use crate::fetch;
use crate::simd::Lanes;

/// The operands of one block: some rows of x against one panel of weights, or several.
pub(crate) struct Tile {
    pub x: *const u8,
    /// Bytes from row to row.
    pub x_stride: usize,
    /// Bytes from step to step.
    pub x_step: usize,
    pub panel: *const u32,
    /// Words from step to step of a panel, and from panel to panel.
    pub panel_step: usize,
    pub panel_stride: usize,
    pub steps: usize,
    pub bias: *const f32,
    pub target: Target,
    /// What will be read next, and how many bytes of it are fetched per step.
    pub next: *const u8,
    pub next_step: usize,
}

/// Where finished sums go.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub y: Output,
    /// How many of the block's columns exist.
    pub columns: usize,
    pub activation: Activation,
    /// Sums are added to what y holds. Only to fp32, and with no activation.
    pub accumulate: bool,
}

#[derive(Clone, Copy)]
pub(crate) enum Output {
    F32 { to: *mut f32, stride: usize },
    Bf16 { to: *mut bf16, stride: usize },
}

impl Output {
    /// # Safety
    /// The element lies within the matrix.
    pub(crate) unsafe fn at(self, row: usize, column: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F32 { to, stride } => Self::F32 { to: to.add(row * stride + column), stride },
                Self::Bf16 { to, stride } => {
                    Self::Bf16 { to: to.add(row * stride + column), stride }
                }
            }
        }
    }
}

pub(crate) type TileFn = unsafe fn(&Tile);

/// A family of blocks: the function for `r` rows is at `r - 1`.
pub(crate) struct Kernels {
    pub isa: Isa,
    pub lanes: usize,
    /// Bytes of x per step: 8 where two bf16 are widened beforehand. A step would widen them anew for every panel.
    pub x_bytes: usize,
    /// Against panels of twice `lanes` columns.
    pub wide: &'static [TileFn],
    /// Against panels of `lanes` columns.
    pub narrow: &'static [TileFn],
    /// Against two wide panels, so that a value of x is loaded for twice as many products. Empty where
    /// registers are too few, or where it was not measured.
    pub pair: &'static [TileFn],
    /// Against [`GROUP`] wide panels: a row or two alone would wait for their own sums.
    pub group: &'static [TileFn],
}

pub(crate) const GROUP: usize = 4;
const LINE_BYTES: usize = 64;

/// `ROWS` rows against `PANELS` panels of `VECTORS` vectors.
///
/// # Safety
/// The processor has the features of `S`; the tile's pointers hold what its fields say.
#[inline(always)]
pub(crate) unsafe fn run<S: Step, const ROWS: usize, const VECTORS: usize, const PANELS: usize>(
    tile: &Tile,
) {
    // SAFETY: every address is within x, the panels, the bias or y by the caller's promise.
    unsafe {
        let mut acc = [[[S::L::load(tile.bias); VECTORS]; PANELS]; ROWS];
        for p in 0..PANELS {
            for v in 0..VECTORS {
                let bias = S::L::load(tile.bias.add((p * VECTORS + v) * S::L::LANES));
                for row in &mut acc {
                    row[p][v] = bias;
                }
            }
        }
        let mut panel = tile.panel;
        let mut x = tile.x;
        let mut next = tile.next;
        // As many as one panel has. Against several panels one per step is all that pays.
        let lines = if PANELS == 1 { (VECTORS * S::L::LANES * 4).div_ceil(LINE_BYTES) } else { 1 };
        for _ in 0..tile.steps {
            for line in 0..lines {
                fetch::line(next.wrapping_add(line * LINE_BYTES));
            }
            next = next.wrapping_add(tile.next_step);
            let mut weights = [[S::L::load(panel.cast()); VECTORS]; PANELS];
            for (p, weights) in weights.iter_mut().enumerate() {
                for (v, weights) in weights.iter_mut().enumerate() {
                    *weights =
                        S::L::load(panel.add(p * tile.panel_stride + v * S::L::LANES).cast());
                }
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = S::x(x.add(r * tile.x_stride));
                for (acc, weights) in acc.iter_mut().flatten().zip(weights.as_flattened()) {
                    *acc = S::step(*acc, x, *weights);
                }
            }
            panel = panel.add(tile.panel_step);
            x = x.add(tile.x_step);
        }
        write::<S, ROWS, VECTORS, PANELS>(&tile.target, &acc);
    }
}

/// Whole vectors of fp32 straight to y, all else through a buffer.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn write<S: Step, const ROWS: usize, const VECTORS: usize, const PANELS: usize>(
    target: &Target,
    acc: &[[[Vector<S>; VECTORS]; PANELS]; ROWS],
) {
    const BUFFER: usize = 14 * 32;
    const { assert!(ROWS * PANELS * VECTORS * S::L::LANES <= BUFFER) };
    let lanes = S::L::LANES;
    let width = PANELS * VECTORS * lanes;
    let plain = target.columns == width && target.activation != Activation::Sigmoid;
    let relu = target.activation == Activation::Relu;
    let lowest = if relu { 0.0f32 } else { f32::NEG_INFINITY };
    // SAFETY: as in `run`; the buffer holds all of the accumulators.
    unsafe {
        let floor = S::L::splat(lowest);
        if let (true, Output::F32 { to, stride }) = (plain, target.y) {
            if target.accumulate {
                each(acc, |r, v, acc| {
                    let to = to.add(r * stride + v * lanes);
                    S::L::store(to, S::L::add(acc, S::L::load(to)));
                });
                return;
            }
            each(acc, |r, v, acc| {
                S::L::store(to.add(r * stride + v * lanes), S::L::max(floor, acc))
            });
            return;
        }
        let mut buffer = [const { MaybeUninit::<f32>::uninit() }; BUFFER];
        let start: *mut f32 = buffer.as_mut_ptr().cast();
        each(acc, |r, v, acc| S::L::store(start.add(r * width + v * lanes), acc));
        // Seen through, the buffer would be optimised away, and what follows would take registers
        // from the accumulators: half the speed.
        let start = std::hint::black_box(start);
        if let (true, Output::Bf16 { to, stride }) = (plain, target.y) {
            for r in 0..ROWS {
                for v in (0..width).step_by(lanes) {
                    let sums = S::L::load(start.add(r * width + v));
                    S::store_bf16(to.add(r * stride + v), S::L::max(floor, sums));
                }
            }
            return;
        }
        finish(target, std::slice::from_raw_parts_mut(start, ROWS * width), width);
    }
}

/// Calls with every accumulator, its row and its place within it.
#[inline(always)]
fn each<V: Copy, const ROWS: usize, const VECTORS: usize, const PANELS: usize>(
    acc: &[[[V; VECTORS]; PANELS]; ROWS],
    mut with: impl FnMut(usize, usize, V),
) {
    for (r, acc) in acc.iter().enumerate() {
        for (v, acc) in acc.as_flattened().iter().enumerate() {
            with(r, v, *acc);
        }
    }
}

/// Activation and conversion of finished sums, `width` a row, into y.
///
/// # Safety
/// y holds as many rows as `sums`.
#[inline(always)]
pub(crate) unsafe fn finish(target: &Target, sums: &mut [f32], width: usize) {
    for (r, sums) in sums.chunks_exact_mut(width).enumerate() {
        let sums = &mut sums[..target.columns];
        target.activation.apply(sums);
        match target.y {
            Output::F32 { to, stride } => {
                // SAFETY: row `r` of y, of which `columns` elements from `to` on exist.
                let y = unsafe { std::slice::from_raw_parts_mut(to.add(r * stride), sums.len()) };
                if target.accumulate {
                    y.iter_mut().zip(sums).for_each(|(y, sum)| *y += *sum);
                } else {
                    y.copy_from_slice(sums);
                }
            }
            Output::Bf16 { to, stride } => {
                // SAFETY: as above.
                let y = unsafe { std::slice::from_raw_parts_mut(to.add(r * stride), sums.len()) };
                for (y, sum) in y.iter_mut().zip(sums) {
                    *y = bf16::narrow(*sum);
                }
            }
        }
    }
}
