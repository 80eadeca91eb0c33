//! A model on the cores of this machine.
//!
//! A batch is cut into parts of some samples, and a thread takes each part through all stages: what
//! one stage leaves in the core's cache, the next one reads, and threads wait for each other only at
//! the end. Nothing that a part computes depends on the others.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hither_kernels::bag;
use hither_kernels::gemm::{Activation, Precision, Rows, RowsMut, stride_for};

use super::host::{Host, Layout};
use super::{Done, Options, Request, Sparse, StageTimes, Threads};
use crate::Error;
use crate::interact::Interactor;
use crate::mlp::{self, Mlp, aligned};
use crate::model::Model;
use crate::plan::Plan;

/// The layers of a model, packed for this processor.
pub(super) struct CpuEngine {
    bottom: Mlp,
    interactor: Interactor,
    top: Mlp,
    mlp: Precision,
}

/// The memory of one thread for what lies between the stages. It grows to the largest part of a batch
/// and is kept from call to call, whichever engine calls.
#[derive(Default)]
pub struct Worker {
    bags: bag::Scratch,
    mlp: mlp::Scratch,
    /// Features of several requests, side by side.
    gathered: Vec<f32>,
    dense: Vec<f32>,
    pooled: Vec<f32>,
    met: Vec<f32>,
    /// The first sample of each request, and the end of the last.
    starts: Vec<usize>,
    /// Whether a request of the part at hand failed.
    failed: Vec<bool>,
}

/// Samples that a thread takes at a time where bags are short: the pooled rows of a part stay in the
/// second-level cache.
const PART_SAMPLES: usize = 64;
/// Ids that a part may have beyond that: with long bags reading rows takes most of the time, and the
/// more bags of one table follow each other, the more of its hot rows are still near.
const PART_IDS: usize = 1 << 16;
const PART_SAMPLES_MAX: usize = 512;
/// A batch of fewer ids and samples is not worth waking another thread for.
const ALONE_IDS: usize = 4096;
const ALONE_SAMPLES: usize = 8;

/// A call, as all threads see it.
struct Call<'a> {
    engine: &'a CpuEngine,
    layout: &'a Layout,
    requests: &'a [Request<'a>],
    starts: &'a [usize],
    /// Taken only where a request fails, and once per part.
    results: Mutex<&'a mut [Result<(), Error>]>,
    clamped: AtomicU64,
    /// Nanoseconds in each stage.
    times: [AtomicU64; 3],
}

impl CpuEngine {
    pub fn new(model: &Model, plan: &Plan, options: &Options) -> Self {
        let last = if model.spec.sigmoid { Activation::Sigmoid } else { Activation::None };
        Self {
            bottom: Mlp::new(&model.bottom(), Activation::Relu, plan.mlp, options.cpu),
            interactor: Interactor::new(model, plan.mlp, options.cpu),
            top: Mlp::new(&model.top(), last, plan.mlp, options.cpu),
            mlp: plan.mlp,
        }
    }

    pub fn precision(&self) -> Precision {
        self.mlp
    }

    pub fn infer(
        &self,
        host: &Host,
        requests: &[Request],
        out: &mut [f32],
        results: &mut [Result<(), Error>],
        worker: &mut Worker,
        threads: Option<&Threads>,
    ) -> Done {
        assert_eq!(requests.len(), results.len(), "a result for each request");
        let layout = host.layout();
        let outputs = host.outputs();
        let mut starts = std::mem::take(&mut worker.starts);
        starts.clear();
        let (mut samples, mut ids) = (0, 0);
        for (request, result) in requests.iter().zip(&mut *results) {
            starts.push(samples);
            samples += request.samples();
            *result = host.check_sizes(request, &layout);
            ids += if result.is_ok() { request.sparse.ids() } else { 0 };
        }
        starts.push(samples);
        assert_eq!(out.len(), samples * outputs, "a place for each score");
        let call = Call {
            engine: self,
            layout: &layout,
            requests,
            starts: &starts,
            results: Mutex::new(results),
            clamped: AtomicU64::new(0),
            times: Default::default(),
        };
        let most = threads.map_or(0, |threads| layout.helpers_max.min(threads.count()));
        let is_small = samples <= ALONE_SAMPLES && ids <= ALONE_IDS;
        match threads.filter(|_| most > 0 && !is_small) {
            Some(threads) => {
                let part = part_samples(samples, ids, most + 1);
                let work = |index: usize, out: &mut [f32], worker: &mut Worker| {
                    call.part(index * part, out, worker);
                };
                threads.split_chunks(worker, out, part * outputs, most, &work);
            }
            None => {
                let part = part_samples(samples, ids, 1);
                for (index, out) in out.chunks_mut(part * outputs).enumerate() {
                    call.part(index * part, out, worker);
                }
            }
        }
        let done = call.done();
        for (request, result) in results.iter().enumerate() {
            if result.is_err() {
                let range = starts[request] * outputs..starts[request + 1] * outputs;
                out[range].fill(f32::NAN);
            }
        }
        worker.starts = starts;
        done
    }
}

