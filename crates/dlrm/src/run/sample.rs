//! A sample of the ids that requests ask for, so that a server can notice when hot rows change.
//!
//! About one of `every` ids is kept. The distance to the next is drawn, because a fixed one could
//! meet the same place of each bag for ever. A thread collects the ids of one part of a batch and
//! hands them over at once: what threads share is touched once per part, not once per id.

use std::sync::atomic::{AtomicU64, Ordering};

/// A lookup that was sampled: a table's number, and a row of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    pub table: u32,
    pub row: u32,
}

/// The last ids that were sampled; older ones are overwritten.
pub(super) struct Ring {
    every: u32,
    places: Box<[AtomicU64]>,
    /// Ids that were ever written.
    written: AtomicU64,
}

/// One thread's state.
#[derive(Default)]
pub(super) struct Sampler {
    /// Ids to pass over before the next is taken.
    skip: usize,
    state: u64,
    taken: Vec<u64>,
}

/// Ids that are remembered: a million bytes per model.
const PLACES: usize = 1 << 17;
/// Ids that a thread takes from one part of a batch at most, so that its list never grows.
const TAKEN_MAX: usize = 4096;
/// A place that no id was written to.
const EMPTY: u64 = u64::MAX;

impl Ring {
    pub fn new(every: u32) -> Self {
        let places = if every == 0 { 0 } else { PLACES };
        let places = (0..places).map(|_| AtomicU64::new(EMPTY)).collect();
        Self { every, places, written: AtomicU64::new(0) }
    }

    pub fn is_on(&self) -> bool {
        self.every > 0
    }

    /// Writes what the thread has taken.
    pub fn write(&self, sampler: &mut Sampler) {
        let count = sampler.taken.len();
        if count == 0 {
            return;
        }
        let first = self.written.fetch_add(count as u64, Ordering::Relaxed) as usize;
        for (at, seen) in sampler.taken.drain(..).enumerate() {
            self.places[(first + at) % PLACES].store(seen, Ordering::Relaxed);
        }
    }

    pub fn read(&self) -> Vec<Seen> {
        let seen = |place: &AtomicU64| {
            let packed = place.load(Ordering::Relaxed);
            let seen = Seen { table: (packed >> 32) as u32, row: packed as u32 };
            (packed != EMPTY).then_some(seen)
        };
        self.places.iter().filter_map(seen).collect()
    }
}

impl Sampler {
    /// Takes some of `count` ids; `row` returns the row of an id, `None` for one that is no row.
    #[inline]
    pub fn pass(
        &mut self,
        ring: &Ring,
        table: usize,
        count: usize,
        row: impl Fn(usize) -> Option<u32>,
    ) {
        self.taken.reserve(TAKEN_MAX - self.taken.len());
        while self.skip < count {
            if let Some(row) = row(self.skip).filter(|_| self.taken.len() < TAKEN_MAX) {
                self.taken.push((table as u64) << 32 | u64::from(row));
            }
            self.skip += 1 + self.draw() as usize % (2 * ring.every as usize);
        }
        self.skip -= count;
    }

    /// Xorshift: cheap, and random enough for distances.
    fn draw(&mut self) -> u32 {
        let mut x = self.state | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.state = x;
        (x >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_so_many_is_taken_wherever_it_stands() {
        let ring = Ring::new(16);
        let mut sampler = Sampler::default();
        let rows = 1 << 20;
        for start in (0..rows).step_by(40) {
            let count = 40.min(rows - start);
            sampler.pass(&ring, start % 3, count, |at| Some((start + at) as u32));
            ring.write(&mut sampler);
        }
        let seen = ring.read();
        assert!((60_000..70_000).contains(&seen.len()), "{}", seen.len());
        for place in 0..40 {
            let here = seen.iter().filter(|seen| seen.row as usize % 40 == place).count();
            assert!((1300..2000).contains(&here), "{here} at place {place}");
        }
        assert!(seen.iter().all(|seen| seen.table == seen.row / 40 * 40 % 3));
        assert!(Ring::new(0).read().is_empty());
    }
}
