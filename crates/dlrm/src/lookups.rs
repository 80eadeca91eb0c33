//! Batches of ids: read from a trace, or drawn with a given hotness.

use std::fmt;
use std::str::FromStr;

use hither_core::seed;
use hither_data::IdTrace;
use hither_kernels::bag::{Bags, Ids};
use rand::seq::SliceRandom as _;
use rand::{Rng, RngExt as _};
use rand_distr::{Distribution as _, Zipf};

/// How much of all lookups a few rows take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hotness {
    /// All lookups ask for one row.
    OneItem,
    /// Of 307,200 lookups in a million rows, about 5 % are of different rows.
    High,
    /// About 24 %.
    Medium,
    /// About 60 %.
    Low,
    /// Every row is as likely as any other.
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

    /// Of the Zipf distribution that stands in for real lookups.
    fn exponent(self) -> Option<f64> {
        match self {
            Self::High => Some(1.37),
            Self::Medium => Some(1.05),
            Self::Low => Some(0.75),
            Self::OneItem | Self::Random => None,
        }
    }

    /// `count` ids of a table of `rows` rows. Which rows are hot is drawn too.
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
        known
            .ok_or_else(|| format!("`{name}` is no hotness: one-item, high, medium, low or random"))
    }
}

/// Batches one after the other, all of one size.
#[derive(Clone, Debug)]
pub struct Lookups {
    pub batch: usize,
    batches: Vec<OneBatch>,
}

/// Table after table, sample after sample.
#[derive(Clone, Debug)]
struct OneBatch {
    ids: Vec<i64>,
    offsets: Vec<i64>,
}

/// How ids become bags.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub batches: usize,
    pub batch: usize,
    /// Ids a bag, where a trace does not say.
    pub pooling: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{offsets} offsets are not those of whole batches: {tables} tables and a batch of {batch} \
         need a multiple of {} and one more",
        tables * batch
    )]
    Batches { offsets: usize, tables: usize, batch: usize },
}

impl Lookups {
    /// Tables with so many rows each; every table has hot rows of its own.
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

    /// The ids of a trace. One with offsets is taken as it is: batches one after the other, and in
    /// each table after table. One without is read from its beginning again whenever it ends.
    pub fn from_trace(trace: &IdTrace, tables: usize, shape: Shape) -> Result<Self, Error> {
        let batch = shape.batch;
        if let Some(offsets) = &trace.offsets {
            let bags = tables * batch;
            if bags == 0 || offsets.len() < 2 || !(offsets.len() - 1).is_multiple_of(bags) {
                return Err(Error::Batches { offsets: offsets.len(), tables, batch });
            }
            let one = |first: usize| {
                let bounds = &offsets[first..=first + bags];
                let ids = trace.ids[bounds[0] as usize..bounds[bags] as usize].to_vec();
                OneBatch { ids, offsets: bounds.iter().map(|o| o - bounds[0]).collect() }
            };
            let batches = (0..offsets.len() - 1).step_by(bags).map(one).collect();
            return Ok(Self { batch, batches });
        }
        let mut circle = trace.ids.iter().copied().cycle();
        Ok(Self::regular(tables, shape, |_, _| {
            circle.by_ref().take(batch * shape.pooling).collect()
        }))
    }

    /// Bags all of one length, with the ids of batch `k` and table `t`.
    fn regular(tables: usize, shape: Shape, mut ids: impl FnMut(usize, usize) -> Vec<i64>) -> Self {
        let bags = (tables * shape.batch) as i64;
        let offsets: Vec<i64> = (0..=bags).map(|bag| bag * shape.pooling as i64).collect();
        let one = |k: usize| OneBatch {
            ids: (0..tables).flat_map(|t| ids(k, t)).collect(),
            offsets: offsets.clone(),
        };
        Self { batch: shape.batch, batches: (0..shape.batches).map(one).collect() }
    }

    pub fn len(&self) -> usize {
        self.batches.len()
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Lookups in all batches.
    pub fn ids(&self) -> usize {
        self.batches.iter().map(|one| one.ids.len()).sum()
    }

    /// As the kernels take them.
    pub fn bags(&self, k: usize) -> Bags<'_> {
        let OneBatch { ids, offsets } = &self.batches[k];
        Bags { batch: self.batch, ids: Ids::I64(ids), offsets, weights: None }
    }

    /// All ids that one table is asked for.
    pub fn of_table(&self, t: usize) -> impl Iterator<Item = i64> {
        let range = move |one: &OneBatch| {
            one.offsets[t * self.batch] as usize..one.offsets[(t + 1) * self.batch] as usize
        };
        self.batches.iter().flat_map(move |one| one.ids[range(one)].iter().copied())
    }

    /// Changes the ids of every batch in place: `change` gets them with their offsets.
    pub fn change(&mut self, change: impl Fn(&mut [i64], &[i64], usize)) {
        for one in &mut self.batches {
            change(&mut one.ids, &one.offsets, self.batch);
        }
    }

    /// The rows of a table that are asked for most, hottest first; of equals the one with the lower
    /// number.
    pub fn hottest(&self, t: usize, count: usize) -> Vec<u32> {
        let mut counts = std::collections::HashMap::<i64, u32>::new();
        for id in self.of_table(t) {
            *counts.entry(id).or_default() += 1;
        }
        let mut rows: Vec<(u32, u32)> = counts
            .into_iter()
            .filter_map(|(id, count)| u32::try_from(id).ok().map(|id| (count, id)))
            .collect();
        rows.sort_unstable_by_key(|(count, id)| (std::cmp::Reverse(*count), *id));
        rows.into_iter().take(count).map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { batches: 3, batch: 4, pooling: 5 };

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

    #[test]
    fn a_trace_without_offsets_is_read_in_a_circle() {
        let trace = IdTrace { ids: (0..7).collect(), offsets: None };
        let lookups = Lookups::from_trace(&trace, 2, SHAPE).expect("it is regular");
        assert_eq!(lookups.len(), 3);
        let (Ids::I64(ids), offsets) = (lookups.bags(2).ids, lookups.bags(2).offsets) else {
            panic!("ids have 64 bits")
        };
        assert_eq!(ids.len(), 40);
        assert_eq!(ids[0], 80 % 7);
        assert_eq!(offsets[..3], [0, 5, 10]);
        assert_eq!(lookups.of_table(1).next(), Some(20 % 7));
        assert_eq!(lookups.hottest(0, 2).len(), 2);
    }

    #[test]
    fn a_trace_with_offsets_is_split_into_whole_batches() {
        let trace = IdTrace { ids: vec![9, 8, 7, 6], offsets: Some(vec![0, 1, 1, 3, 4]) };
        let shape = Shape { batches: 0, batch: 1, pooling: 0 };
        let lookups = Lookups::from_trace(&trace, 2, shape).expect("two batches");
        assert_eq!(lookups.len(), 2);
        assert_eq!(lookups.bags(1).offsets, [0, 2, 3]);
        assert_eq!(lookups.of_table(0).collect::<Vec<_>>(), [9, 8, 7]);
        assert!(Lookups::from_trace(&trace, 3, shape).is_err());
    }
}
