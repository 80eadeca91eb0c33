//! The rules of Muri's simulator (Rivendile/Muri, Apache-2.0) for its policies without packing:
//! SRTF, SRSF and Tiresias (2-D LAS). They reproduce its published results to all printed digits.
//!
//! What these rules are, where they differ from what one would expect:
//! * Everything is planned anew from an empty cluster at every arrival, at every end and, for
//!   Tiresias, whenever a job outgrows its queue. A job that keeps its GPUs is not "restarted",
//!   yet every stretch between two events costs it the start-up overhead, and the estimate of
//!   its end does not know of that overhead.
//! * SRTF and SRSF place jobs on nodes, first fit in order of remaining time (× GPUs), ties in
//!   the order they had before. Tiresias counts GPUs only, as if the cluster were one node.
//! * Ends (and arrivals) within a relative 1e-9 are one event for SRTF and SRSF; Tiresias wants
//!   ends to be equal. Rounding decides such cases, so the order of operations is part of the
//!   rules: `executed + now - before` is not `executed + (now - before)`.
//! * Under Tiresias, an end that was once expected at the very time of the next arrival happens
//!   then, whatever has delayed it since.
//! * The mean adds completion times in order of completion; p99 is `sorted[⌊0.99 n⌋]`.
//!
//! CPU and memory of the nodes are left out: on the published cluster (8 × 8 GPUs, 92 cores,
//! 520 GB) they never bind. Where the original stops with an error we choose: sizes between its
//! table rows take the next larger row, and sizes above 32 take the row of 32.

mod las;
mod nodes;
mod shortest;

use std::ops::Range;

use crate::trace::MuriRow;

/// One job of a trace. Times in ms, as in Muri's files.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub job_id: String,
    pub gpus: u32,
    pub submit_ms: f64,
    pub iterations: f64,
    pub model: String,
    pub iteration_ms: f64,
}

impl From<MuriRow> for Row {
    fn from(row: MuriRow) -> Self {
        let MuriRow { job_id, gpus, submit_ms, iterations, model, iteration_ms, .. } = row;
        Self { job_id, gpus, submit_ms, iterations, model, iteration_ms }
    }
}

/// The policies whose rules are reproduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Shortest remaining time first.
    Srtf,
    /// Shortest remaining service (time × GPUs) first.
    Srsf,
    /// Least attained service in three queues.
    Tiresias,
}

/// What happened to one job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JobOutcome {
    /// When it first got its GPUs.
    pub start_s: Option<f64>,
    pub finish_s: f64,
    /// Seconds it held its GPUs, start-up included.
    pub run_s: f64,
    pub preemptions: u32,
}

/// The results of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// In the order of the rows.
    pub jobs: Vec<JobOutcome>,
    pub mean_jct_s: f64,
    /// The last end; the original counts from zero, not from the first arrival.
    pub makespan_s: f64,
    pub p99_jct_s: f64,
    pub events: u64,
    pub preemptions: u64,
    /// GPU-seconds held by jobs.
    pub busy_gpu_s: f64,
}

/// Why a trace cannot be simulated by these rules.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("the trace has no jobs: a result needs at least one row")]
    NoJobs,
    #[error(
        "the cluster has no gpus ({nodes} nodes of {gpus_per_node}): give at least one of each"
    )]
    NoCluster { nodes: u32, gpus_per_node: u32 },
    #[error("job {job} asks for no gpus: give it at least 1 or leave it out")]
    NoGpus { job: String },
    #[error(
        "job {job} asks for {gpus} gpus and the cluster has {cluster}; \
         hint: give a larger --cluster, or --drop-impossible"
    )]
    TooLarge { job: String, gpus: u32, cluster: u64 },
    #[error(
        "with job {job} the trace lasts more than {MAX_LENGTH_S:e} s: check the units of its times"
    )]
    TooLong { job: String },
    #[error("job {job} has {field} = {value}: it must be {must}")]
    BadNumber { job: String, field: &'static str, value: f64, must: &'static str },
}

