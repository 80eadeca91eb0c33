//! The factors of a product, and how kernels want them.

use std::ops::Range;

use rayon::prelude::*;

use super::blocks::{self, BlockInput, Layout};
use super::panels::{Panels, View};
use super::rows::{LayerScratch, competes};
use super::stride_for;
use super::tile::Kernels;
use crate::compiled::compiled;
use crate::fetch;

/// A matrix to read: rows of a slice or rows chosen from a table, as they are or transposed.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    /// As stored, whatever `transposed` says.
    rows: usize,
    cols: usize,
    transposed: bool,
    ids: Option<&'a [u32]>,
}

/// Elements that are copied at once: a copy of a known length is an instruction or two.
const PIECE: usize = 8;
/// Steps that are packed for all blocks or panels before the next ones: their rows are read whole,
/// while they are in the first-level cache.
const STEPS_AT_ONCE: usize = 16;

impl<'a> Matrix<'a> {
    /// # Panics
    /// If `data` is not `rows` times `cols` long.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(
            Some(data.len()),
            rows.checked_mul(cols),
            "elements of a {rows} × {cols} matrix"
        );
        Self { data, rows, cols, transposed: false, ids: None }
    }

    /// The matrix whose row `i` is row `ids[i]` of a table of rows of `cols`.
    ///
    /// # Panics
    /// If the table is not whole rows, or an id is not one of them.
    pub fn rows_of(table: &'a [f32], cols: usize, ids: &'a [u32]) -> Self {
        assert!(cols == 0 || table.len().is_multiple_of(cols), "a table of rows of {cols}");
        let count = table.len() / cols.max(1);
        let fine = cols == 0 || ids.iter().all(|id| (*id as usize) < count);
        assert!(fine, "an id beyond {count} rows");
        Self { data: table, rows: ids.len(), cols, transposed: false, ids: Some(ids) }
    }

    /// The transposed matrix.
    pub fn t(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Rows and columns, as the product sees them.
    pub fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }

    /// Calls for a part of some stored rows that will be packed soon, if there are so many.
    #[inline(always)]
    fn fetch(&self, rows: Range<usize>, columns: Range<usize>) {
        for row in rows.start..self.rows.min(rows.end) {
            fetch::far(&self.row(row)[columns.start..columns.end]);
        }
    }

    /// A row as stored.
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [f32] {
        let row = self.ids.map_or(row, |ids| ids[row] as usize);
        &self.data[row * self.cols..][..self.cols]
    }

    pub(super) fn at(&self, row: usize, col: usize) -> f32 {
        if self.transposed { self.row(col)[row] } else { self.row(row)[col] }
    }

    /// As the left factor: these rows, and of them the elements `inner`, for use against these panels.
    /// What is returned points into the matrix or the scratch.
    pub(super) fn steps(
        &self,
        rows: Range<usize>,
        inner: Range<usize>,
        panels: &View,
        kernels: &Kernels,
        scratch: &mut LayerScratch,
    ) -> BlockInput {
        let count = rows.len();
        if self.transposed {
            let rows_max = blocks::rows_max(panels, kernels);
            let (pitch, blocks) = (rows_max.next_multiple_of(PIECE), count.div_ceil(rows_max));
            let len = blocks * inner.len() * pitch;
            let copy = bytemuck::cast_slice_mut(scratch.bytes(len * 4));
            copy_columns(kernels.isa, *self, rows, inner, blocks, pitch, copy);
            let layout = Layout::Steps { pitch: pitch * 4, blocks };
            return BlockInput { x: copy.as_ptr().cast(), rows: count, layout };
        }
        // Rows that compete for cache cost more than a copy if they are read often.
        let slow = competes(self.cols * 4) && count > 4 && panels.count > 4;
        if self.ids.is_none() && !slow {
            let start = self.data[rows.start * self.cols + inner.start..].as_ptr();
            return BlockInput {
                x: start.cast(),
                rows: count,
                layout: Layout::Rows { stride: self.cols * 4 },
            };
        }
        let stride = stride_for::<f32>(inner.len());
        let copy: &mut [f32] = bytemuck::cast_slice_mut(scratch.bytes(count * stride * 4));
        for (row, copy) in rows.zip(copy.chunks_exact_mut(stride)) {
            self.fetch(row + STEPS_AT_ONCE..row + STEPS_AT_ONCE + 1, inner.clone());
            copy[..inner.len()].copy_from_slice(&self.row(row)[inner.clone()]);
        }
        BlockInput {
            x: copy.as_ptr().cast(),
            rows: count,
            layout: Layout::Rows { stride: stride * 4 },
        }
    }

    /// As the right factor, unpacked: the rows `inner` as panels, if they can be read so.
    pub(super) fn view(&self, inner: Range<usize>, lanes: usize) -> Option<View<'a>> {
        let rows_apart = self.transposed || self.ids.is_some();
        if rows_apart || inner.is_empty() || !self.cols.is_multiple_of(lanes) {
            return None;
        }
        let (count, rest) = (self.cols.div_ceil(2 * lanes), self.cols % (2 * lanes));
        let last = if rest == 0 { 2 * lanes } else { rest };
        let words = bytemuck::cast_slice(&self.data[inner.start * self.cols..]);
        let (steps, rows) = (inner.len(), Some(self.cols));
        Some(View { words, width: 2 * lanes, last, count, steps, rows })
    }

    /// As the right factor: the rows `inner`, in panels.
    pub(super) fn pack(
        &self,
        inner: Range<usize>,
        kernels: &Kernels,
        panels: &mut Panels,
        par: bool,
    ) {
        let Kernels { isa, lanes, .. } = *kernels;
        let columns = self.shape().1;
        panels.resize(inner.len(), columns, 2 * lanes, lanes);
        let Panels { steps, width, count, last, .. } = *panels;
        let words: &mut [f32] = bytemuck::cast_slice_mut(panels.words_mut());
        let pack = |panel: usize, words: &mut [f32], some: Range<usize>| {
            let columns = panel * width..columns.min((panel + 1) * width);
            let width = if panel + 1 == count { last } else { width };
            let words = &mut words[some.start * width..some.end * width];
            let inner = inner.start + some.start..inner.start + some.end;
            if self.transposed {
                self.pack_columns(columns, inner, width, words);
            } else {
                pack_rows(isa, *self, columns, inner, width, words);
            }
        };
        if par && steps > 0 {
            let panels = words.par_chunks_mut(width * steps).enumerate();
            return panels.for_each(|(panel, words)| pack(panel, words, 0..steps));
        }
        for first in (0..steps).step_by(STEPS_AT_ONCE) {
            if !self.transposed {
                let next = inner.start + first + STEPS_AT_ONCE;
                self.fetch(next..next + STEPS_AT_ONCE, 0..columns);
            }
            for (panel, words) in words.chunks_mut(width * steps).enumerate() {
                pack(panel, words, first..steps.min(first + STEPS_AT_ONCE));
            }
        }
    }

    fn pack_columns(
        &self,
        columns: Range<usize>,
        inner: Range<usize>,
        width: usize,
        words: &mut [f32],
    ) {
        if columns.len() < width {
            words.fill(0.0);
        }
        for some in columns.clone().step_by(PIECE) {
            let words = &mut words[some - columns.start..];
            let rows = std::array::from_fn::<_, PIECE, _>(|i| {
                (some + i < columns.end).then(|| &self.row(some + i)[inner.clone()])
            });
            interleave(rows, width, words);
        }
    }
}

