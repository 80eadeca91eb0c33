//! The load of the links over time, in a bounded number of rows however long the run is.
//!
//! Loads change with every start and stop. The meter keeps their means over equal spans of time. When a run
//! outgrows them, two neighbouring spans become one and all spans are twice as long from then on.

use hither_core::Seconds;
use hither_core::record::{EventRow, Happening};

use crate::contention::LinkLoad;

/// Twice the points that the report draws.
const SPANS_MAX: usize = 960;
const FIRST_SPAN_S: Seconds = 60.0;

#[derive(Debug)]
pub struct LinkMeter {
    /// When the first loads were set.
    start_s: Option<Seconds>,
    last_s: Seconds,
    span_s: Seconds,
    /// By level, since `last_s`.
    loads: Vec<LinkLoad>,
    /// By span and level: load × time.
    sums: Vec<Vec<LinkLoad>>,
}

impl Default for LinkMeter {
    fn default() -> Self {
        Self {
            start_s: None,
            last_s: 0.0,
            span_s: FIRST_SPAN_S,
            loads: Vec::new(),
            sums: Vec::new(),
        }
    }
}

impl LinkMeter {
    /// From `now` on the links are loaded so.
    pub fn set(&mut self, now: Seconds, loads: Vec<LinkLoad>) {
        match self.start_s {
            None => self.start_s = Some(now),
            Some(start_s) => self.count(self.last_s - start_s, now - start_s),
        }
        self.last_s = now;
        self.loads = loads;
    }

    /// Adds what the links have carried between two moments, counted from the start.
    fn count(&mut self, from_s: Seconds, to_s: Seconds) {
        while to_s > self.span_s * SPANS_MAX as f64 {
            self.merge();
        }
        let mut at_s = from_s;
        // Spans are whole minutes, so their ends are exact and every step gets on.
        while at_s < to_s {
            let nth = ((at_s / self.span_s) as usize).min(SPANS_MAX - 1);
            let end_s = match nth + 1 {
                SPANS_MAX => to_s,
                next => to_s.min(next as f64 * self.span_s),
            };
            if self.sums.len() <= nth {
                self.sums.resize(nth + 1, vec![LinkLoad::default(); self.loads.len()]);
            }
            for (sum, load) in self.sums[nth].iter_mut().zip(&self.loads) {
                sum.mean += load.mean * (end_s - at_s);
                sum.busiest += load.busiest * (end_s - at_s);
            }
            at_s = end_s;
        }
    }

    fn merge(&mut self) {
        let merged = self.sums.chunks(2).map(|pair| {
            let mut sums = pair[0].clone();
            for (sum, more) in sums.iter_mut().zip(pair.iter().skip(1).flatten()) {
                sum.mean += more.mean;
                sum.busiest += more.busiest;
            }
            sums
        });
        self.sums = merged.collect();
        self.span_s *= 2.0;
    }

    /// One row at the end of each span; none if no link ever carried anything.
    pub fn rows(self) -> Vec<EventRow> {
        let Some(start_s) = self.start_s else { return Vec::new() };
        if self.sums.iter().flatten().all(|load| load.busiest == 0.0) {
            return Vec::new();
        }
        let row = |(nth, sums): (usize, &Vec<LinkLoad>)| {
            let from_s = nth as f64 * self.span_s;
            let to_s = (from_s + self.span_s).min(self.last_s - start_s);
            let means = |read: fn(&LinkLoad) -> f64| {
                sums.iter().map(|sum| read(sum) / (to_s - from_s)).collect()
            };
            let (mean, busiest) = (means(|load| load.mean), means(|load| load.busiest));
            EventRow { t: start_s + to_s, what: Happening::Links { mean, busiest } }
        };
        self.sums.iter().enumerate().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(mean: f64) -> Vec<LinkLoad> {
        vec![LinkLoad { mean, busiest: 2.0 * mean }]
    }

    /// Load × time over all rows, and how many there are.
    fn area(meter: LinkMeter, start_s: Seconds) -> (f64, usize) {
        let rows = meter.rows();
        let mut before_s = start_s;
        let mut area = 0.0;
        for row in &rows {
            let Happening::Links { mean, busiest } = &row.what else { panic!("{row:?}") };
            assert!((busiest[0] - 2.0 * mean[0]).abs() < 1e-9);
            assert!(row.t > before_s, "{} after {before_s}", row.t);
            area += mean[0] * (row.t - before_s);
            before_s = row.t;
        }
        (area, rows.len())
    }

    #[test]
    fn spans_keep_the_area_however_long_the_run() {
        for end_s in [90.0, 1e4, 1e6, 123_456_789.0] {
            let mut meter = LinkMeter::default();
            meter.set(1000.0, load(0.0));
            for nth in 0..100 {
                let begin_s = 1000.0 + end_s * f64::from(nth) / 100.0;
                meter.set(begin_s, load(0.3));
                meter.set(begin_s + end_s / 300.0, load(0.0));
            }
            meter.set(1000.0 + end_s, load(0.0));
            let (area, rows) = area(meter, 1000.0);
            assert!((area / (0.1 * end_s) - 1.0).abs() < 1e-6, "{area} of {end_s}");
            assert!(rows <= SPANS_MAX);
        }
    }

    #[test]
    fn idle_links_have_no_rows() {
        let mut meter = LinkMeter::default();
        meter.set(0.0, load(0.0));
        meter.set(1e6, load(0.0));
        assert!(meter.rows().is_empty());
    }
}
