//! What one policy saves against others, seed by seed.
//!
//! Runs of one seed meet the same jobs, so the ratio is taken per seed and averaged: its interval is
//! far narrower than what the two policies' own intervals suggest.

use hither_core::record::Summary;
use hither_core::summary::Estimate;

use super::{Grid, METRICS, Place, Sweep, SweepMetric};

/// Savings of `Sweep::policies[0]` in one setting.
pub(super) struct SavingsRow {
    /// The setting's value on each axis, as an index.
    pub at: Vec<usize>,
    /// By rival, then by metric of [`saved_metrics`]: the share saved; `None` where no job finished.
    pub saved: Vec<Vec<Option<Estimate>>>,
}

/// The metrics of which savings are told: the times that the terminal shows.
pub(super) fn saved_metrics() -> impl Iterator<Item = &'static SweepMetric> + Clone {
    METRICS.iter().filter(|metric| metric.is_brief && metric.smaller)
}

impl Sweep<'_> {
    /// The rivals by their place among the policies.
    pub(super) fn rivals(&self) -> Vec<usize> {
        let place = |name: &&str| self.policies.iter().position(|policy| policy == name);
        self.against.iter().filter_map(place).filter(|&at| at > 0).collect()
    }

    pub(super) fn savings(&self, grid: &Grid) -> Vec<SavingsRow> {
        let rivals = self.rivals();
        let row = |place: &Place| SavingsRow {
            at: place.at.clone(),
            saved: rivals
                .iter()
                .map(|&rival| saved_metrics().map(|m| saved(place, rival, m)).collect())
                .collect(),
        };
        grid.places.iter().map(row).collect()
    }
}

/// Mean over the seeds of 1 − own figure / rival's figure.
fn saved(place: &Place, rival: usize, metric: &SweepMetric) -> Option<Estimate> {
    let ratio = |cell: &&[Summary]| {
        let (own, other) = (cell.first()?, cell.get(rival)?);
        let share = 1.0 - (metric.value)(own) / (metric.value)(other);
        (own.finished > 0 && other.finished > 0 && share.is_finite()).then_some(share)
    };
    let shares: Vec<f64> = place.cells.iter().filter_map(ratio).collect();
    (!shares.is_empty()).then(|| Estimate::from_values(&shares))
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