/// How many samples a part has: few enough for the caches, and enough parts for the threads.
pub(crate) fn part_samples(samples: usize, ids: usize, threads: usize) -> usize {
    let by_ids = PART_IDS.checked_div(ids.div_ceil(samples.max(1))).unwrap_or(PART_SAMPLES);
    let is_long = ids > 4 * PART_IDS;
    let most = if is_long { by_ids.clamp(PART_SAMPLES, PART_SAMPLES_MAX) } else { PART_SAMPLES };
    samples.div_ceil(threads).clamp(1, most)
}

impl Call<'_> {
    /// Scores of the samples from `first` on, as many as `out` has room for.
    fn part(&self, first: usize, out: &mut [f32], worker: &mut Worker) {
        let samples = first..first + out.len() / self.engine.top.outputs();
        let requests = self.requests_of(&samples);
        self.note_failed(&requests, worker);
        self.stages(&samples, &requests, out, worker);
    }

    /// All stages of some samples.
    fn stages(
        &self,
        samples: &Range<usize>,
        requests: &Range<usize>,
        out: &mut [f32],
        worker: &mut Worker,
    ) {
        let CpuEngine { bottom, interactor, top, .. } = self.engine;
        let count = samples.len();
        let clock = Instant::now();

        let dense_stride = stride_for::<f32>(bottom.outputs());
        let mut dense = std::mem::take(&mut worker.dense);
        let to = RowsMut::new(aligned(&mut dense, count * dense_stride), count, dense_stride);
        self.bottom(samples, requests, to, worker);
        let bottom_done = Instant::now();

        let mut pooled = std::mem::take(&mut worker.pooled);
        let width = self.layout.resident.get().width();
        self.lookups(samples, requests, aligned(&mut pooled, count * width), worker);
        let tables_done = Instant::now();

        let stride = stride_for::<f32>(interactor.width());
        let (dense_rows, pooled_rows) =
            (aligned(&mut dense, count * dense_stride), aligned(&mut pooled, count * width));
        for at in (0..count).step_by(PART_SAMPLES) {
            let some = PART_SAMPLES.min(count - at);
            let met = aligned(&mut worker.met, some * stride);
            let dense = Rows::new(&dense_rows[at * dense_stride..], some, dense_stride);
            let pooled = Rows::new(&pooled_rows[at * width..], some, width);
            let to = RowsMut::new(&mut *met, some, stride);
            interactor.forward(dense, pooled, to, &mut worker.mlp);
            let out = &mut out[at * top.outputs()..][..some * top.outputs()];
            let met = Rows::new(met, some, stride);
            top.forward(met, RowsMut::new(out, some, top.outputs()), &mut worker.mlp);
        }
        (worker.dense, worker.pooled) = (dense, pooled);
        let ends = [clock, bottom_done, tables_done, Instant::now()];
        for (time, ends) in self.times.iter().zip(ends.windows(2)) {
            time.fetch_add((ends[1] - ends[0]).as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// The requests that some samples belong to.
    fn requests_of(&self, samples: &Range<usize>) -> Range<usize> {
        let first = self.starts.partition_point(|start| *start <= samples.start) - 1;
        let last = self.starts.partition_point(|start| *start < samples.end);
        first..last.min(self.requests.len())
    }

    /// A request's own samples of a part, and the place of the first in the part.
    fn overlap(&self, request: usize, samples: &Range<usize>) -> (Range<usize>, usize) {
        let start = self.starts[request].max(samples.start);
        let end = self.starts[request + 1].min(samples.end).max(start);
        (start - self.starts[request]..end - self.starts[request], start - samples.start)
    }

    fn note_failed(&self, requests: &Range<usize>, worker: &mut Worker) {
        worker.failed.clear();
        // Sizes were checked before the parts began, by one thread. Errors that other parts have met since do
        // not count here: what becomes of a part must not depend on their order.
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let has_wrong_sizes = |request: usize| matches!(&results[request], Err(error) if lookup_place(error).is_none());
        worker.failed.extend(requests.clone().map(has_wrong_sizes));
    }

    fn bottom(
        &self,
        samples: &Range<usize>,
        requests: &Range<usize>,
        to: RowsMut<'_, f32>,
        worker: &mut Worker,
    ) {
        let bottom = &self.engine.bottom;
        let inputs = bottom.inputs();
        let own = |request: usize| {
            let (own, place) = self.overlap(request, samples);
            (&self.requests[request].dense[own.start * inputs..own.end * inputs], place)
        };
        if requests.len() == 1 && !worker.failed[0] {
            let x = Rows::new(own(requests.start).0, samples.len(), inputs);
            return bottom.forward(x, to, &mut worker.mlp);
        }
        let gathered = aligned(&mut worker.gathered, samples.len() * inputs);
        for (request, failed) in requests.clone().zip(&worker.failed) {
            if !failed {
                let (features, place) = own(request);
                gathered[place * inputs..][..features.len()].copy_from_slice(features);
            }
        }
        bottom.forward(Rows::new(gathered, samples.len(), inputs), to, &mut worker.mlp);
    }

    fn lookups(
        &self,
        samples: &Range<usize>,
        requests: &Range<usize>,
        pooled: &mut [f32],
        worker: &mut Worker,
    ) {
        let tables = self.layout.resident.get();
        let mut lookup = tables.lookup(&mut worker.bags, pooled);
        let mut clamped = 0;
        for table in 0..tables.tables().len() {
            for (request, failed) in requests.clone().zip(&mut worker.failed) {
                if *failed {
                    continue;
                }
                let (own, place) = self.overlap(request, samples);
                let bags = self.requests[request].sparse.table(table);
                match lookup.add(table, &bags, own, place) {
                    Ok(count) => clamped += count,
                    Err(error) => {
                        *failed = true;
                        self.fail(request, error);
                    }
                }
            }
        }
        lookup.finish();
        self.clamped.fetch_add(clamped, Ordering::Relaxed);
    }

    /// Of several errors of a request the first is told, whichever thread met one.
    fn fail(&self, request: usize, error: bag::Error) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let error = Error::from(error);
        let is_first = match &results[request] {
            Err(earlier) => lookup_place(&error) < lookup_place(earlier),
            Ok(()) => true,
        };
        if is_first {
            results[request] = Err(error);
        }
    }

    fn done(&self) -> Done {
        let [bottom, tables, top] =
            [0, 1, 2].map(|stage| Duration::from_nanos(self.times[stage].load(Ordering::Relaxed)));
        let times = StageTimes { bottom, tables, top };
        Done { clamped: self.clamped.load(Ordering::Relaxed), times }
    }
}

/// Where a lookup met an error: its table, and the place in it. `None` for errors of sizes.
fn lookup_place(error: &Error) -> Option<(usize, bool, usize)> {
    match error {
        Error::Bags(bag::Error::Offset { table, position, .. }) => Some((*table, false, *position)),
        Error::Bags(bag::Error::OutOfRange { table, position, .. }) => {
            Some((*table, true, *position))
        }
        _ => None,
    }
}

impl Sparse<'_> {
    fn ids(&self) -> usize {
        match self {
            Self::Joined(bags) => bags.ids.len(),
            Self::PerTable { tables, .. } => tables.iter().map(|bags| bags.ids.len()).sum(),
        }
    }
}
