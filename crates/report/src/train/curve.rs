//! Curves of a group over rounds: mean, lowest and highest over its runs, with few points whatever
//! the runs' length.

use std::collections::BTreeMap;

use hither_core::record::train::{Round, RunRecord};
use serde::Serialize;

use super::group::ModeGroup;
use crate::format::rounded;

/// More could not be seen in a plot.
const POINTS_MAX: usize = 400;
/// Of all groups of a page together, so that its size stays bounded.
const POINTS_TOTAL_MAX: usize = 3600;

/// Spans of as many rounds each; one grid serves all groups of a page.
pub struct RoundGrid {
    pub span: u32,
    spans: u32,
}

impl RoundGrid {
    pub fn over(groups: &[ModeGroup]) -> Self {
        let runs = groups.iter().flat_map(|group| &group.runs);
        let last = runs.flat_map(|run| &run.rounds).map(|row| row.round).max().unwrap_or(0);
        let points = (POINTS_TOTAL_MAX / groups.len().max(1)).clamp(2, POINTS_MAX) as u32;
        let span = last.div_ceil(points).max(1);
        Self { span, spans: last.div_ceil(span) }
    }

    fn at(&self, round: u32) -> usize {
        (round.saturating_sub(1) / self.span) as usize
    }

    /// The middle round of each span.
    pub fn rounds(&self) -> Vec<f64> {
        let middle = |i: u32| f64::from(i) * f64::from(self.span) + f64::from(self.span + 1) / 2.0;
        (0..self.spans).map(middle).collect()
    }

    fn means(&self) -> Means {
        Means(vec![(0.0, 0); self.spans as usize])
    }
}

/// A mean for each span, of whatever was added to it.
struct Means(Vec<(f64, u32)>);

impl Means {
    fn add(&mut self, at: usize, value: f64) {
        if value.is_finite() {
            self.0[at].0 += value;
            self.0[at].1 += 1;
        }
    }

    fn finish(&self) -> Vec<Option<f64>> {
        self.0.iter().map(|&(sum, n)| (n > 0).then(|| sum / f64::from(n))).collect()
    }
}

/// Values over the grid; `None` where nothing was measured.
#[derive(Debug, PartialEq, Serialize)]
pub struct Curve {
    mean: Vec<Option<f64>>,
    /// Left out where all runs agree, and so where there is only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    band: Option<Band>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Band {
    low: Vec<Option<f64>>,
    high: Vec<Option<f64>>,
}

/// A figure of rounds over the grid, each run's rounds averaged in every span.
pub fn curve(
    group: &ModeGroup,
    grid: &RoundGrid,
    read: fn(&Round) -> Option<f64>,
) -> Option<Curve> {
    let of_run = |run: &&RunRecord| {
        let mut means = grid.means();
        for row in &run.rounds {
            if let Some(value) = read(row) {
                means.add(grid.at(row.round), value);
            }
        }
        means.finish()
    };
    let runs: Vec<Vec<Option<f64>>> = group.runs.iter().map(of_run).collect();
    let mut mean = grid.means();
    for run in &runs {
        run.iter().enumerate().for_each(|(at, value)| value.iter().for_each(|v| mean.add(at, *v)));
    }
    let edge = |better: fn(f64, f64) -> f64| -> Vec<Option<f64>> {
        let of = |at| runs.iter().filter_map(|run: &Vec<Option<f64>>| run[at]).reduce(better);
        (0..grid.spans as usize).map(of).collect()
    };
    let (mean, low, high) =
        (trimmed(mean.finish()), trimmed(edge(f64::min)), trimmed(edge(f64::max)));
    let band = (low != high).then_some(Band { low, high });
    (!mean.is_empty()).then_some(Curve { mean, band })
}

/// Where the group's scores stand on an axis along which every round moves by `step`: the sum of
/// the rounds' means over runs, because a mean of sums would jump back where a run ends early.
pub fn positions(
    group: &ModeGroup,
    grid: &RoundGrid,
    start: f64,
    step: fn(&Round) -> f64,
) -> Vec<Option<f64>> {
    let mut rounds: BTreeMap<u32, (f64, u32, bool)> = BTreeMap::new();
    for row in group.runs.iter().flat_map(|run| &run.rounds) {
        let (sum, n, scored) = rounds.entry(row.round).or_default();
        let step = step(row);
        *sum += if step.is_finite() { step } else { 0.0 };
        *n += 1;
        *scored |= row.valid.is_some() || row.test.is_some();
    }
    let mut means = grid.means();
    let mut at = start;
    for (round, (sum, n, scored)) in rounds {
        at += sum / f64::from(n);
        if scored {
            means.add(grid.at(round), at);
        }
    }
    // A group that never moves has no place on the axis.
    if at > 0.0 { trimmed(means.finish()) } else { Vec::new() }
}

/// As a plot needs them, and nothing behind the last.
fn trimmed(mut values: Vec<Option<f64>>) -> Vec<Option<f64>> {
    let end = values.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    values.truncate(end);
    values.into_iter().map(|value| value.map(rounded)).collect()
}
