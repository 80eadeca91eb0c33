//! Summarises a trace in a few numbers.

use std::collections::{BTreeMap, HashMap, HashSet};

use hither_core::summary::Quantiles;
use serde::Serialize;

use super::{Format, Trace};
use crate::job::{Job, Length};

/// A trace in figures, as `hither trace info` prints it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    pub format: Format,
    pub jobs: usize,
    pub users: usize,
    /// From the first submission to the last.
    pub span_s: f64,
    pub gpu_hours: f64,
    /// See [`offered_load`]; none without a cluster.
    pub offered_load: Option<f64>,
    /// Number of jobs by number of GPUs.
    pub demand: BTreeMap<u32, u64>,
    /// Running times; lengths in iterations count without network time.
    pub duration_s: Quantiles,
    /// Most GPU-hours first.
    pub models: Vec<ModelShare>,
    pub notes: Vec<String>,
}

/// The jobs of one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelShare {
    pub model: String,
    pub jobs: u64,
    pub gpu_hours: f64,
}

/// Describes a trace; `cluster_gpus` is for the offered load.
pub fn describe(trace: &Trace, cluster_gpus: Option<u64>) -> Info {
    let jobs = &trace.jobs;
    let duration_s: Vec<f64> = jobs.iter().map(ideal_s).collect();
    let gpu_hours_of = |(job, s): (&Job, &f64)| f64::from(job.gpus) * s / 3600.0;
    let gpu_hours: f64 = jobs.iter().zip(&duration_s).map(gpu_hours_of).sum();
    let mut demand = BTreeMap::new();
    let mut models: HashMap<&str, (u64, f64)> = HashMap::new();
    for pair in jobs.iter().zip(&duration_s) {
        *demand.entry(pair.0.gpus).or_insert(0) += 1;
        let (count, hours) = models.entry(&pair.0.profile.name).or_default();
        *count += 1;
        *hours += gpu_hours_of(pair);
    }
    let mut models: Vec<ModelShare> = models
        .into_iter()
        .map(|(model, (jobs, gpu_hours))| ModelShare { model: model.into(), jobs, gpu_hours })
        .collect();
    models.sort_by(|a, b| b.gpu_hours.total_cmp(&a.gpu_hours).then_with(|| a.model.cmp(&b.model)));
    let span_s = jobs.last().map_or(0.0, |job| job.submit_s);
    Info {
        format: trace.format,
        jobs: jobs.len(),
        users: jobs.iter().map(|job| job.user.as_str()).collect::<HashSet<_>>().len(),
        span_s,
        gpu_hours,
        offered_load: cluster_gpus.and_then(|gpus| offered_load(jobs, gpus)),
        demand,
        duration_s: Quantiles::from_values(&duration_s),
        models,
        notes: trace.notes.clone(),
    }
}

/// GPU time of all jobs over what so many GPUs give from the first submission to the last; none where
/// all jobs arrive at once.
pub fn offered_load(jobs: &[Job], cluster_gpus: u64) -> Option<f64> {
    let span_s = jobs.last().map_or(0.0, |job| job.submit_s);
    let gpu_s: f64 = jobs.iter().map(|job| f64::from(job.gpus) * ideal_s(job)).sum();
    (cluster_gpus > 0 && span_s > 0.0).then(|| gpu_s / (cluster_gpus as f64 * span_s))
}

/// The running time at the best placement: as recorded, as measured on one machine, or computing
/// alone.
fn ideal_s(job: &Job) -> f64 {
    match job.length {
        Length::Seconds(seconds) => seconds,
        Length::Iterations(count) => {
            let measured = job.profile.table.iter().find(|row| row.placement == [job.gpus]);
            count * measured.map_or(job.profile.compute_s, |row| row.step_s)
        }
        Length::Unknown => 0.0,
    }
}
