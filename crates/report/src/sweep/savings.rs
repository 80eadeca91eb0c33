//! What one policy saves against others, or one value of a varied setting against the other values, seed by
//! seed.
//!
//! Runs of one seed meet the same jobs, so the ratio is taken per seed and averaged: its interval is
//! far narrower than what the two runs' own intervals suggest.

use std::collections::BTreeMap;

use hither_core::record::Summary;
use hither_core::summary::Estimate;

use super::{Axis, METRICS, SEED, Sweep, SweepMetric};

/// By rival, then by metric of [`saved_metrics`]: the share saved; `None` where no job finished.
type Savings = Vec<Vec<Option<Estimate>>>;

/// Savings of one run against several others.
pub(super) struct Comparison<'a> {
    /// Who saves: the first policy, or it with the first value of a setting.
    pub own: String,
    pub rivals: Vec<String>,
    /// The axes that tell the rows apart.
    pub axes: Vec<Axis<'a>>,
    /// The place on each of these axes, and the savings there.
    pub rows: Vec<(Vec<usize>, Savings)>,
    /// Geometric mean over all rows, where there are several.
    pub overall: Option<Savings>,
}

/// Two runs that differ in one thing.
struct Pair<'a> {
    place: Vec<usize>,
    seed: usize,
    own: &'a Summary,
    other: &'a Summary,
}

/// The metrics of which savings are told: the times that the terminal shows.
pub(super) fn saved_metrics() -> impl Iterator<Item = &'static SweepMetric> + Clone {
    METRICS.iter().filter(|metric| metric.is_brief && metric.smaller)
}

impl<'a> Sweep<'a> {
    /// One comparison for all rival policies, and one for each key of `against` that is varied.
    pub(super) fn comparisons(&self) -> Vec<Comparison<'a>> {
        let place = |name: &&str| self.policies.iter().position(|policy| policy == name);
        let rivals: Vec<usize> =
            self.against.iter().filter_map(place).filter(|&at| at > 0).collect();
        let policies = (!rivals.is_empty()).then(|| {
            let names = rivals.iter().map(|&rival| self.policies[rival].to_owned()).collect();
            let pairs = rivals.iter().map(|&rival| self.policy_pairs(rival)).collect();
            self.compared(self.policies[0].to_owned(), names, None, pairs)
        });
        let keys = self.against.iter().filter_map(|key| {
            let axis = self.axes.iter().position(|axis| axis.key == *key && axis.key != SEED)?;
            let named = |value: &String| format!("{key}={value}");
            let names = self.axes[axis].values.iter().skip(1).map(named).collect();
            let others = 1..self.axes[axis].values.len();
            let pairs = others.map(|value| self.value_pairs(axis, value)).collect();
            let own = format!("{}, {}", self.policies[0], named(self.axes[axis].values.first()?));
            Some(self.compared(own, names, Some(axis), pairs))
        });
        policies.into_iter().chain(keys).collect()
    }

    /// The first policy and a rival, in every cell.
    fn policy_pairs(&self, rival: usize) -> Vec<Pair<'a>> {
        let pair = |(cell, runs): (usize, &&'a [Summary])| {
            self.pair(cell, None, runs.first()?, runs.get(rival)?)
        };
        self.cells.iter().enumerate().filter_map(pair).collect()
    }

    /// The first policy at the first value of an axis and at another.
    fn value_pairs(&self, axis: usize, value: usize) -> Vec<Pair<'a>> {
        let later = &self.axes[axis + 1..];
        let stride: usize = later.iter().map(|axis| axis.values.len()).product();
        let pair = |(cell, runs): (usize, &&'a [Summary])| {
            let other = self.cells.get(cell + value * stride)?;
            let is_first = self.position(cell)[axis] == 0;
            is_first.then(|| self.pair(cell, Some(axis), runs.first()?, other.first()?))?
        };
        self.cells.iter().enumerate().filter_map(pair).collect()
    }

    fn pair(
        &self,
        cell: usize,
        but: Option<usize>,
        own: &'a Summary,
        other: &'a Summary,
    ) -> Option<Pair<'a>> {
        let at = self.position(cell);
        let seed = self.axes.iter().position(|axis| axis.key == SEED).map_or(0, |seed| at[seed]);
        let kept = |&(axis, _): &(usize, usize)| self.tells_rows_apart(axis, but);
        let place = at.into_iter().enumerate().filter(kept).map(|(_, at)| at).collect();
        (own.finished > 0 && other.finished > 0).then_some(Pair { place, seed, own, other })
    }

    fn tells_rows_apart(&self, axis: usize, but: Option<usize>) -> bool {
        self.axes[axis].key != SEED && Some(axis) != but
    }

    /// `pairs` by rival.
    fn compared(
        &self,
        own: String,
        rivals: Vec<String>,
        but: Option<usize>,
        pairs: Vec<Vec<Pair<'a>>>,
    ) -> Comparison<'a> {
        let mut places: Vec<Vec<usize>> = Vec::new();
        for pair in pairs.iter().flatten() {
            if !places.contains(&pair.place) {
                places.push(pair.place.clone());
            }
        }
        places.sort();
        let row = |place: &Vec<usize>| -> Savings {
            let here = |pairs: &Vec<Pair>, metric: &SweepMetric| {
                let ratios = pairs.iter().filter(|pair| pair.place == *place);
                saved(ratios.filter_map(|pair| pair.ratio(metric)))
            };
            pairs.iter().map(|pairs| saved_metrics().map(|m| here(pairs, m)).collect()).collect()
        };
        let overall = || -> Savings {
            pairs
                .iter()
                .map(|pairs| saved_metrics().map(|m| over_all(pairs, m)).collect())
                .collect()
        };
        let axes = self.axes.iter().enumerate();
        Comparison {
            own,
            rivals,
            axes: axes.filter(|axis| self.tells_rows_apart(axis.0, but)).map(|a| *a.1).collect(),
            overall: (places.len() > 1).then(overall),
            rows: places.iter().map(|place| (place.clone(), row(place))).collect(),
        }
    }
}

