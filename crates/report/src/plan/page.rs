//! The plan as one self-contained page.

use minijinja::{Value, context};
use serde::Serialize;

use super::text::mebibytes;
use super::{HotnessCurve, Lever, PlanReport, PlannedTable};
use crate::format::{count, percent, plural, rounded};
use crate::page::render;

const TEMPLATE: &str = include_str!("../../assets/plan.html");
const STYLE: &str = include_str!("../../assets/plan.css");
const SCRIPTS: [&str; 2] =
    [include_str!("../../assets/js/data.js"), include_str!("../../assets/js/plan.js")];
/// More curves could not be told apart.
const CURVES_MAX: usize = 24;

#[derive(Serialize)]
struct Data<'a> {
    /// The page's common script asks for it.
    runs: [(); 0],
    /// Numbers of rows: all curves' own, ascending.
    rows: Vec<usize>,
    curves: Vec<Curve<'a>>,
    marks: Vec<Mark>,
}

#[derive(Serialize)]
struct Curve<'a> {
    label: &'a str,
    /// At each number of rows; none between the curve's own points.
    shares: Vec<Option<f64>>,
}

/// The number of rows that fit into half of a cache.
#[derive(Serialize)]
struct Mark {
    label: String,
    rows: usize,
}

impl PlanReport {
    /// The plan as a page that needs no network, no other file, and no script for its tables.
    pub fn html(&self) -> String {
        let json = serde_json::to_string(&self.data()).expect("numbers and strings are JSON");
        let own = context! {
            title => format!("Plan for {}", self.model),
            headline => self.headline(),
            facts => self.facts(),
            tables => self.tables.iter().map(table_row).collect::<Vec<_>>(),
            levers => self.lever_groups(),
            hidden_curves => self.curves.len().saturating_sub(CURVES_MAX),
            notes => self.notes.clone(),
            commands => self.commands.iter().map(|c| context! {
                purpose => c.purpose.clone(),
                command => c.command.clone(),
            }).collect::<Vec<_>>(),
        };
        render(TEMPLATE, STYLE, &SCRIPTS, &json, own)
    }

    /// What the plan itself gains, which need not be the fastest combination that was measured.
    fn headline(&self) -> Option<String> {
        let plan = self.levers.iter().find(|lever| lever.chosen)?;
        let threads = plural(plan.threads, "thread");
        Some(match plan.name.as_str() {
            "none" => {
                format!("The plan uses no lever: with {threads}, a row takes {:.1} ns.", plan.ns)
            }
            name => format!(
                "With {threads}, the plan ({name}) makes lookups {:.2}× as fast as no lever: {:.1} ns \
                 per row.",
                plan.speedup, plan.ns
            ),
        })
    }

    fn facts(&self) -> Vec<Value> {
        let machine = &self.machine;
        let threads = if self.threads == 0 { machine.cores } else { self.threads };
        let facts = [
            ("Ids", self.trace.clone()),
            ("Tables", self.tables.len().to_string()),
            ("Batch", format!("{} samples, {:.0} ids per bag", self.batch, self.pooling)),
            ("Threads", threads.to_string()),
            ("MLPs", self.mlp.clone()),
            ("Processor", format!("{}, {}", machine.cpu, plural(machine.cores, "core"))),
            (
                "Caches",
                format!("L2 {}, L3 {}", mebibytes(machine.l2_bytes), mebibytes(machine.l3_bytes)),
            ),
            ("Version", format!("hither {}", self.hither)),
        ];
        facts.into_iter().map(|(name, value)| context! { name, values => [value] }).collect()
    }

    fn data(&self) -> Data<'_> {
        let shown = &self.curves[..self.curves.len().min(CURVES_MAX)];
        let mut rows: Vec<usize> =
            shown.iter().flat_map(|curve| curve.points.iter().map(|point| point.0)).collect();
        rows.sort_unstable();
        rows.dedup();
        let curve = |curve: &'_ HotnessCurve| -> Vec<Option<f64>> {
            let at = |rows: &usize| curve.points.binary_search_by_key(rows, |point| point.0);
            rows.iter().map(|rows| at(rows).ok().map(|i| rounded(curve.points[i].1))).collect()
        };
        let curves = shown.iter().map(|c| Curve { label: &c.label, shares: curve(c) }).collect();
        let mut marks = Vec::new();
        let mut sizes: Vec<usize> = shown.iter().map(|c| c.row_bytes.max(1)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for (name, bytes) in [("L2", self.machine.l2_bytes), ("L3", self.machine.l3_bytes)] {
            for size in &sizes {
                let of = if sizes.len() > 1 { format!(", {size} B") } else { String::new() };
                marks.push(Mark { label: format!("½ {name}{of}"), rows: bytes / 2 / size });
            }
        }
        Data { runs: [], rows, curves, marks }
    }

    /// One block of bars per number of threads; the length of a bar is its speed-up.
    fn lever_groups(&self) -> Vec<Value> {
        let most = self.levers.iter().map(|lever| lever.speedup);
        let most = most.filter(|s| s.is_finite()).fold(1.0, f64::max);
        let width = |speedup: f64| {
            let share = if speedup.is_finite() { speedup / most } else { 0.0 };
            format!("{:.1}", share.clamp(0.0, 1.0) * 100.0)
        };
        let runs = self.levers.chunk_by(|a, b| a.threads == b.threads);
        runs.map(|levers| {
            let bar = |lever: &Lever| {
                context! {
                    name => lever.name.clone(),
                    chosen => lever.chosen,
                    ns => format!("{:.1}", lever.ns),
                    measured => format!("{:.2}×", lever.speedup),
                    measured_width => width(lever.speedup),
                    gb_s => format!("{:.1}", lever.gb_s),
                    of_touch => percent(lever.of_touch),
                }
            };
            let bars: Vec<Value> = levers.iter().map(bar).collect();
            let threads = plural(levers[0].threads, "thread");
            context! { threads => threads, bars => bars, one => width(1.0) }
        })
        .collect()
    }
}

fn table_row(table: &PlannedTable) -> Value {
    let smaller = |s: &super::SmallerType| {
        context! {
            text => format!("{} {:.2}×, error {}", s.dtype, s.speedup, percent(s.error)),
            advised => s.advised,
        }
    };
    context! {
        name => table.name.clone(),
        form => format!("{} × {} {}", count(table.rows as u64), table.dim, table.dtype),
        lookups => count(table.lookups),
        unique => percent(table.unique as f64 / table.rows.max(1) as f64),
        hot => count(table.hot_fitting as u64),
        hot_share => percent(table.hot_share),
        pages => table.pages.clone(),
        prefetch => table.prefetch.clone(),
        packing => table.packing.clone(),
        hot_rows => count(table.hot_rows as u64),
        smaller => table.smaller.iter().map(smaller).collect::<Vec<_>>(),
    }
}
