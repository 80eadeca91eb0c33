//! The sweep as one self-contained page.

use hither_core::summary::Estimate;
use minijinja::{Value, context};
use serde::Serialize;

use super::savings::{Comparison, saved_metrics, saved_text};
use super::{Axis, Grid, METRICS, SEED, Sweep, SweepMetric, Unit, best, unit};
use crate::data::COLOURS;
use crate::format::{cluster, count, gpus, plural, rounded};
use crate::page::{distinct, render};

const TEMPLATE: &str = include_str!("../../assets/sweep.html");
const STYLE: &str = include_str!("../../assets/sweep.css");
/// In the order in which they build on each other.
const SCRIPTS: [&str; 4] = [
    include_str!("../../assets/js/data.js"),
    include_str!("../../assets/js/select.js"),
    include_str!("../../assets/js/draw.js"),
    include_str!("../../assets/js/sweep.js"),
];
/// Even where all policies are nearly alike, twice the best is far from it.
const FULL_RATIO_MIN: f64 = 2.0;
/// More than this of the heat colour, and the figure on it cannot be read.
const HEAT_PERCENT_MAX: f64 = 60.0;
const NOTES_MAX: usize = 8;

#[derive(Serialize)]
struct Data<'a> {
    /// One per policy: the page's common scripts know its selectable things by this name.
    runs: Vec<PolicyData<'a>>,
    axes: Vec<AxisData<'a>>,
    metrics: Vec<MetricData>,
}

#[derive(Serialize)]
struct PolicyData<'a> {
    label: &'a str,
    colour: usize,
    dash: usize,
}

#[derive(Serialize)]
struct AxisData<'a> {
    key: &'a str,
    values: &'a [String],
    /// The values as numbers, where all of them are.
    numbers: Option<Vec<f64>>,
}

#[derive(Serialize)]
struct MetricData {
    name: &'static str,
    is_time: bool,
    unit: &'static str,
    /// What figures are divided by to be in that unit.
    size: f64,
    /// By place, the last axis varying fastest, and policy.
    mean: Vec<Vec<Option<f64>>>,
    half: Vec<Vec<Option<f64>>>,
}

