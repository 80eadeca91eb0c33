//! A model on the cores of this machine.
//!
//! A batch is cut into parts of some samples, and a thread takes each part through all stages: what
//! one stage leaves in the core's cache, the next one reads, and threads wait for each other only at
//! the end. Nothing that a part computes depends on the others.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hither_kernels::bag::{self, Bags, Ids, Resident, TableBags};
use hither_kernels::detect::Isa;
use hither_kernels::gemm::{Activation, Precision, Rows, RowsMut, stride_for};

use super::sample::{Ring, Sampler};
use super::{Done, Options, Request, Seen, Sparse, StageTimes, Threads};
use crate::Error;
use crate::interact::Interactor;
use crate::mlp::{self, Mlp, aligned};
use crate::model::Model;
use crate::plan::Plan;
use crate::tables::Tables;

pub(super) struct CpuEngine {
    bottom: Mlp,
    interactor: Interactor,
    top: Mlp,
    mlp: Precision,
    options: Options,
    layout: RwLock<Arc<Layout>>,
    ring: Ring,
}

/// What a new plan replaces.
struct Layout {
    tables: Arc<Tables>,
    resident: Resident,
    /// Threads that may help the one that has a batch.
    helpers_max: usize,
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
    sampler: Sampler,
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
    pub fn load(
        model: &Model,
        plan: &Plan,
        options: Options,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let spec = &model.spec;
        let last = if spec.sigmoid { Activation::Sigmoid } else { Activation::None };
        let tables = Tables::load(model, plan, done)?;
        let layout = Layout::new(tables, plan, &options)?;
        Ok(Self {
            bottom: Mlp::new(&model.bottom(), Activation::Relu, plan.mlp, options.cpu),
            interactor: Interactor::new(model, plan.mlp, options.cpu),
            top: Mlp::new(&model.top(), last, plan.mlp, options.cpu),
            mlp: plan.mlp,
            ring: Ring::new(options.sample_every),
            options,
            layout: RwLock::new(Arc::new(layout)),
        })
    }

    pub fn outputs(&self) -> usize {
        self.top.outputs()
    }

    pub fn isa(&self) -> Isa {
        self.options.cpu.isa
    }

    fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.layout.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn tables(&self) -> Arc<Tables> {
        Arc::clone(&self.layout().tables)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.ring.read()
    }

    pub fn replan(&self, plan: &Plan, done: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        if plan.mlp != self.mlp {
            return Err(Error::Replan { what: "the arithmetic of the MLPs" });
        }
        if plan.device != super::Device::Cpu {
            return Err(Error::Replan { what: "the device" });
        }
        let tables = self.tables().replanned(plan, done)?;
        let layout = Arc::new(Layout::new(tables, plan, &self.options)?);
        *self.layout.write().unwrap_or_else(PoisonError::into_inner) = layout;
        Ok(())
    }

    pub fn check(&self, request: &Request) -> Result<(), Error> {
        let layout = self.layout();
        self.check_shape(request, &layout)?;
        let tables = layout.resident.get();
        for table in 0..tables.tables().len() {
            tables.check(table, &request.sparse.table(table))?;
        }
        Ok(())
    }

    /// All but the ids themselves.
    fn check_shape(&self, request: &Request, layout: &Layout) -> Result<(), Error> {
        let samples = request.samples();
        let features = samples.saturating_mul(self.bottom.inputs());
        check("dense features", request.dense.len(), features)?;
        let tables = layout.resident.get().tables();
        match request.sparse {
            Sparse::Joined(bags) => {
                bags.check(tables.len())?;
                let of_max = |t: &bag::Table| t.pooling == bag::Pooling::Max;
                if let Some(table) =
                    tables.iter().position(of_max).filter(|_| bags.weights.is_some())
                {
                    return Err(bag::Error::WeightedMax { table }.into());
                }
                self.check_bags(bags.offsets, |bag| bag / samples)
            }
            Sparse::PerTable { tables: lists, .. } => {
                check("tables with ids", lists.len(), tables.len())?;
                for (t, (bags, table)) in lists.iter().zip(tables).enumerate() {
                    check("offsets of a table", bags.offsets.len(), samples.saturating_add(1))?;
                    bags.check(t, table, 0..samples)?;
                    self.check_bags(bags.offsets, |_| t)?;
                }
                Ok(())
            }
        }
    }

    /// Whether all bags are short enough; `table` tells whose a bag is. The offsets do not fall.
    fn check_bags(&self, offsets: &[i64], table: impl Fn(usize) -> usize) -> Result<(), Error> {
        let most = self.options.ids_per_bag_max as i64;
        let too_long = |pair: &[i64]| pair[1] - pair[0] > most;
        let any = offsets.iter().zip(&offsets[1..]).fold(false, |any, (a, b)| any | (b - a > most));
        match offsets.windows(2).position(too_long).filter(|_| any) {
            None => Ok(()),
            Some(bag) => {
                let ids = (offsets[bag + 1] - offsets[bag]) as usize;
                Err(Error::LongBag { table: table(bag), ids, most: self.options.ids_per_bag_max })
            }
        }
    }