impl Pair<'_> {
    /// Own figure over the other's.
    fn ratio(&self, metric: &SweepMetric) -> Option<f64> {
        let ratio = (metric.value)(self.own) / (metric.value)(self.other);
        ratio.is_finite().then_some(ratio)
    }
}

/// The mean of what is saved; `None` if there is nothing to compare.
fn saved(ratios: impl Iterator<Item = f64>) -> Option<Estimate> {
    let shares: Vec<f64> = ratios.map(|ratio| 1.0 - ratio).collect();
    (!shares.is_empty()).then(|| Estimate::from_values(&shares))
}

/// The geometric mean over all places for each seed, and the mean of the seeds.
fn over_all(pairs: &[Pair], metric: &SweepMetric) -> Option<Estimate> {
    let mut by_seed: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for pair in pairs {
        let logarithm = pair.ratio(metric).filter(|&ratio| ratio > 0.0).map(f64::ln);
        by_seed.entry(pair.seed).or_default().extend(logarithm);
    }
    let mean = |logs: &Vec<f64>| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    saved(by_seed.values().filter(|logs| !logs.is_empty()).map(mean))
}

/// Per cent, with its interval where there are several seeds.
pub(super) fn saved_text(estimate: Option<Estimate>) -> String {
    let Some(Estimate { mean, half_width, .. }) = estimate else { return "–".to_owned() };
    let mean = format!("{:.1}", 100.0 * mean).replace('-', "−");
    let mean = if mean == "−0.0" { "0.0".to_owned() } else { mean };
    match half_width.is_finite() {
        true => format!("{mean} ± {:.1}", 100.0 * half_width),
        false => mean,
    }
}
