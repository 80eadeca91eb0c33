//! How often each row of a table is asked for.

use std::cmp::Reverse;

/// The rows of a table that were asked for, hottest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Hottest first; of equals the lower number first.
    ids: Vec<u32>,
    counts: Vec<u64>,
    /// `taken[n]` is the number of lookups that the first n rows take; one longer than `ids`.
    taken: Vec<u64>,
}

impl Histogram {
    pub fn new(mut ids: Vec<u32>) -> Self {
        ids.sort_unstable();
        let mut rows: Vec<(u32, u64)> =
            ids.chunk_by(|a, b| a == b).map(|run| (run[0], run.len() as u64)).collect();
        rows.sort_unstable_by_key(|(id, count)| (Reverse(*count), *id));
        let mut taken = Vec::with_capacity(rows.len() + 1);
        let mut sum = 0;
        taken.push(sum);
        for (_, count) in &rows {
            sum += count;
            taken.push(sum);
        }
        let (ids, counts) = rows.into_iter().unzip();
        Self { ids, counts, taken }
    }

    pub fn lookups(&self) -> u64 {
        self.taken.last().copied().unwrap_or(0)
    }

    /// The number of rows that were asked for at all.
    pub fn unique(&self) -> usize {
        self.ids.len()
    }

    /// Lookups of each row that was asked for, largest first.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The share of lookups that the `rows` hottest rows take; 1 where nothing was looked up.
    pub fn share(&self, rows: usize) -> f64 {
        match self.lookups() {
            0 => 1.0,
            all => self.taken[rows.min(self.unique())] as f64 / all as f64,
        }
    }

    pub fn hottest(&self, rows: usize) -> &[u32] {
        &self.ids[..rows.min(self.unique())]
    }

    /// The number of rows with at least `count` lookups.
    fn at_least(&self, count: u64) -> usize {
        self.counts.partition_point(|c| *c >= count)
    }

    /// Numbers of hottest rows, evenly spaced on a log axis, with the share of lookups they take.
    pub fn curve(&self, points: usize) -> Vec<(usize, f64)> {
        let unique = self.unique();
        if unique == 0 || points == 0 {
            return Vec::new();
        }
        let steps = (points - 1).max(1) as f64;
        let rows = |step: usize| (unique as f64).powf(step as f64 / steps).round() as usize;
        let mut rows: Vec<usize> = (0..points).map(rows).collect();
        rows[points - 1] = unique;
        rows.dedup();
        rows.into_iter().map(|rows| (rows, self.share(rows))).collect()
    }
}

/// How many of each table's hottest rows fit into `bytes` that all tables share, if rows are
/// admitted in the order of their lookups. `row_bytes` has one size per table.
pub fn fitting(tables: &[&Histogram], row_bytes: &[usize], bytes: usize) -> Vec<usize> {
    let rows_from = |count: u64| tables.iter().map(|t| t.at_least(count)).collect::<Vec<_>>();
    let size = |rows: &[usize]| -> usize { rows.iter().zip(row_bytes).map(|(n, b)| n * b).sum() };
    // Binary search for the smallest count whose rows all fit: a larger count admits fewer rows.
    let (mut low, mut high) =
        (1, tables.iter().filter_map(|t| t.counts.first()).max().map_or(1, |count| count + 1));
    while low < high {
        let middle = low + (high - low) / 2;
        if size(&rows_from(middle)) <= bytes {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let mut rows = rows_from(low);
    if low == 1 {
        return rows;
    }
    // Rows with one lookup less share what is left in proportion.
    let more: Vec<usize> =
        rows_from(low - 1).iter().zip(&rows).map(|(more, rows)| more - rows).collect();
    let (left, wanted) = (bytes - size(&rows), size(&more));
    for (rows, more) in rows.iter_mut().zip(&more) {
        *rows += (*more as f64 * left as f64 / wanted.max(1) as f64) as usize;
    }
    rows
}
