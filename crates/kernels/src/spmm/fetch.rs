//! Calls for the rows of coming edges.
//!
//! Rows are called into the second-level cache, in bursts and far ahead (`bag::prefetch` tells why):
//! when less than half of the distance is left, the next half is asked for at once.

use std::ops::Range;

use super::Csr;
use crate::fetch;

/// Bytes that may be under way or waiting.
const BYTES: usize = 1 << 17;
/// Rows that may be.
const ROWS_MAX: usize = 256;
/// Inputs of no more bytes are near by anyway.
const NEAR_BYTES: usize = 1 << 18;

pub(super) struct Ahead<'a> {
    columns: &'a [u32],
    /// A factor per input row, if there is one.
    scales: Option<&'a [f32]>,
    x: &'a [f32],
    dim: usize,
    /// Which of a row's columns.
    first: usize,
    len: usize,
    /// Half of the distance, in edges.
    half: usize,
    /// The next edge whose row is to be asked for, and where the edges end.
    next: usize,
    end: usize,
}

impl<'a> Ahead<'a> {
    pub fn new(
        csr: Csr<'a>,
        rows: Range<usize>,
        x: &'a [f32],
        dim: usize,
        first: usize,
        len: usize,
    ) -> Self {
        let edges = csr.edges(rows);
        let near = x.len() / dim * len * 4 <= NEAR_BYTES;
        let half = (BYTES / (len * 4)).clamp(8, ROWS_MAX) / 2;
        let next = if near { edges.end } else { edges.start };
        Self { columns: csr.columns, scales: None, x, dim, first, len, half, next, end: edges.end }
    }

    /// Each row with its factor.
    pub fn with_scales(self, scales: Option<&'a [f32]>) -> Self {
        Self { scales, ..self }
    }

    /// Called at `edge`, and again at the edge that is returned, or before it.
    #[inline(always)]
    pub fn reach(&mut self, edge: usize) -> usize {
        if self.next < self.end.min(edge + self.half) {
            self.burst(edge + 2 * self.half);
        }
        if self.next < self.end { self.next - self.half + 1 } else { usize::MAX }
    }

    #[inline(never)]
    fn burst(&mut self, to: usize) {
        let to = to.min(self.end);
        for column in &self.columns[self.next..to] {
            let at = *column as usize * self.dim + self.first;
            fetch::far(&self.x[at..at + self.len]);
            if let Some(scales) = self.scales {
                fetch::far(&scales[*column as usize..][..1]);
            }
        }
        self.next = to;
    }
}