impl Sweep<'_> {
    /// The sweep as a page that needs no network, no other file, and no script for its tables.
    pub fn html(&self) -> String {
        let pooled = self.pooled();
        // Where only the seed varies, there is nothing else to draw along.
        let drawn = if pooled.axes.is_empty() { self.grid(|_| true) } else { self.pooled() };
        let metrics: Vec<Value> =
            METRICS.iter().map(|metric| self.metric_table(metric, &pooled)).collect();
        let data = Data {
            runs: self.policies.iter().enumerate().map(policy_data).collect(),
            axes: drawn.axes.iter().map(axis_data).collect(),
            metrics: METRICS.iter().map(|metric| self.metric_data(metric, &drawn)).collect(),
        };
        let json = serde_json::to_string(&data).expect("numbers and strings are JSON");
        let own = context! {
            title => self.title(),
            headline => self.headline(&pooled),
            facts => self.facts(),
            labels => self.policies.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(),
            keys => pooled.axes.iter().map(|axis| axis.key.to_owned()).collect::<Vec<_>>(),
            has_map => drawn.axes.len() > 1,
            metrics => metrics,
            savings => self.savings_tables(),
            spread => self.spread(),
            settings => self.settings.iter().map(|(name, value)| context! { name, value })
                .collect::<Vec<_>>(),
            notes => self.notes(),
        };
        render(TEMPLATE, STYLE, &SCRIPTS, &json, own)
    }

    fn title(&self) -> String {
        let keys: Vec<&str> =
            self.axes.iter().map(|axis| axis.key).filter(|k| *k != SEED).collect();
        let over = match keys.as_slice() {
            [] => plural(self.seeds(), SEED),
            keys => keys.join(" and "),
        };
        let policies = match self.policies.as_slice() {
            [one] => (*one).to_owned(),
            all => format!("{} policies", all.len()),
        };
        format!("{policies} over {over} on {}", plural(gpus(&self.header.cluster), "GPU"))
    }

    /// Which policy completes jobs soonest, and in how many settings.
    fn headline(&self, grid: &Grid) -> Option<String> {
        let metric = &METRICS[0];
        let rows = self.estimates(grid, metric);
        let unit = unit(metric, &rows);
        let mut wins = vec![0; self.policies.len()];
        for row in &rows {
            for (win, is_best) in wins.iter_mut().zip(best(metric, row, &unit)) {
                *win += usize::from(is_best);
            }
        }
        let mut order: Vec<usize> = (0..wins.len()).filter(|policy| wins[*policy] > 0).collect();
        order.sort_by_key(|policy| std::cmp::Reverse(wins[*policy]));
        let all = rows.len();
        let told: Vec<String> = order
            .iter()
            .map(|policy| format!("{} in {} of {all}", self.policies[*policy], wins[*policy]))
            .collect();
        let settings = if all == 1 { "setting" } else { "settings" };
        let list = told.join(", ");
        (!told.is_empty()).then(|| format!("Lowest average completion time: {list} {settings}."))
    }

    fn facts(&self) -> Vec<Value> {
        let header = self.header;
        let varied = |key: &str| self.axes.iter().any(|axis| axis.key == key);
        let jobs = self.cells.iter().flat_map(|cell| cell.iter()).map(|s| s.jobs);
        let jobs = distinct(jobs.map(count));
        let mut facts = vec![
            ("Trace", vec![header.trace.clone()]),
            ("Jobs", vec![jobs.join(" · ")]),
            ("Cluster", vec![cluster(&header.cluster)]),
        ];
        let axes = self.axes.iter().map(|axis| format!("{} {}", axis.key, values_text(axis)));
        facts.push(("Varied", axes.collect()));
        if !varied(SEED) {
            facts.push(("Seed", vec![header.seed.to_string()]));
        }
        if !varied("congestion") {
            facts.push(("Congestion", vec![format!("{}×", header.congestion)]));
        }
        let runs = count((self.cells.len() * self.policies.len()) as u64);
        facts.push(("Simulations", vec![runs]));
        facts.push(("Version", vec![format!("hither {}", header.hither)]));
        facts.into_iter().map(|(name, values)| context! { name, values }).collect()
    }

    /// The rows of a metric's table.
    fn metric_table(&self, metric: &SweepMetric, grid: &Grid) -> Value {
        let rows = self.estimates(grid, metric);
        let unit = unit(metric, &rows);
        let ratios: Vec<Vec<f64>> = rows.iter().map(|row| ratios(metric, row)).collect();
        let full = ratios.iter().flatten().copied().fold(FULL_RATIO_MIN, f64::max);
        let mut last: Option<&Vec<usize>> = None;
        let mut table = Vec::new();
        for ((place, row), ratios) in grid.places.iter().zip(&rows).zip(&ratios) {
            let value = |(i, axis): (usize, &Axis)| {
                let repeated = last.is_some_and(|last| last[..=i] == place.at[..=i]);
                context! { text => axis.values[place.at[i]].as_str(), repeated => repeated }
            };
            let values: Vec<Value> = grid.axes.iter().enumerate().map(value).collect();
            let cell = |((estimate, is_best), ratio): ((&Option<Estimate>, bool), &f64)| {
                let heat = ratio.ln() / full.ln() * HEAT_PERCENT_MAX;
                context! {
                    text => unit.text(*estimate),
                    best => is_best,
                    heat => format!("{heat:.1}"),
                }
            };
            let cells: Vec<Value> =
                row.iter().zip(best(metric, row, &unit)).zip(ratios).map(cell).collect();
            last = Some(&place.at);
            table.push(context! { values => values, cells => cells });
        }
        context! {
            name => metric.name,
            meaning => metric.meaning,
            unit => unit.name(),
            full => short(full),
            rows => table,
        }
    }

    /// One table per rival: what the first policy saves against it.
    fn savings_tables(&self) -> Vec<Value> {
        let cell = |estimate: &Option<Estimate>| {
            // Only a difference that chance hardly makes is marked.
            let is_clear = estimate.is_some_and(|e| e.mean.abs() > e.half_width);
            context! { text => saved_text(*estimate), is_clear }
        };
        let cells = |saved: &[Option<Estimate>]| saved.iter().map(cell).collect::<Vec<Value>>();
        let tables = |compared: Comparison| {
            let keys: Vec<String> = compared.axes.iter().map(|a| a.key.to_owned()).collect();
            let table = |(nth, rival): (usize, &String)| {
                let row = |(place, saved): &(Vec<usize>, Vec<Vec<Option<Estimate>>>)| {
                    let values = compared.axes.iter().zip(place);
                    let values: Vec<String> = values.map(|(a, at)| a.values[*at].clone()).collect();
                    context! { values, cells => cells(&saved[nth]) }
                };
                context! {
                    own => compared.own.as_str(),
                    rival => rival.as_str(),
                    keys => keys.clone(),
                    metrics => saved_metrics().map(|metric| metric.name).collect::<Vec<_>>(),
                    rows => compared.rows.iter().map(row).collect::<Vec<_>>(),
                    overall => compared.overall.as_ref().map(|saved| cells(&saved[nth])),
                }
            };
            compared.rivals.iter().enumerate().map(table).collect::<Vec<Value>>()
        };
        self.comparisons().into_iter().flat_map(tables).collect()
    }

    fn metric_data(&self, metric: &SweepMetric, grid: &Grid) -> MetricData {
        let rows = self.estimates(grid, metric);
        let unit = unit(metric, &rows);
        let of = |read: fn(&Estimate) -> f64| -> Vec<Vec<Option<f64>>> {
            let figure = |e: &Option<Estimate>| {
                e.as_ref().map(read).filter(|value| value.is_finite()).map(rounded)
            };
            rows.iter().map(|row| row.iter().map(figure).collect()).collect()
        };
        MetricData {
            name: metric.name,
            is_time: metric.is_time,
            unit: unit.name(),
            size: match &unit {
                Unit::Time(unit) => unit.size_s,
                Unit::Percent => 0.01,
            },
            mean: of(|e| e.mean),
            half: of(|e| e.half_width),
        }
    }

    /// What the reader of the figures should know, each note once.
    fn notes(&self) -> Vec<String> {
        let runs = self.cells.iter().flat_map(|cell| cell.iter());
        let mut notes = distinct(runs.flat_map(|run| run.notes.iter().cloned()));
        let more = notes.len().saturating_sub(NOTES_MAX);
        notes.truncate(NOTES_MAX);
        if more > 0 {
            notes.push(format!("{} in sweep.json.", plural(more, "more note")));
        }
        notes
    }
}