/// Far below 2^53, so that the clock still tells seconds apart and a queue jump that rounding
/// leaves short of its limit moves the clock when it is tried again: every run ends.
const MAX_LENGTH_S: f64 = 1e15;

/// Simulates `rows` on `nodes` × `gpus_per_node` GPUs behind one switch.
pub fn run(rows: &[Row], nodes: u32, gpus_per_node: u32, policy: Policy) -> Result<Outcome, Error> {
    if rows.is_empty() {
        return Err(Error::NoJobs);
    }
    if nodes == 0 || gpus_per_node == 0 {
        return Err(Error::NoCluster { nodes, gpus_per_node });
    }
    let cluster = u64::from(nodes) * u64::from(gpus_per_node);
    rows.iter().try_for_each(|row| check(row, cluster))?;
    let submits = rows.iter().map(|row| row.submit_ms / 1000.0);
    let mut length_s = submits.fold(0.0, f64::max);
    for row in rows {
        length_s += row.iterations * iteration_s(row.iteration_ms);
        if length_s > MAX_LENGTH_S {
            let job = row.job_id.clone();
            return Err(Error::TooLong { job });
        }
    }
    let mut work = Workload::new(rows);
    let tally = match policy {
        Policy::Srtf => shortest::simulate(&mut work, nodes, gpus_per_node, false),
        Policy::Srsf => shortest::simulate(&mut work, nodes, gpus_per_node, true),
        Policy::Tiresias => las::simulate(&mut work, cluster),
    };
    Ok(summarize(&work, &tally))
}

fn check(row: &Row, cluster: u64) -> Result<(), Error> {
    let job = || row.job_id.clone();
    if row.gpus == 0 {
        return Err(Error::NoGpus { job: job() });
    }
    if u64::from(row.gpus) > cluster {
        return Err(Error::TooLarge { job: job(), gpus: row.gpus, cluster });
    }
    let bad = |field, value, must| Err(Error::BadNumber { job: job(), field, value, must });
    if !(row.submit_ms.is_finite() && row.submit_ms >= 0.0) {
        return bad("submit_time", row.submit_ms, "0 or more ms");
    }
    if !(row.iterations.is_finite() && row.iterations >= 0.0) {
        return bad("iterations", row.iterations, "0 or more");
    }
    if !(row.iteration_ms.is_finite() && iteration_s(row.iteration_ms) > 0.0) {
        return bad("iteration_time", row.iteration_ms, "more than 0 ms");
    }
    Ok(())
}

/// Measured iterations are 1.5 % slower inside the original's runtime than on their own.
fn iteration_s(iteration_ms: f64) -> f64 {
    iteration_ms * 1.015 / 1000.0
}

/// Seconds from start to the first iteration, measured by Muri's authors (Apache-2.0):
/// by model, then for 1, 2, 4, 8, 16 and 32 GPUs.
const START_UP_S: [(&str, [f64; 6]); 8] = [
    ("vgg16", [7.0, 7.0, 8.0, 9.0, 9.0, 10.0]),
    ("vgg19", [7.0, 7.0, 8.0, 9.0, 10.0, 10.0]),
    ("resnet18", [4.0, 5.0, 5.0, 7.0, 7.0, 7.0]),
    ("shufflenet_v2_x1_0", [4.0, 4.0, 5.0, 5.0, 7.0, 8.0]),
    ("bert", [10.0; 6]),
    ("gpt2", [10.0; 6]),
    ("a2c", [38.0, 39.0, 39.0, 46.0, 46.0, 46.0]),
    ("dqn", [5.0, 5.0, 6.0, 6.0, 8.0, 8.0]),
];

/// What the original takes for a model that is not in its table.
const START_UP_OTHER_S: f64 = 10.0;

/// The measured start-up of a model that Muri's authors know.
pub fn start_up_s(model: &str, gpus: u32) -> Option<f64> {
    let column = (u32::BITS - gpus.saturating_sub(1).leading_zeros()).min(5) as usize;
    let known = START_UP_S.iter().find(|(name, _)| *name == model);
    known.map(|(_, by_size)| by_size[column])
}

