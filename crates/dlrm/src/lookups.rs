//! Batches of ids, read from a trace or drawn with a given hotness, in the form that kernels take.

use std::fmt;
use std::str::FromStr;

use hither_core::seed;
use hither_kernels::bag::{Bags, Ids};
use rand::seq::SliceRandom as _;
use rand::{Rng, RngExt as _};
use rand_distr::{Distribution as _, Zipf};

use crate::hotness::Histogram;
use crate::workload::{Requests, Workload};

/// How unevenly lookups are spread over the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hotness {
    /// All lookups ask for the same row.
    OneItem,
    /// About 5 % of 307,200 lookups in a million rows ask for different rows.
    High,
    /// About 24 % ask for different rows.
    Medium,
    /// About 60 % ask for different rows.
    Low,
    /// All rows are equally likely.
    Random,
}

impl Hotness {
    pub const ALL: [Self; 5] = [Self::OneItem, Self::High, Self::Medium, Self::Low, Self::Random];

    pub fn name(self) -> &'static str {
        match self {
            Self::OneItem => "one-item",
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
            Self::Random => "random",
        }
    }

    /// The exponent of the Zipf distribution that stands in for real lookups.
    fn exponent(self) -> Option<f64> {
        match self {
            Self::High => Some(1.37),
            Self::Medium => Some(1.05),
            Self::Low => Some(0.75),
            Self::OneItem | Self::Random => None,
        }
    }

    /// Draws `count` ids of a table of `rows` rows; which rows are hot is drawn too.
    fn draw(self, rows: usize, count: usize, rng: &mut impl Rng) -> Vec<i64> {
        if self == Self::Random {
            return (0..count).map(|_| rng.random_range(0..rows as i64)).collect();
        }
        let mut rows_by_rank: Vec<u32> = (0..rows as u32).collect();
        rows_by_rank.shuffle(rng);
        let zipf = self.exponent().and_then(|s| Zipf::new(rows as f64, s).ok());
        let rank = |_| zipf.map_or(0, |zipf| zipf.sample(rng) as usize - 1);
        (0..count).map(rank).map(|rank| i64::from(rows_by_rank[rank])).collect()
    }
}

impl fmt::Display for Hotness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Hotness {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|hotness| hotness.name() == name);
        known.ok_or_else(|| {
            format!("unknown hotness `{name}`; expected one-item, high, medium, low or random")
        })
    }
}

/// Batches that follow one another, all of the same size.
#[derive(Clone, Debug)]
pub struct Lookups {
    pub batch: usize,
    batches: Vec<Requests>,
    /// The same ids in 32 bits, half the bytes to read; empty where some ids do not fit.
    short: Vec<Vec<u32>>,
}

/// How many ids are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub batches: usize,
    /// Samples per batch.
    pub batch: usize,
    /// Ids per bag.
    pub pooling: usize,
}

impl Lookups {
    /// Draws ids for tables of the given numbers of rows; each table has hot rows of its own.
    pub fn draw(hotness: Hotness, rows: &[usize], shape: Shape, seed: u64) -> Self {
        let bags = shape.batches * shape.batch;
        let drawn: Vec<Vec<i64>> = rows
            .iter()
            .enumerate()
            .map(|(t, rows)| {
                let mut rng = seed::stream(seed, &format!("lookups.{t}"));
                hotness.draw(*rows, bags * shape.pooling, &mut rng)
            })
            .collect();
        let per_batch = shape.batch * shape.pooling;
        Self::regular(rows.len(), shape, |k, t| drawn[t][k * per_batch..][..per_batch].to_vec())
    }

    /// The ids of a trace: all whole batches of one with bags, `batches` of one without.
    pub fn from_workload(workload: &Workload, batches: usize) -> Self {
        Self::new(workload.batch(), workload.first(batches))
    }

