//! sweep.csv: one row per cell and policy.

use hither_core::record::{ClusterRow, Summary};

use super::grid::Axis;
use super::store::FinishedCell;

/// Every figure of a summary but `sim_cpu_s`, which would make equal sweeps differ.
type Column = (&'static str, fn(&Summary) -> f64);
const COLUMNS: [Column; 19] = [
    ("jobs", |s| s.jobs as f64),
    ("finished", |s| s.finished as f64),
    ("cancelled", |s| s.cancelled as f64),
    ("jct_mean_s", |s| s.jct_s.mean),
    ("jct_p50_s", |s| s.jct_s.p50),
    ("jct_p95_s", |s| s.jct_s.p95),
    ("jct_p99_s", |s| s.jct_s.p99),
    ("jct_max_s", |s| s.jct_s.max),
    ("queue_mean_s", |s| s.queue_s.mean),
    ("queue_p50_s", |s| s.queue_s.p50),
    ("queue_p95_s", |s| s.queue_s.p95),
    ("queue_p99_s", |s| s.queue_s.p99),
    ("queue_max_s", |s| s.queue_s.max),
    ("makespan_s", |s| s.makespan_s),
    ("gpu_utilisation", |s| s.gpu_utilisation),
    ("useful_utilisation", |s| s.useful_utilisation.unwrap_or(f64::NAN)),
    ("fragmentation", |s| s.fragmentation.unwrap_or(f64::NAN)),
    ("comm_s_total", |s| s.comm_s_total.unwrap_or(f64::NAN)),
    ("comm_share", |s| s.comm_share.unwrap_or(f64::NAN)),
];
const COUNTS: [Column; 3] = [
    ("preemptions", |s| s.preemptions as f64),
    ("failures", |s| s.failures as f64),
    ("events", |s| s.events as f64),
];

/// Between the two, the share of each tier: `machine_share`, `rack_share` and so on.
pub fn csv(axes: &[Axis], cluster: &ClusterRow, cells: &[FinishedCell]) -> anyhow::Result<Vec<u8>> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    let keys = axes.iter().map(|axis| axis.key.as_str());
    let shares: Vec<String> =
        cluster.levels.iter().map(|level| format!("{}_share", level.name)).collect();
    let [columns, counts] = [&COLUMNS[..], &COUNTS].map(|list| list.iter().map(|c| c.0));
    let figures = columns.chain(shares.iter().map(String::as_str)).chain(counts);
    csv.write_record(keys.chain(["policy"]).chain(figures))?;
    for FinishedCell { cell, runs } in cells {
        for run in runs {
            let place = axes.iter().map(|axis| cell[&axis.key].clone());
            let [columns, counts] = [&COLUMNS[..], &COUNTS]
                .map(|list| list.iter().map(|(_, figure)| figure(run).to_string()));
            let shares = run.tier_share.iter().map(f64::to_string);
            let figures = columns.chain(shares).chain(counts);
            csv.write_record(place.chain([run.policy.clone()]).chain(figures))?;
        }
    }
    Ok(csv.into_inner()?)
}
