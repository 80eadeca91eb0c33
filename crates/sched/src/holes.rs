//! Places by the room that they have: which of them hold a gang, and which fits it best.
//!
//! A round may stop and start thousands of jobs. Each changes the room of a machine and of every place
//! around it, so a change must cost next to nothing. Places with the same room are bits of one row, and
//! the rows are sorted by room.

use serde::{Deserialize, Serialize};

use crate::cluster::PlaceId;

/// Room in a place. Ordered by chunks; among equals the place with the fewest GPUs left over is last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Hole {
    pub chunks: u32,
    pub tightness: u32,
    pub place: PlaceId,
}

impl Hole {
    pub const MAX: Self = Self { chunks: u32::MAX, tightness: u32::MAX, place: PlaceId::MAX };

    /// Chunks and tightness as one number, which is quick to compare.
    fn size(self) -> u64 {
        u64::from(self.chunks) << 32 | u64::from(self.tightness)
    }
}

fn chunks_of(size: u64) -> u32 {
    (size >> 32) as u32
}

/// A set of holes, one for each place.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Hole>", into = "Vec<Hole>")]
pub(crate) struct Holes {
    /// The sizes that occur, in order. There is one row for each.
    sizes: Vec<u64>,
    /// By row: how many places it has.
    counts: Vec<u32>,
    /// By row: a bit for each place, in `width` words.
    bits: Vec<u64>,
    width: usize,
    /// The word in which the first place would be if rows began with place 0. The machines of a rack
    /// usually have numbers that are close together, so its rows are short.
    first: usize,
}

impl Holes {
    pub fn insert(&mut self, hole: Hole) {
        self.make_room_for(hole.place);
        let row = match self.sizes.binary_search(&hole.size()) {
            Ok(row) => row,
            Err(row) => {
                self.sizes.insert(row, hole.size());
                self.counts.insert(row, 0);
                let at = row * self.width;
                self.bits.splice(at..at, std::iter::repeat_n(0, self.width));
                row
            }
        };
        let (word, bit) = self.bit(row, hole.place);
        self.counts[row] += u32::from(self.bits[word] & bit == 0);
        self.bits[word] |= bit;
    }

    pub fn remove(&mut self, hole: Hole) {
        let Ok(row) = self.sizes.binary_search(&hole.size()) else { return };
        let (word, bit) = self.bit(row, hole.place);
        self.counts[row] -= u32::from(self.bits[word] & bit != 0);
        self.bits[word] &= !bit;
        if self.counts[row] == 0 {
            self.sizes.remove(row);
            self.counts.remove(row);
            self.bits.drain(row * self.width..(row + 1) * self.width);
        }
    }

    /// The room of a place is another.
    pub fn replace(&mut self, was: Hole, is: Hole) {
        // Places that hold many machines have sizes of their own, and small changes keep their order.
        if let Ok(row) = self.sizes.binary_search(&was.size())
            && self.counts[row] == 1
            && self.sizes[..row].last().is_none_or(|&before| before < is.size())
            && self.sizes[row + 1..].first().is_none_or(|&after| is.size() < after)
        {
            self.sizes[row] = is.size();
            return;
        }
        self.remove(was);
        self.insert(is);
    }

    /// Chunks in the largest hole.
    pub fn most_chunks(&self) -> Option<u32> {
        self.sizes.last().copied().map(chunks_of)
    }

