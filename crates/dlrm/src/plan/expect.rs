//! Expected costs of settings: the share of rows in each place, times the cost of a row from there.
//!
//! Half of a cache is taken to hold the hottest rows of all tables; the histogram tells which share
//! of the lookups they take, and the rest comes from memory. The cost of a row from each place is
//! measured with random rows out of as many as half of the cache holds, spread or packed.

use hither_core::seed;
use hither_kernels::bag::Table;
use rand::RngExt as _;

use super::Packing;
use super::levers::Setting;
use crate::hotness::{Histogram, fitting};
use crate::lookups::Lookups;
use crate::workload::Requests;

/// The level of memory that a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    L2,
    L3,
    Memory,
}

/// The measured cost of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub level: Level,
    pub pages: bool,
    pub prefetch: bool,
    pub packed: bool,
    pub ns: f64,
}

/// Measured costs of a group's rows with some number of threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    pub rows: Vec<Cost>,
    /// Nanoseconds per lookup that finding hot rows in the map takes.
    pub map_ns: f64,
    /// Sizes of rows in bytes, and what a row of that size costs from memory with the best prefetch.
    pub bytes: Vec<(usize, f64)>,
}

/// Shares of lookups whose rows fit into half of the second-level and of the third-level cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    pub l2: f64,
    pub l3: f64,
}

impl Shares {
    pub fn new(
        tables: &[&Histogram],
        row_bytes: &[usize],
        l2_bytes: usize,
        l3_bytes: usize,
    ) -> Self {
        let within = |bytes: usize| {
            let rows = fitting(tables, row_bytes, bytes / 2);
            let taken: f64 =
                tables.iter().zip(rows).map(|(t, n)| t.share(n) * t.lookups() as f64).sum();
            let all: u64 = tables.iter().map(|t| t.lookups()).sum();
            if all == 0 { 1.0 } else { taken / all as f64 }
        };
        let l2 = within(l2_bytes);
        Self { l2, l3: within(l3_bytes).max(l2) }
    }
}

impl Costs {
    /// The measured cost; where it was not measured, that of the nearest measured case.
    fn row_ns(&self, level: Level, pages: bool, prefetch: bool, packed: bool) -> f64 {
        let distance = |cost: &&Cost| {
            (
                cost.level != level,
                cost.packed != packed,
                cost.prefetch != prefetch,
                cost.pages != pages,
            )
        };
        self.rows.iter().min_by_key(distance).map_or(f64::NAN, |cost| cost.ns)
    }

    pub fn expected_ns(&self, setting: Setting, shares: Shares) -> f64 {
        let Setting { pages, prefetch, packing } = setting;
        let packed = packing != Packing::Off;
        // Copies of hot rows lie on huge pages even where the table does not.
        let near = pages || packing == Packing::Lookup;
        let map_ns = if packing == Packing::Lookup { self.map_ns } else { 0.0 };
        shares.l2 * self.row_ns(Level::L2, near, prefetch, packed)
            + (shares.l3 - shares.l2) * self.row_ns(Level::L3, near, prefetch, packed)
            + (1.0 - shares.l3) * self.row_ns(Level::Memory, pages, prefetch, false)
            + map_ns
    }

    /// With rows of another size: more of them fit into the caches, and the others cost less. The cost
    /// of a row from a cache stays the same, so that the gain is not overstated.
    pub fn expected_with_bytes(&self, row_bytes: usize, shares: Shares) -> f64 {
        let far =
            self.bytes.iter().find(|(bytes, _)| *bytes == row_bytes).map_or(f64::NAN, |c| c.1);
        let l2 = self.row_ns(Level::L2, true, true, false);
        let l3 = self.row_ns(Level::L3, true, true, false);
        shares.l2 * l2.min(far) + (shares.l3 - shares.l2) * l3.min(far) + (1.0 - shares.l3) * far
    }
}

/// Samples per request of the calibration.
const SAMPLES: usize = 64;
/// With fewer ids per bag the measurement would be of writes, not of reads.
const POOLING_MIN: usize = 16;

/// Random rows of all tables, out of as many as fit into `bytes`; out of all for `None`.
pub fn random_rows(
    tables: &[Table],
    bytes: Option<usize>,
    packed: bool,
    lookups: usize,
) -> Lookups {
    let count = tables.len().max(1);
    let pooling = (lookups / (SAMPLES * count)).max(POOLING_MIN);
    let mut stream = seed::stream(0, "calibration");
    let mut ids = Vec::with_capacity(count * SAMPLES * pooling);
    for table in tables {
        let share = bytes.map_or(usize::MAX, |bytes| bytes / count / table.stride.max(1));
        let rows = share.clamp(1, table.rows) as u64;
        let spread = !packed && rows < table.rows as u64;
        for _ in 0..SAMPLES * pooling {
            let row = stream.random_range(0..rows);
            // An odd factor spreads them over the whole table, and over all sets of the caches.
            let place = u128::from(row.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let far = (place * table.rows as u128) >> 64;
            ids.push(if spread { far as i64 } else { row as i64 });
        }
    }
    let offsets = (0..=count * SAMPLES).map(|bag| (bag * pooling) as i64).collect();
    Lookups::new(SAMPLES, vec![Requests { ids, offsets, weights: None }])
}
