//! A sweep, the same simulation over a grid of settings: for the terminal ([`tables`](Sweep::tables))
//! and as one page ([`html`](Sweep::html)).

mod page;
mod savings;
mod text;

use hither_core::record::{Header, Summary};
use hither_core::summary::Estimate;

use crate::format::{TimeUnit, percent};
use crate::metric::useful_utilisation;

/// The seed is an axis whose cells are repetitions of each other: they are averaged.
const SEED: &str = "seed";

/// One key that is varied, and its values as they were written.
#[derive(Clone, Copy)]
pub struct Axis<'a> {
    pub key: &'a str,
    pub values: &'a [String],
}

/// The results of a sweep: a summary per policy and cell of the grid.
pub struct Sweep<'a> {
    /// Trace and cluster of all cells; seed and congestion where they are not varied.
    pub header: &'a Header,
    /// What all cells share, by name.
    pub settings: Vec<(String, String)>,
    pub axes: Vec<Axis<'a>>,
    pub policies: Vec<&'a str>,
    /// Policies that the first one is measured against, and varied keys whose first value is measured
    /// against the others.
    pub against: Vec<&'a str>,
    /// One summary per policy for each cell of the full grid, the last axis varying fastest.
    pub cells: Vec<&'a [Summary]>,
}

struct SweepMetric {
    name: &'static str,
    meaning: &'static str,
    smaller: bool,
    is_time: bool,
    /// Whether the terminal has room for it.
    is_brief: bool,
    value: fn(&Summary) -> f64,
}

const METRICS: [SweepMetric; 7] = [
    SweepMetric {
        name: "Average JCT",
        meaning: "Mean time from submission to end, over finished jobs",
        smaller: true,
        is_time: true,
        is_brief: true,
        value: |s| s.jct_s.mean,
    },
    SweepMetric {
        name: "p50 JCT",
        meaning: "Half of the finished jobs completed within this time",
        smaller: true,
        is_time: true,
        is_brief: false,
        value: |s| s.jct_s.p50,
    },
    SweepMetric {
        name: "p99 JCT",
        meaning: "99 % of the finished jobs completed within this time",
        smaller: true,
        is_time: true,
        is_brief: false,
        value: |s| s.jct_s.p99,
    },
    SweepMetric {
        name: "Average queueing time",
        meaning: "Mean time without GPUs between submission and end",
        smaller: true,
        is_time: true,
        is_brief: false,
        value: |s| s.queue_s.mean,
    },
    SweepMetric {
        name: "Makespan",
        meaning: "First submission to last end",
        smaller: true,
        is_time: true,
        is_brief: true,
        value: |s| s.makespan_s,
    },
    SweepMetric {
        name: "Communication time",
        meaning: "Time that jobs wait for the network, summed over all jobs",
        smaller: true,
        is_time: true,
        is_brief: true,
        // A sweep always models the network.
        value: |s| s.comm_s_total.unwrap_or(f64::NAN),
    },
    SweepMetric {
        name: "Useful utilisation",
        meaning: "Share of the GPU time up to the makespan that was allocated to jobs and not spent waiting for the \
                  network",
        smaller: false,
        is_time: false,
        is_brief: false,
        value: useful_utilisation,
    },
];

/// How all figures of a metric are written.
enum Unit {
    Time(TimeUnit),
    Percent,
}

impl Unit {
    fn name(&self) -> &'static str {
        match self {
            Self::Time(unit) => unit.name,
            Self::Percent => "%",
        }
    }

    /// Mean ± half-width, without the unit.
    fn text(&self, estimate: Option<Estimate>) -> String {
        let Some(Estimate { mean, half_width, .. }) = estimate else { return "–".to_owned() };
        let number = |value: f64| match self {
            Self::Time(unit) => unit.number(value),
            Self::Percent => percent(value).replace(" %", ""),
        };
        match half_width.is_finite() {
            true => format!("{} ± {}", number(mean), number(half_width)),
            false => number(mean),
        }
    }
}

/// Cells that differ by their seed only, as one.
struct Place<'a> {
    /// Its value on each axis of the grid, as an index.
    at: Vec<usize>,
    cells: Vec<&'a [Summary]>,
}

struct Grid<'a> {
    axes: Vec<Axis<'a>>,
    places: Vec<Place<'a>>,
}

impl<'a> Sweep<'a> {
    /// All cells, those of different seeds pooled.
    fn pooled(&self) -> Grid<'a> {
        self.grid(|axis| axis.key != SEED)
    }

    /// As many places as the axes that are kept span.
    fn grid(&self, keep: impl Fn(&Axis) -> bool) -> Grid<'a> {
        let mut places: Vec<Place> = Vec::new();
        let mut known = std::collections::HashMap::new();
        for (cell, runs) in self.cells.iter().enumerate() {
            let at = self.position(cell);
            let kept = at.into_iter().zip(&self.axes).filter(|(_, axis)| keep(axis));
            let at: Vec<usize> = kept.map(|(at, _)| at).collect();
            let place = *known.entry(at.clone()).or_insert(places.len());
            if place == places.len() {
                places.push(Place { at, cells: Vec::new() });
            }
            places[place].cells.push(runs);
        }
        Grid { axes: self.axes.iter().copied().filter(|axis| keep(axis)).collect(), places }
    }

    /// Where a cell lies on each axis.
    fn position(&self, cell: usize) -> Vec<usize> {
        let mut rest = cell;
        let mut at: Vec<usize> = Vec::new();
        for axis in self.axes.iter().rev() {
            let values = axis.values.len().max(1);
            at.push(rest % values);
            rest /= values;
        }
        at.reverse();
        at
    }

    /// One row per place, one estimate per policy. `None` where no job finished.
    fn estimates(&self, grid: &Grid, metric: &SweepMetric) -> Vec<Vec<Option<Estimate>>> {
        let of = |place: &Place, policy: usize| {
            let runs = place.cells.iter().filter_map(|cell| cell.get(policy));
            let values: Vec<f64> = runs
                .filter(|s| s.finished > 0)
                .map(metric.value)
                .filter(|value| value.is_finite())
                .collect();
            (!values.is_empty()).then(|| Estimate::from_values(&values))
        };
        let row = |place| (0..self.policies.len()).map(|policy| of(place, policy)).collect();
        grid.places.iter().map(row).collect()
    }

    /// How many seeds stand behind each figure.
    fn seeds(&self) -> usize {
        self.axes.iter().find(|axis| axis.key == SEED).map_or(1, |axis| axis.values.len())
    }
}

/// One unit for a metric in all places and of all policies.
fn unit(metric: &SweepMetric, rows: &[Vec<Option<Estimate>>]) -> Unit {
    match metric.is_time {
        true => Unit::Time(TimeUnit::for_column(rows.iter().flatten().flatten().map(|e| e.mean))),
        false => Unit::Percent,
    }
}

/// Which policies are best in a row. Figures that read the same share the mark: a difference behind
/// the last decimal is no victory.
fn best(metric: &SweepMetric, row: &[Option<Estimate>], unit: &Unit) -> Vec<bool> {
    let values: Vec<Option<f64>> = row.iter().map(|e| e.map(|e| e.mean)).collect();
    let winners = crate::metric::winners(&values, metric.smaller);
    let texts: Vec<String> = row.iter().map(|e| unit.text(*e)).collect();
    let is_best = |text: &String| winners.iter().zip(&texts).any(|(won, t)| *won && t == text);
    let marks: Vec<bool> = texts.iter().map(is_best).collect();
    if marks.iter().all(|m| *m) { vec![false; marks.len()] } else { marks }
}