    /// All holes, the largest first.
    pub fn descending(&self) -> impl Iterator<Item = Hole> + '_ {
        (0..self.sizes.len()).rev().flat_map(move |row| {
            let words = self.row(row).iter().enumerate().rev();
            words.flat_map(move |(nth, &word)| {
                let bits = std::iter::successors(word.checked_ilog2(), move |bit| {
                    (word & ((1 << bit) - 1)).checked_ilog2()
                });
                bits.map(move |bit| self.hole(row, self.place(nth, bit)))
            })
        })
    }

    /// Up to `last`, which is one of the holes or larger than all, the place with the least room for so many
    /// chunks: the fewest chunks, then the fewest GPUs left over, then the lowest number.
    pub fn best_fit(&self, chunks: u32, last: Hole) -> Option<PlaceId> {
        let sizes = &self.sizes[..self.sizes.partition_point(|&size| size <= last.size())];
        let first = sizes.partition_point(|&size| chunks_of(size) < chunks);
        let chunks = chunks_of(*sizes.get(first)?);
        let row = sizes.partition_point(|&size| chunks_of(size) <= chunks) - 1;
        let (nth, word) = self.row(row).iter().enumerate().find(|(_, word)| **word != 0)?;
        Some(self.place(nth, word.trailing_zeros()))
    }

    /// The place of a bit of the nth word of a row.
    fn place(&self, nth: usize, bit: u32) -> PlaceId {
        (self.first + nth) as PlaceId * u64::BITS + bit
    }

    fn hole(&self, row: usize, place: PlaceId) -> Hole {
        let size = self.sizes[row];
        Hole { chunks: chunks_of(size), tightness: size as u32, place }
    }

    fn row(&self, row: usize) -> &[u64] {
        &self.bits[row * self.width..(row + 1) * self.width]
    }

    /// Where the bit of a place is in a row: the word, and the bit in it.
    fn bit(&self, row: usize, place: PlaceId) -> (usize, u64) {
        let word = (place / u64::BITS) as usize - self.first;
        (row * self.width + word, 1 << (place % u64::BITS))
    }

    /// Widens all rows if they have no bit for the place.
    fn make_room_for(&mut self, place: PlaceId) {
        let word = (place / u64::BITS) as usize;
        if self.width > 0 && (self.first..self.first + self.width).contains(&word) {
            return;
        }
        let holes: Vec<Hole> = self.descending().collect();
        let is_empty = self.width == 0;
        let first = if is_empty { word } else { self.first.min(word) };
        let end = if is_empty { word + 1 } else { (self.first + self.width).max(word + 1) };
        *self = Self { first, width: end - first, ..Self::default() };
        holes.into_iter().for_each(|hole| self.insert(hole));
    }
}

impl From<Vec<Hole>> for Holes {
    fn from(list: Vec<Hole>) -> Self {
        let mut holes = Self::default();
        list.into_iter().for_each(|hole| holes.insert(hole));
        holes
    }
}

impl From<Holes> for Vec<Hole> {
    fn from(holes: Holes) -> Self {
        let mut list: Vec<Hole> = holes.descending().collect();
        list.reverse();
        list
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The same by looking at all holes.
    fn best_fit(holes: &BTreeSet<Hole>, chunks: u32, last: Hole) -> Option<PlaceId> {
        let fits = |hole: &&Hole| hole.chunks >= chunks && **hole <= last;
        let rank = |hole: &&Hole| (hole.chunks, u32::MAX - hole.tightness, hole.place);
        holes.iter().filter(fits).min_by_key(rank).map(|hole| hole.place)
    }

    proptest! {
        #[test]
        fn holes_are_a_sorted_set(
            changes in prop::collection::vec((any::<bool>(), 0u32..4, 0u32..3, 0u32..300), 1..200),
            base in 0u32..1000,
        ) {
            let (mut holes, mut plain) = (Holes::default(), BTreeSet::new());
            for (joins, chunks, tightness, place) in changes {
                let hole = Hole { chunks, tightness, place: base + place };
                // A place has one hole.
                let before: Vec<Hole> =
                    plain.iter().filter(|h: &&Hole| h.place == hole.place).copied().collect();
                for hole in &before {
                    plain.remove(hole);
                }
                match (before.first(), joins) {
                    (Some(&before), true) => holes.replace(before, hole),
                    (Some(&before), false) => holes.remove(before),
                    (None, true) => holes.insert(hole),
                    (None, false) => {}
                }
                if joins {
                    plain.insert(hole);
                }
            }
            prop_assert!(holes.descending().eq(plain.iter().rev().copied()));
            prop_assert_eq!(holes.most_chunks(), plain.last().map(|hole| hole.chunks));
            let saved = serde_json::to_string(&holes).expect("they are plain values");
            prop_assert_eq!(&saved, &serde_json::to_string(&plain).expect("they are plain values"));
            let restored: Holes = serde_json::from_str(&saved).expect("it was saved so");
            for last in plain.iter().copied().chain([Hole::MAX]) {
                for chunks in 0..5 {
                    let found = best_fit(&plain, chunks, last);
                    prop_assert_eq!(holes.best_fit(chunks, last), found);
                    prop_assert_eq!(restored.best_fit(chunks, last), found);
                }
            }
        }
    }
}