    /// Batches of `batch` samples each.
    pub fn new(batch: usize, batches: Vec<Requests>) -> Self {
        let mut lookups = Self { batch, batches, short: Vec::new() };
        lookups.shorten();
        lookups
    }

    /// Fills `short` if all ids fit; −1 becomes the largest 32-bit number, as kernels expect it.
    fn shorten(&mut self) {
        let short = |id: &i64| u32::try_from(*id).unwrap_or(u32::MAX);
        let fit = |id: &i64| (-1..i64::from(u32::MAX)).contains(id);
        let all = self.batches.iter().all(|one| one.ids.iter().all(fit));
        let each = self.batches.iter().filter(|_| all);
        self.short = each.map(|one| one.ids.iter().map(short).collect()).collect();
    }

    /// Bags of equal length; `ids` returns those of batch `k` and table `t`.
    fn regular(tables: usize, shape: Shape, mut ids: impl FnMut(usize, usize) -> Vec<i64>) -> Self {
        let bags = (tables * shape.batch) as i64;
        let offsets: Vec<i64> = (0..=bags).map(|bag| bag * shape.pooling as i64).collect();
        let one = |k: usize| Requests {
            ids: (0..tables).flat_map(|t| ids(k, t)).collect(),
            offsets: offsets.clone(),
            weights: None,
        };
        Self::new(shape.batch, (0..shape.batches).map(one).collect())
    }

    pub fn len(&self) -> usize {
        self.batches.len()
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// The bags of each batch.
    pub fn batches(&self) -> &[Requests] {
        &self.batches
    }

    /// The number of ids in all batches.
    pub fn ids(&self) -> usize {
        self.batches.iter().map(|one| one.ids.len()).sum()
    }

    /// The bags of batch `k`, with 32-bit ids where all fit.
    pub fn bags(&self, k: usize) -> Bags<'_> {
        let Requests { ids, offsets, weights } = &self.batches[k];
        let ids = self.short.get(k).map_or(Ids::I64(ids), |ids| Ids::U32(ids));
        Bags { batch: self.batch, ids, offsets, weights: weights.as_deref() }
    }

    /// All ids that table `t` is asked for.
    pub fn of_table(&self, t: usize) -> impl Iterator<Item = i64> {
        let range = move |one: &Requests| {
            one.offsets[t * self.batch] as usize..one.offsets[(t + 1) * self.batch] as usize
        };
        self.batches.iter().flat_map(move |one| one.ids[range(one)].iter().copied())
    }

    /// Changes the ids of every batch in place; `change` receives ids, offsets and the batch size.
    pub fn change(&mut self, change: impl Fn(&mut [i64], &[i64], usize)) {
        for one in &mut self.batches {
            change(&mut one.ids, &one.offsets, self.batch);
        }
        self.shorten();
    }

    /// How hot the rows of table `t` are.
    pub fn histogram(&self, t: usize) -> Histogram {
        Histogram::new(self.of_table(t).filter_map(|id| u32::try_from(id).ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_ids_are_in_range_and_as_hot_as_they_should_be() {
        let unique = |hotness| {
            let shape = Shape { batches: 1, batch: 2048, pooling: 150 };
            let lookups = Lookups::draw(hotness, &[1_000_000], shape, 1);
            let mut ids: Vec<i64> = lookups.of_table(0).collect();
            assert_eq!(ids.len(), 307_200);
            assert!(ids.iter().all(|id| (0..1_000_000).contains(id)));
            ids.sort_unstable();
            ids.dedup();
            ids.len() as f64 / 307_200.0
        };
        assert_eq!(unique(Hotness::OneItem), 1.0 / 307_200.0);
        assert!((0.03..0.07).contains(&unique(Hotness::High)));
        assert!((0.21..0.27).contains(&unique(Hotness::Medium)));
        assert!((0.55..0.65).contains(&unique(Hotness::Low)));
        assert!((0.84..0.88).contains(&unique(Hotness::Random)));
    }
}
