//! The figures that policies are compared by, and which of them is best. Terminal and page share
//! this one list, so that they cannot disagree.

use hither_core::record::Summary;

use crate::format::{TimeUnit, percent};

/// A column of the comparison.
pub struct Metric {
    pub name: &'static str,
    /// Shown when the pointer rests on the column.
    pub meaning: &'static str,
    /// Whether a smaller value is better.
    pub smaller: bool,
    /// The figure; `None` if the run has none, such as a completion time if no job finished.
    pub value: fn(&Summary) -> Option<f64>,
    pub show: Show,
}

/// How a metric is written.
pub enum Show {
    /// Seconds, in one unit for the whole column.
    Time,
    Text(fn(&Summary) -> String),
}

pub const METRICS: &[Metric] = &[
    Metric {
        name: "finished",
        meaning: "Jobs that ran to their end, of all jobs in the trace",
        smaller: false,
        value: |s| Some(s.finished as f64),
        show: Show::Text(|s| format!("{}/{}", s.finished, s.jobs)),
    },
    Metric {
        name: "avg JCT",
        meaning: "Mean job completion time: submission to end, over finished jobs",
        smaller: true,
        value: |s| of_finished(s, s.jct_s.mean),
        show: Show::Time,
    },
    Metric {
        name: "p50 JCT",
        meaning: "Half of the finished jobs completed within this time",
        smaller: true,
        value: |s| of_finished(s, s.jct_s.p50),
        show: Show::Time,
    },
    Metric {
        name: "p95 JCT",
        meaning: "95 % of finished jobs completed within this time",
        smaller: true,
        value: |s| of_finished(s, s.jct_s.p95),
        show: Show::Time,
    },
    Metric {
        name: "p99 JCT",
        meaning: "99 % of finished jobs completed within this time",
        smaller: true,
        value: |s| of_finished(s, s.jct_s.p99),
        show: Show::Time,
    },
    Metric {
        name: "avg queue",
        meaning: "Mean time without GPUs between submission and end",
        smaller: true,
        value: |s| of_finished(s, s.queue_s.mean),
        show: Show::Time,
    },
    Metric {
        name: "makespan",
        meaning: "First submission to last end",
        smaller: true,
        value: |s| of_finished(s, s.makespan_s),
        show: Show::Time,
    },
    Metric {
        name: "useful util",
        meaning: "Share of the GPU time up to the makespan that was allocated to jobs and not spent \
                  waiting for the network",
        smaller: false,
        value: |s| Some(useful_utilisation(s)),
        show: Show::Text(|s| percent(useful_utilisation(s))),
    },
    Metric {
        name: "comm share",
        meaning: "Exposed communication time over running time",
        smaller: true,
        value: |s| s.comm_share.filter(|_| s.finished > 0),
        show: Show::Text(|s| s.comm_share.map_or_else(absent, percent)),
    },
    Metric {
        name: "tiers",
        meaning: "GPU time of multi-GPU jobs by the level of the place that holds them, from inside a \
                  machine outward; best is the largest share inside a machine",
        smaller: false,
        value: |s| s.tier_share.first().copied().filter(|_| has_tiers(s)),
        show: Show::Text(|s| {
            if !has_tiers(s) {
                return absent();
            }
            let shares = s.tier_share.iter().map(|share| (share * 100.0).round().to_string());
            format!("{} %", shares.collect::<Vec<_>>().join("/"))
        }),
    },
    Metric {
        name: "preempt",
        meaning: "How often the policy took GPUs from a running job",
        smaller: true,
        value: |s| Some(s.preemptions as f64),
        show: Show::Text(|s| s.preemptions.to_string()),
    },
];

/// GPUs that stall are in use and do no work: more of them must not count as better. Files of earlier versions
/// have only the share of the jobs' time, large and small jobs alike.
pub fn useful_utilisation(summary: &Summary) -> f64 {
    let roughly = || summary.gpu_utilisation * (1.0 - summary.comm_share.unwrap_or(0.0));
    summary.useful_utilisation.unwrap_or_else(roughly)
}

/// The place of a figure that the run does not have.
fn absent() -> String {
    "–".to_owned()
}

/// Whether any job of several GPUs ran at a known tier.
fn has_tiers(summary: &Summary) -> bool {
    summary.tier_share.iter().any(|share| *share > 0.0)
}

fn of_finished(summary: &Summary, value: f64) -> Option<f64> {
    (summary.finished > 0).then_some(value)
}

impl Metric {
    /// The column's cells, one per run.
    pub fn texts(&self, runs: &[&Summary]) -> Vec<String> {
        match self.show {
            Show::Text(text) => runs.iter().map(|s| text(s)).collect(),
            Show::Time => {
                let seconds: Vec<f64> =
                    runs.iter().map(|s| (self.value)(s).unwrap_or(f64::NAN)).collect();
                let unit = TimeUnit::for_column(seconds.iter().copied());
                seconds.into_iter().map(|s| unit.text(s)).collect()
            }
        }
    }

    /// Which runs are best.
    pub fn winners(&self, runs: &[&Summary]) -> Vec<bool> {
        let values: Vec<Option<f64>> = runs.iter().map(|s| (self.value)(s)).collect();
        winners(&values, self.smaller)
    }
}

/// Which values are best; none if all are equal, as a single value is.
pub fn winners(values: &[Option<f64>], smaller: bool) -> Vec<bool> {
    let values: Vec<Option<f64>> = values.iter().map(|v| v.filter(|v| v.is_finite())).collect();
    let best =
        values.iter().flatten().copied().reduce(|a, b| if smaller { a.min(b) } else { a.max(b) });
    // Sums of the same times in another order differ in their last bits; that is no victory.
    let is_best = |v: &Option<f64>| match (v, best) {
        (Some(v), Some(best)) => (v - best).abs() <= best.abs() * 1e-9,
        _ => false,
    };
    let marks: Vec<bool> = values.iter().map(is_best).collect();
    if marks.iter().all(|&m| m) { vec![false; values.len()] } else { marks }
}
