//! Hot rows, packed: copies of the rows that are asked for most lie together, in few pages.
//!
//! At lookup, a small hash table tells which ids have copies, and where: a copy stands in the slot
//! in which its id was found. A slot is one of the four of its id's bucket, so that a lookup is one
//! load and one comparison of 16 bytes; AVX-512 looks up eight ids at once (`addresses`). The table is as small as the hot rows are few, whatever
//! the number of rows: a map with a bit a row was tried first, and took 10 ns a lookup where rows
//! that stream through the second-level cache pushed it out, as against 2.

use super::Table;
use super::quant::Params;

/// Slots of a bucket.
pub(super) const WAYS: usize = 4;
/// Of these, on average, filled: with more, too many ids would find no slot.
const FILLED: usize = 3;
/// A factor without a pattern, which spreads ids over buckets.
pub(super) const MIX: u32 = 0x9e37_79b1;
/// What stands in a slot that has no copy: no row has this number.
pub const EMPTY: u32 = u32::MAX;

/// Which rows have copies.
#[derive(Debug, Clone)]
pub struct HotMap {
    buckets: Vec<[u32; WAYS]>,
    rows: usize,
}

/// The copies of a table's hot rows.
#[derive(Clone, Copy, Debug)]
pub struct Hot<'a> {
    pub map: &'a HotMap,
    /// As many rows as the map has slots.
    pub data: &'a [u8],
    /// Bytes from one copy to the next.
    pub stride: usize,
    /// One per slot where the table is quantised.
    pub params: &'a [Params],
}

impl HotMap {
    /// The map of a table of `rows` rows in which `ids`, hottest first, have copies. An id given
    /// twice counts once, one out of range not at all; and the coldest of those that meet in one
    /// bucket stay where they are.
    pub fn new(rows: usize, ids: &[u32]) -> Self {
        let mut map = Self { buckets: vec![[EMPTY; WAYS]; ids.len().div_ceil(FILLED)], rows };
        for id in ids.iter().filter(|id| **id != EMPTY && (**id as usize) < rows) {
            let bucket = map.bucket(*id);
            let free = map.buckets[bucket].iter().position(|slot| *slot == *id || *slot == EMPTY);
            if let Some(way) = free {
                map.buckets[bucket][way] = *id;
            }
        }
        map
    }

    /// For each slot the row that has its copy there, or [`EMPTY`].
    pub fn slots(&self) -> &[u32] {
        self.buckets.as_flattened()
    }

    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    pub(super) fn buckets(&self) -> &[[u32; WAYS]] {
        &self.buckets
    }

    /// The high bits of the mixed id choose among any number of buckets.
    #[inline(always)]
    fn bucket(&self, id: u32) -> usize {
        let mixed = u64::from(id.wrapping_mul(MIX));
        ((mixed * self.buckets.len() as u64) >> 32) as usize
    }

    /// Whether the row has a copy, and in which slot; in no slot of the map if it has none. The map
    /// must not be empty.
    #[inline(always)]
    pub(super) fn slot(&self, row: u32) -> (bool, usize) {
        let bucket = self.bucket(row);
        // SAFETY: `bucket` is below the number of buckets, which is not zero.
        let slots = unsafe { self.buckets.get_unchecked(bucket) };
        let found = ways_of(slots, row);
        (found != 0, bucket * WAYS + found.trailing_zeros() as usize)
    }
}

/// A bit for each slot that holds the row.
#[inline(always)]
fn ways_of(slots: &[u32; WAYS], row: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        // SAFETY: every 64-bit x86 has SSE2, and a bucket is 16 bytes.
        unsafe {
            let slots = _mm_loadu_si128(slots.as_ptr().cast());
            let equal = _mm_cmpeq_epi32(slots, _mm_set1_epi32(row as i32));
            _mm_movemask_ps(_mm_castsi128_ps(equal)) as u32
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    slots.iter().enumerate().fold(0, |found, (way, slot)| found | u32::from(*slot == row) << way)
}

impl Hot<'_> {
    /// Whether these can be copies of rows of the table.
    pub(super) fn fits(&self, table: &Table) -> bool {
        let slots = self.map.slots().len();
        self.map.rows == table.rows
            && self.stride >= table.dtype.row_bytes(table.dim)
            // Slots and strides are multiplied as numbers of 32 bits.
            && u32::try_from(self.stride).is_ok()
            && u32::try_from(slots).is_ok()
            && slots.checked_mul(self.stride).is_some_and(|bytes| bytes <= self.data.len())
            && (!table.dtype.is_quantised() || self.params.len() == slots)
    }
}