/// How many times the best of the row each policy takes; 1 where there is no figure.
fn ratios(metric: &SweepMetric, row: &[Option<Estimate>]) -> Vec<f64> {
    let values = || row.iter().flatten().map(|e| e.mean).filter(|v| *v > 0.0);
    let best = match metric.smaller {
        true => values().fold(f64::INFINITY, f64::min),
        false => values().fold(0.0, f64::max),
    };
    let ratio = |estimate: &Option<Estimate>| match (estimate, metric.smaller) {
        (Some(e), true) if e.mean > 0.0 => e.mean / best,
        (Some(e), false) if e.mean > 0.0 => best / e.mean,
        _ => 1.0,
    };
    row.iter().map(ratio).collect()
}

fn short(ratio: f64) -> String {
    if ratio >= 9.95 { format!("{ratio:.0}") } else { format!("{ratio:.1}") }
}

fn policy_data<'a>((i, label): (usize, &&'a str)) -> PolicyData<'a> {
    PolicyData { label, colour: i % COLOURS, dash: i / COLOURS }
}

fn axis_data<'a>(axis: &Axis<'a>) -> AxisData<'a> {
    let number = |text: &String| text.parse::<f64>().ok().filter(|v| v.is_finite());
    let numbers: Option<Vec<f64>> = axis.values.iter().map(number).collect();
    AxisData { key: axis.key, values: axis.values, numbers }
}

/// All values, or the first and last of many.
fn values_text(axis: &Axis) -> String {
    match axis.values {
        [first, .., last] if axis.values.len() > 8 => {
            format!("{first} … {last} ({} values)", axis.values.len())
        }
        values => values.join(", "),
    }
}
