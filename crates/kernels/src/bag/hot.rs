//! Hot rows, packed: copies of the rows that are asked for most lie together, in few pages.
//!
//! At lookup, a small hash table tells which ids have copies, and where: a copy stands in the slot
//! in which its id was found. A slot is one of the four of its id's bucket, so that a lookup is one
//! load of 16 bytes and four comparisons. The table is as small as the hot rows are few, whatever
//! the number of rows: a map with a bit a row was tried first, and took 10 ns a lookup where rows
//! that stream through the second-level cache pushed it out, as against 2.

use super::Table;
use super::quant::Params;

/// Slots of a bucket.
const WAYS: usize = 4;
/// Of these, on average, filled: with more, too many ids would find no slot.
const FILLED: usize = 3;
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
    /// One a slot where the table is quantised.
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

    /// Whether the row has a copy.
    pub fn contains(&self, row: u32) -> bool {
        !self.is_empty() && self.slot(row).0
    }

    /// Multiplied by a number without a pattern; the high bits choose among any number of buckets.
    #[inline(always)]
    fn bucket(&self, id: u32) -> usize {
        let mixed = u64::from(id.wrapping_mul(0x9e37_79b1));
        ((mixed * self.buckets.len() as u64) >> 32) as usize
    }

    /// Whether the row has a copy, and in which slot. The map must not be empty.
    #[inline(always)]
    pub(super) fn slot(&self, row: u32) -> (bool, usize) {
        let bucket = self.bucket(row);
        let [a, b, c, d] = self.buckets[bucket];
        let way = usize::from(b == row) + 2 * usize::from(c == row) + 3 * usize::from(d == row);
        ((a == row) | (way != 0), bucket * WAYS + way)
    }
}

impl Hot<'_> {
    /// Whether these can be copies of rows of the table.
    pub(super) fn fits(&self, table: &Table) -> bool {
        let slots = self.map.slots().len();
        self.map.rows == table.rows
            && self.stride >= table.dtype.row_bytes(table.dim)
            && slots.checked_mul(self.stride).is_some_and(|bytes| bytes <= self.data.len())
            && (!table.dtype.is_quantised() || self.params.len() == slots)
    }
}