    pub fn infer(
        &self,
        requests: &[Request],
        out: &mut [f32],
        results: &mut [Result<(), Error>],
        worker: &mut Worker,
        threads: Option<&Threads>,
    ) -> Done {
        assert_eq!(requests.len(), results.len(), "a result for each request");
        let layout = self.layout();
        let mut starts = std::mem::take(&mut worker.starts);
        starts.clear();
        let (mut samples, mut ids) = (0, 0);
        for (request, result) in requests.iter().zip(&mut *results) {
            starts.push(samples);
            samples += request.samples();
            *result = self.check_shape(request, &layout);
            ids += if result.is_ok() { request.sparse.ids() } else { 0 };
        }
        starts.push(samples);
        assert_eq!(out.len(), samples * self.outputs(), "a place for each score");
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
                threads.split_chunks(worker, out, part * self.outputs(), most, &work);
            }
            None => {
                let part = part_samples(samples, ids, 1);
                for (index, out) in out.chunks_mut(part * self.outputs()).enumerate() {
                    call.part(index * part, out, worker);
                }
            }
        }
        let done = call.done();
        for (request, result) in results.iter().enumerate() {
            if result.is_err() {
                let range = starts[request] * self.outputs()..starts[request + 1] * self.outputs();
                out[range].fill(f32::NAN);
            }
        }
        worker.starts = starts;
        done
    }

    pub fn pool(&self, bags: &Bags, out: &mut [f32], worker: &mut Worker) -> Result<u64, Error> {
        let layout = self.layout();
        let tables = layout.resident.get();
        Ok(tables.pool(bags, out, &mut worker.bags)?)
    }
}

impl Layout {
    fn new(tables: Tables, plan: &Plan, options: &Options) -> Result<Self, Error> {
        let tables = Arc::new(tables);
        let out_of_range = options.out_of_range.clone();
        let resident = Resident::new(Arc::clone(&tables), out_of_range, options.cpu.isa)?;
        let helpers_max = plan.threads.checked_sub(1).unwrap_or(usize::MAX);
        Ok(Self { tables, resident, helpers_max })
    }
}

/// How many samples a part has: few enough for the caches, and enough parts for the threads.
fn part_samples(samples: usize, ids: usize, threads: usize) -> usize {
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
        self.remember(samples, requests, worker);
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
        // Only sizes were checked so far, by one thread: what is read here does not depend on the
        // order of parts.
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let is_shapeless =
            |request: usize| matches!(&results[request], Err(error) if !error.is_bad_id());
        worker.failed.extend(requests.clone().map(is_shapeless));
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

    /// Of several bad ids of a request the first is told, whichever thread met one.
    fn fail(&self, request: usize, error: bag::Error) {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let place = |error: &bag::Error| match error {
            bag::Error::OutOfRange { table, position, .. } => (*table, *position),
            _ => (0, 0),
        };
        let is_first = match &results[request] {
            Err(Error::Bags(earlier)) => place(&error) < place(earlier),
            _ => true,
        };
        if is_first {
            results[request] = Err(error.into());
        }
    }

    fn remember(&self, samples: &Range<usize>, requests: &Range<usize>, worker: &mut Worker) {
        let ring = &self.engine.ring;
        if !ring.is_on() {
            return;
        }
        let tables = self.layout.resident.get().tables();
        for (request, _) in requests.clone().zip(&worker.failed).filter(|(_, failed)| !**failed) {
            let (own, _) = self.overlap(request, samples);
            for (table, t) in tables.iter().enumerate() {
                let TableBags { ids, offsets, .. } = self.requests[request].sparse.table(table);
                let start = offsets[own.start] as usize;
                let count = offsets[own.end] as usize - start;
                let is_row =
                    |row: &u32| (*row as usize) < t.rows && t.padding != Some(i64::from(*row));
                worker.sampler.pass(ring, table, count, |at| match ids {
                    Ids::U32(ids) => Some(ids[start + at]).filter(is_row),
                    Ids::I64(ids) => u32::try_from(ids[start + at]).ok().filter(is_row),
                });
            }
        }
        ring.write(&mut worker.sampler);
    }

    fn done(&self) -> Done {
        let [bottom, tables, top] =
            [0, 1, 2].map(|stage| Duration::from_nanos(self.times[stage].load(Ordering::Relaxed)));
        let times = StageTimes { bottom, tables, top };
        Done { clamped: self.clamped.load(Ordering::Relaxed), times }
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

fn check(what: &'static str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Batch { what, found, expected }) }
}
