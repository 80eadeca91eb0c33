//! Prefetching, as the loops over rows do it: each scheme is a loop of its own, without a branch.

use std::arch::x86_64::*;

use super::kernel::Work;
use super::prefetch::{OUTPUT_BAGS, near_rows};

/// Schemes, as constants: enums cannot be parameters yet.
pub(super) mod scheme {
    pub const OFF: u8 = 0;
    pub const L1: u8 = 1;
    pub const L2: u8 = 2;
}
use scheme::*;

/// Most bytes of ids that are fetched while rows are pooled: as many as are resolved at a time.
const LATER_BYTES_MAX: usize = 32 << 10;

/// Calls a function with the scheme of a prefetch as its constant.
macro_rules! by_ahead {
    ($prefetch:expr, $ahead:ident => $call:expr) => {{
        use $crate::bag::ahead::{by_ahead, scheme};
        use $crate::bag::prefetch::{Hint, Prefetch};
        match $prefetch {
            Prefetch::Off => by_ahead!(@ scheme::OFF, $ahead, $call),
            Prefetch::Ahead { hint: Hint::L1, .. } => by_ahead!(@ scheme::L1, $ahead, $call),
            Prefetch::Ahead { hint: Hint::L2, .. } => by_ahead!(@ scheme::L2, $ahead, $call),
        }
    }};
    (@ $scheme:expr, $ahead:ident, $call:expr) => {{
        const $ahead: u8 = $scheme;
        $call
    }};
}
pub(super) use by_ahead;

/// A scheme as a loop over rows needs it. Rows that are summed in parts are fetched in parts: each
/// part fetches its own lines, so that none is fetched twice.
pub(super) struct Ahead<const AHEAD: u8, const RAGGED: bool> {
    /// How many rows ahead lines are fetched.
    distance: usize,
    /// How many rows ahead lines come from the second level to the first.
    near: usize,
    row_bytes: usize,
    /// Bytes of later ids that are fetched per bag.
    later_bytes: usize,
}

impl<const AHEAD: u8, const RAGGED: bool> Ahead<AHEAD, RAGGED> {
    #[inline(always)]
    pub fn new(work: &Work) -> Self {
        let row_bytes = work.dtype.row_bytes(work.dim);
        let distance = work.prefetch.rows_ahead(row_bytes);
        let later_bytes = work.later.len().min(LATER_BYTES_MAX).div_ceil(work.bags.len().max(1));
        Self { distance, near: near_rows(row_bytes), row_bytes, later_bytes }
    }

    /// Fetches what a bag has to fetch beside rows: its share of the ids that will be resolved next,
    /// and the lines into which a later bag will be written, `elements` of it from `first` on.
    ///
    /// # Safety
    /// The bags lie inside of the output.
    #[inline(always)]
    pub unsafe fn bag(&self, work: &Work, bag: usize, first: usize, elements: usize) {
        if first == 0 {
            let begin = bag * self.later_bytes;
            for byte in (begin..begin + self.later_bytes).step_by(64) {
                fetch::<L2>(work.later.as_ptr().wrapping_add(byte));
            }
        }
        // SAFETY: as the caller promises.
        unsafe { claim(work, bag, first, elements) };
    }

    /// Fetches what would have been fetched before the first row, had there been rows before it.
    ///
    /// # Safety
    /// The work's list has the rows of all its bags.
    #[inline(always)]
    pub unsafe fn begin(&self, work: &Work) {
        if AHEAD != OFF {
            let rows: usize = work.bags.iter().map(|bag| bag.rows as usize).sum();
            for i in 0..self.distance.min(rows) {
                // SAFETY: one of the rows.
                self.far(unsafe { *work.rows.add(i) }, 0, self.row_bytes);
            }
        }
    }

    /// Fetches what is due when `bytes` of the row at the head of the list, from `skip` on, are about
    /// to be read.
    ///
    /// # Safety
    /// The list goes on for [`ROWS_MAX`](super::prefetch::ROWS_MAX) rows.
    #[inline(always)]
    pub unsafe fn row(&self, rows: *const *const u8, skip: usize, bytes: usize) {
        // SAFETY: as the caller promises.
        unsafe {
            if AHEAD != OFF {
                self.far(*rows.add(self.distance), skip, bytes);
            }
            if AHEAD == L2 {
                let row = *rows.add(self.near);
                for line in 0..bytes.div_ceil(64) {
                    fetch::<L1>(row.wrapping_add(skip + line * 64));
                }
            }
        }
    }

    #[inline(always)]
    fn far(&self, row: *const u8, skip: usize, bytes: usize) {
        for line in 0..bytes.div_ceil(64) {
            fetch::<AHEAD>(row.wrapping_add(skip + line * 64));
        }
        // A row that begins within a line may end in one more.
        if RAGGED {
            fetch::<AHEAD>(row.wrapping_add((skip + bytes).min(self.row_bytes).saturating_sub(1)));
        }
    }
}

#[inline(always)]
fn fetch<const AHEAD: u8>(line: *const u8) {
    // SAFETY: a prefetch reads nothing that the program could see, and never faults.
    unsafe {
        match AHEAD {
            L2 => _mm_prefetch::<_MM_HINT_T1>(line.cast()),
            _ => _mm_prefetch::<_MM_HINT_T0>(line.cast()),
        }
    }
}

/// Claims the lines into which a later bag will be written: `elements` of it from `first` on.
///
/// # Safety
/// The bag lies inside of the output.
#[inline(always)]
unsafe fn claim(work: &Work, bag: usize, first: usize, elements: usize) {
    if let Some(later) = work.bags.get(bag + OUTPUT_BAGS) {
        // SAFETY: the bag's first element, as the caller promises.
        let out = unsafe { work.out.at(later.out) }.wrapping_add(first).cast::<u8>();
        for line in 0..(elements * 4).div_ceil(64) {
            // `_mm_prefetch::<_MM_HINT_ET0>` compiles to a read prefetch unless the whole program
            // is built for processors that have `prefetchw`. All 64-bit ones take it, if only to do
            // nothing.
            // SAFETY: as in `fetch`.
            unsafe {
                std::arch::asm!(
                    "prefetchw [{line}]",
                    line = in(reg) out.wrapping_add(line * 64).addr(),
                    options(nomem, nostack, preserves_flags),
                );
            }
        }
    }
}
