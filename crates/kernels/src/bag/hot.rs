//! Hot rows, packed: copies of the rows that are asked for most lie together, in few pages.
//!
//! At lookup, one bit a row tells whether it has a copy, and the number of bits before it tells
//! where: two bits a row in all, so that the map itself stays in cache. Copies stand in the order
//! of their ids.

use super::Table;
use super::quant::Params;

/// 32 rows of the map, read by one load.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(8))]
struct Word {
    hot: u32,
    /// Copies of all words before this one.
    before: u32,
}

/// Which rows have copies.
#[derive(Debug, Clone)]
pub struct HotMap {
    words: Vec<Word>,
    ids: Vec<u32>,
}

/// The copies of a table's hot rows.
#[derive(Clone, Copy, Debug)]
pub struct Hot<'a> {
    pub map: &'a HotMap,
    /// As many rows as the map has ids.
    pub data: &'a [u8],
    /// Bytes from one copy to the next.
    pub stride: usize,
    /// One a copy where the table is quantised.
    pub params: &'a [Params],
}

impl HotMap {
    /// The map of a table of `rows` rows in which `ids` have copies. An id given twice counts once,
    /// one out of range not at all.
    pub fn new(rows: usize, mut ids: Vec<u32>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| (*id as usize) < rows);
        let mut words = vec![Word::default(); rows.div_ceil(32)];
        for id in &ids {
            words[*id as usize / 32].hot |= 1 << (id % 32);
        }
        let mut before = 0;
        for word in &mut words {
            word.before = before;
            before += word.hot.count_ones();
        }
        Self { words, ids }
    }

    /// The rows that have copies, in the order of the copies.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    pub fn bytes(&self) -> usize {
        size_of_val(self.words.as_slice()) + size_of_val(self.ids.as_slice())
    }

    /// Whether the row has a copy, and how many rows before it have one: the copy's number. The row
    /// must be one of the table's.
    #[inline(always)]
    pub(super) fn slot(&self, row: usize) -> (bool, usize) {
        let word = self.words[row / 32];
        let bit = 1u32 << (row % 32);
        let slot = word.before + (word.hot & (bit - 1)).count_ones();
        (word.hot & bit != 0, slot as usize)
    }
}

impl Hot<'_> {
    /// Whether these can be copies of rows of the table.
    pub(super) fn fits(&self, table: &Table) -> bool {
        let copies = self.map.ids.len();
        let row_bytes = table.dtype.row_bytes(table.dim);
        self.map.words.len() == table.rows.div_ceil(32)
            && self.stride >= row_bytes
            && copies.checked_mul(self.stride).is_some_and(|bytes| bytes <= self.data.len())
            && (!table.dtype.is_quantised() || self.params.len() == copies)
    }
}
