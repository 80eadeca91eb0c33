//! A plan for serving a model, and what it rests on: for the terminal ([`text`](PlanReport::text)),
//! as one page ([`html`](PlanReport::html)), and as JSON by its fields.

mod page;
mod text;

use serde::Serialize;

/// Everything that a report on a plan shows.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    pub hither: String,
    pub model: String,
    /// Where the ids came from.
    pub trace: String,
    pub machine: PlanMachine,
    pub batch: usize,
    /// Mean number of ids per bag.
    pub pooling: f64,
    /// Threads that the plan uses; 0 is all cores.
    pub threads: usize,
    pub mlp: String,
    pub tables: Vec<PlannedTable>,
    pub curves: Vec<HotnessCurve>,
    /// Over all tables, weighted by their lookups.
    pub levers: Vec<Lever>,
    /// Tables that share a measurement.
    pub groups: Vec<PlanGroup>,
    pub notes: Vec<String>,
    /// What to type next.
    pub commands: Vec<PlanCommand>,
}

/// A command that a reader may want to type next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanCommand {
    /// As in "to …".
    pub purpose: String,
    pub command: String,
}

/// The machine that the plan was measured on.
#[derive(Clone, Debug, Serialize)]
pub struct PlanMachine {
    pub cpu: String,
    pub cores: usize,
    pub l2_bytes: usize,
    pub l3_bytes: usize,
    pub transparent_huge_pages: Option<String>,
}

/// One table: its shape, its lookups, and its plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedTable {
    pub name: String,
    pub rows: usize,
    pub dim: usize,
    pub dtype: String,
    pub row_bytes: usize,
    pub lookups: u64,
    /// Rows that the trace looks up at least once.
    pub unique: usize,
    /// The hottest rows that fit into half of the L3 cache, which all tables share, and the share of
    /// the table's lookups that go to them.
    pub hot_fitting: usize,
    pub hot_share: f64,
    pub pages: String,
    pub prefetch: String,
    pub packing: String,
    pub hot_rows: usize,
    pub smaller: Vec<SmallerType>,
    /// Its place in [`PlanReport::curves`] and [`PlanReport::groups`].
    pub curve: usize,
    pub group: usize,
}

/// What smaller elements would change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SmallerType {
    pub dtype: String,
    pub row_bytes: usize,
    /// Relative error of a sample of rows.
    pub error: f64,
    pub speedup: f64,
    pub advised: bool,
}

/// How much of a table's lookups go to its hottest rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HotnessCurve {
    pub label: String,
    pub row_bytes: usize,
    /// Numbers of rows, and the share of lookups that go to as many of the hottest rows.
    pub points: Vec<(usize, f64)>,
}

/// A set of levers and what it brings.
#[derive(Clone, Debug, Serialize)]
pub struct Lever {
    pub name: String,
    pub threads: usize,
    /// Nanoseconds per row.
    pub ns: f64,
    /// Relative to no lever with the same number of threads.
    pub speedup: f64,
    pub gb_s: f64,
    /// Time of a reference that only reads the same rows in the same places, over this one's.
    pub of_touch: f64,
    /// Whether the plan has these levers for all tables, with this number of threads.
    pub chosen: bool,
}

/// Tables that share a measurement, and what was measured.
#[derive(Clone, Debug, Serialize)]
pub struct PlanGroup {
    pub tables: Vec<String>,
    pub sampled: Vec<String>,
    pub copied: bool,
    pub huge_share: Option<f64>,
    pub timings: Vec<PlanTiming>,
}

/// The measurements of a group with one number of threads.
#[derive(Clone, Debug, Serialize)]
pub struct PlanTiming {
    pub threads: usize,
    pub prefetch: Vec<SettingPrefetch>,
}

/// The prefetch that was fastest with a set of levers.
#[derive(Clone, Debug, Serialize)]
pub struct SettingPrefetch {
    /// Levers, joined by `+`.
    pub setting: String,
    /// The fastest scheme with them, or `off`.
    pub prefetch: String,
    pub ns: f64,
}