compiled! {
    /// Columns of the stored rows `inner`, block by block, `pitch` elements a stored row.
    fn copy_columns(
        matrix: Matrix, columns: Range<usize>, inner: Range<usize>, blocks: usize, pitch: usize,
        copy: &mut [f32]
    ) = copy_columns_plain
}

#[inline(always)]
fn copy_columns_plain(
    matrix: Matrix,
    columns: Range<usize>,
    inner: Range<usize>,
    blocks: usize,
    pitch: usize,
    copy: &mut [f32],
) {
    let steps = inner.len();
    let mut some = 0;
    while some < steps {
        let next = inner.start + some + STEPS_AT_ONCE;
        matrix.fetch(next..next + STEPS_AT_ONCE, columns.start..columns.end);
        for block in 0..blocks {
            let first = columns.start + blocks::split(columns.len(), blocks, block);
            let end = columns.start + blocks::split(columns.len(), blocks, block + 1);
            let copy = &mut copy[block * steps * pitch..][..steps * pitch];
            for step in some..steps.min(some + STEPS_AT_ONCE) {
                let row = &matrix.row(inner.start + step)[first..];
                let copy = &mut copy[step * pitch..][..pitch];
                // Columns behind the block's are copied too: they do no harm.
                match row.get(..pitch) {
                    Some(row) => copy_pieces(copy, row),
                    None => copy[..end - first].copy_from_slice(&row[..end - first]),
                }
            }
        }
        some += STEPS_AT_ONCE;
    }
}

compiled! {
    /// Of the stored rows `inner` these columns, `width` elements per row, with zeros behind.
    fn pack_rows(
        matrix: Matrix, columns: Range<usize>, inner: Range<usize>, width: usize, words: &mut [f32]
    ) = pack_rows_plain
}

#[inline(always)]
fn pack_rows_plain(
    matrix: Matrix,
    columns: Range<usize>,
    inner: Range<usize>,
    width: usize,
    words: &mut [f32],
) {
    let used = columns.len();
    for (step, words) in words.chunks_exact_mut(width).enumerate() {
        let row = &matrix.row(inner.start + step)[columns.start..columns.end];
        copy_pieces(&mut words[..used], row);
        words[used..].fill(0.0);
    }
}

/// Writes the first elements of all rows, those that are missing as zeros; `width` behind, their
/// second elements; and so on.
fn interleave(rows: [Option<&[f32]>; PIECE], width: usize, words: &mut [f32]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if let [Some(a), ..] = rows
        && rows.iter().all(Option::is_some)
        && crate::detect::Isa::Avx2.lowered() == crate::detect::Isa::Avx2
    {
        let rows = rows.map(|row| row.unwrap_or(a));
        // SAFETY: the processor has AVX2.
        done = unsafe { super::avx2::interleave(rows, width, words) };
    }
    for (i, row) in rows.into_iter().enumerate() {
        for (step, value) in row.into_iter().flatten().enumerate().skip(done) {
            words[step * width + i] = *value;
        }
    }
}

#[inline(always)]
fn copy_pieces(to: &mut [f32], from: &[f32]) {
    let (pieces, rest) = from.as_chunks::<PIECE>();
    let (to_pieces, to_rest) = to.as_chunks_mut::<PIECE>();
    for (to, piece) in to_pieces.iter_mut().zip(pieces) {
        *to = *piece;
    }
    to_rest.copy_from_slice(rest);
}
