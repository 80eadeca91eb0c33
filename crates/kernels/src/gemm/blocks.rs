//! Rows of x against panels of weights, block by block.

use super::panels::View;
use super::tile::{GROUP, Kernels, Target, Tile, TileFn};

/// With fewer steps than this the writing of a block takes long beside its arithmetic, and smaller
/// blocks overlap the two better (13 inputs: 103 against 94 GFLOP/s).
const STEPS_FEW: usize = 64;
const ROWS_FEW: usize = 8;

/// Rows of x as the blocks want them.
pub(crate) struct BlockInput {
    pub x: *const u8,
    pub rows: usize,
    pub layout: Layout,
}

#[derive(Clone, Copy)]
pub(crate) enum Layout {
    /// A row's steps one behind the other, and so many bytes from row to row.
    Rows { stride: usize },
    /// One of so many [blocks](split) behind the other; within it the first step of all of its rows, so many
    /// bytes from there the second, and so on.
    Steps { pitch: usize, blocks: usize },
}

/// The most rows of a block against wide panels.
pub(crate) fn rows_max(panels: &View, kernels: &Kernels) -> usize {
    at_most(if pairs(panels, kernels) > 0 { kernels.pair } else { kernels.wide }, panels.steps)
}

fn at_most(kernels: &[TileFn], steps: usize) -> usize {
    if steps < STEPS_FEW { ROWS_FEW.min(kernels.len()) } else { kernels.len() }
}

/// How many pairs of panels are taken two at a time.
fn pairs(panels: &View, kernels: &Kernels) -> usize {
    let wide = panels.count - usize::from(panels.last < panels.width);
    if kernels.pair.is_empty() || panels.steps < STEPS_FEW { 0 } else { wide / 2 }
}

/// The first row of a block, or the end of the one before it. Blocks are of nearly equal size: none
/// is so small that it waits for its own sums.
pub(crate) fn split(rows: usize, blocks: usize, block: usize) -> usize {
    rows * block / blocks
}

/// All blocks, written to `target`, which is that of the first.
///
/// # Safety
/// The processor can run the kernels; `x` holds rows of as many steps as the panels; the bias is as
/// long as the panels are wide; there is room for the rows in the target's matrix.
pub(crate) unsafe fn run(
    kernels: &Kernels,
    x: &BlockInput,
    panels: &View,
    bias: &[f32],
    target: &Target,
) {
    let pairs = pairs(panels, kernels);
    let mut panel = 0;
    while panel < panels.count {
        let column = panel * panels.width;
        let left = target.columns - column;
        let (run, together) = if x.rows <= kernels.group.len() && left >= GROUP * panels.width {
            (kernels.group, GROUP)
        } else if panel < 2 * pairs {
            (kernels.pair, 2)
        } else if panel + 1 == panels.count && panels.last < panels.width {
            (kernels.narrow, 1)
        } else {
            (kernels.wide, 1)
        };
        let columns = (together * panels.width).min(left);
        let (words, panel_step, panel_stride) = panels.panel(panel);
        let blocks = match x.layout {
            Layout::Rows { .. } => x.rows.div_ceil(at_most(run, panels.steps)),
            Layout::Steps { blocks, .. } => blocks,
        };
        let next = next_panels(panels, panel + together, together, blocks);
        for block in 0..blocks {
            let first = split(x.rows, blocks, block);
            let rows = split(x.rows, blocks, block + 1) - first;
            let (start, x_stride, x_step) = match x.layout {
                Layout::Rows { stride } => (first * stride, stride, kernels.x_bytes),
                Layout::Steps { pitch, .. } => (block * panels.steps * pitch, 4, pitch),
            };
            // SAFETY: the addresses are of rows and columns that exist, by the caller's promise.
            unsafe {
                run[rows - 1](&Tile {
                    x: x.x.add(start),
                    x_stride,
                    x_step,
                    panel: words.as_ptr(),
                    panel_step,
                    panel_stride,
                    steps: panels.steps,
                    bias: bias[column..].as_ptr(),
                    target: Target { y: target.y.at(first, column), columns, ..*target },
                    next: next.0.wrapping_add(block * panels.steps * next.1),
                    next_step: next.1,
                });
            }
        }
        panel += together;
    }
}

/// Where some panels begin, and how many bytes of them each step of so many blocks before them fetches. Weights
/// that exceed the second-level cache would keep the first block of each panel waiting. One block against several
/// panels reads as fast as it could fetch.
fn next_panels(panels: &View, panel: usize, count: usize, blocks: usize) -> (*const u8, usize) {
    if panel >= panels.count || (blocks == 1 && count > 1) || panels.rows.is_some() {
        return (panels.words.as_ptr().cast(), 0);
    }
    let (words, width, _) = panels.panel(panel);
    let count = count.min(panels.count - panel);
    (words.as_ptr().cast(), (count * width * size_of::<u32>()).div_ceil(blocks))
}