/// The original's notion of "at the same time".
fn close(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

#[derive(Debug)]
struct Job {
    row: usize,
    gpus: u32,
    /// Index among the distinct sizes of the trace.
    size: usize,
    submit_s: f64,
    iteration_s: f64,
    start_up_s: f64,
    iterations_left: f64,
    run_s: f64,
    start_s: Option<f64>,
    finish_s: Option<f64>,
    preemptions: u32,
}

impl Job {
    fn left_s(&self) -> f64 {
        self.iterations_left * self.iteration_s
    }

    /// Runs from `before` to `now`.
    fn advance(&mut self, before: f64, now: f64) {
        let useful = now - before - self.start_up_s;
        if useful > 0.0 {
            self.iterations_left -= useful / self.iteration_s;
        }
        self.run_s = self.run_s + now - before;
    }

    fn finish(&mut self, before: f64, now: f64) {
        // Unlike `advance`, the original adds the difference here.
        self.run_s += now - before;
        self.finish_s = Some(now);
    }
}

/// The trace in order of arrival.
#[derive(Debug)]
struct Workload {
    jobs: Vec<Job>,
    /// Distinct sizes, ascending.
    sizes: Vec<u32>,
    /// Jobs that arrive together, and when.
    arrivals: Vec<(f64, Range<usize>)>,
}

impl Workload {
    fn new(rows: &[Row]) -> Self {
        let mut sizes: Vec<u32> = rows.iter().map(|row| row.gpus).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let job = |(row, r): (usize, &Row)| Job {
            row,
            gpus: r.gpus,
            size: sizes.partition_point(|&s| s < r.gpus),
            submit_s: r.submit_ms / 1000.0,
            iteration_s: iteration_s(r.iteration_ms),
            start_up_s: start_up_s(&r.model, r.gpus).unwrap_or(START_UP_OTHER_S),
            iterations_left: r.iterations,
            run_s: 0.0,
            start_s: None,
            finish_s: None,
            preemptions: 0,
        };
        let mut jobs: Vec<Job> = rows.iter().enumerate().map(job).collect();
        jobs.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s));
        let mut arrivals: Vec<(f64, Range<usize>)> = Vec::new();
        for (i, job) in jobs.iter().enumerate() {
            match arrivals.last_mut() {
                Some((time, group)) if close(*time, job.submit_s) => group.end = i + 1,
                _ => arrivals.push((job.submit_s, i..i + 1)),
            }
        }
        Self { jobs, sizes, arrivals }
    }
}

/// What an engine leaves behind besides the jobs themselves.
#[derive(Debug, Default)]
struct Tally {
    events: u64,
    /// In order of completion.
    finished: Vec<usize>,
}

fn summarize(work: &Workload, tally: &Tally) -> Outcome {
    let finish = |job: &Job| job.finish_s.unwrap_or(f64::INFINITY);
    let completion = |&j: &usize| finish(&work.jobs[j]) - work.jobs[j].submit_s;
    let mut jct: Vec<f64> = tally.finished.iter().map(completion).collect();
    let n = jct.len();
    let mean_jct_s = jct.iter().sum::<f64>() / n as f64;
    jct.sort_unstable_by(f64::total_cmp);
    let mut by_row: Vec<&Job> = work.jobs.iter().collect();
    by_row.sort_unstable_by_key(|job| job.row);
    let outcome = |job: &&Job| JobOutcome {
        start_s: job.start_s,
        finish_s: finish(job),
        run_s: job.run_s,
        preemptions: job.preemptions,
    };
    Outcome {
        mean_jct_s,
        makespan_s: by_row.iter().map(|job| finish(job)).fold(0.0, f64::max),
        p99_jct_s: jct[(n as f64 * 0.99) as usize],
        events: tally.events,
        preemptions: by_row.iter().map(|job| u64::from(job.preemptions)).sum(),
        busy_gpu_s: by_row.iter().map(|job| f64::from(job.gpus) * job.run_s).sum(),
        jobs: by_row.iter().map(outcome).collect(),
    }
}
