//! A plan for a GPU that nobody has to have: what each variant takes of it, how a trace of ids meets
//! its caches, and the bounds that follow.
//!
//! Three bounds hold for the embedding stage: the bytes that DRAM delivers, the bytes that L2
//! delivers, and the bytes in flight over the latency (Little's law). The slowest of them is what a
//! variant can reach at best. Nothing here is measured.

pub mod cache;

use std::collections::BTreeMap;

use hither_dlrm::hotness::Histogram;
use hither_dlrm::lookups::Lookups;
use hither_dlrm::model::Spec;
use hither_dlrm::plan::gpu::{Ahead, CudaPlan, Pinning, Variant};
use hither_dlrm::plan::{Packing, Plan};
use hither_dlrm::run::Device;
use hither_kernels::bag::{Dtype, Pooling};
use serde::Serialize;

use self::cache::{Launch, Setting, Traffic};
use crate::bags::{Build, Mode, THREADS, device_dtype, kernel_name, row_stride};
use crate::gpu::{Gpu, planned_builds, resources};
use crate::occupancy::{Occupancy, Resources, occupancy};

/// The cache model takes batches until it has so many lookups: enough for the rates to settle.
const LOOKUPS_ENOUGH: usize = 3_000_000;
/// Of two forecasts this near, the simpler variant is taken.
const CLOSE: f64 = 1.02;

/// One variant on one GPU, by the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    pub variant: &'static str,
    pub min_blocks: u32,
    pub registers: u32,
    pub spill_bytes: u32,
    pub shared_bytes: u32,
    /// Resident warps per SM, and what limits them.
    pub warps: u32,
    pub limit: String,
    pub traffic: Traffic,
    /// Bytes of rows that an SM has on their way at once, and the bytes that its share of DRAM asks
    /// for by Little's law.
    pub in_flight_bytes: f64,
    pub wanted_bytes: f64,
    /// The bounds, in ns per lookup of the whole GPU.
    pub dram_ns: f64,
    pub l2_ns: f64,
    pub latency_ns: f64,
    #[serde(skip)]
    build: Build,
}

impl Forecast {
    /// The slowest bound.
    pub fn ns_per_lookup(&self) -> f64 {
        self.dram_ns.max(self.l2_ns).max(self.latency_ns)
    }

    /// What bounds the variant, in words.
    pub fn bound(&self) -> &'static str {
        let bounds = [(self.dram_ns, "DRAM"), (self.l2_ns, "L2"), (self.latency_ns, "latency")];
        bounds.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or("", |(_, name)| name)
    }
}

/// A plan for a GPU and what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuForecast {
    pub gpu: &'static str,
    pub arch: &'static str,
    /// Hot rows of all tables together, and the share of lookups that they take.
    pub pinned_rows: usize,
    pub pinned_bytes: usize,
    pub pinned_share: f64,
    /// Whether tables exceed the GPU's memory, so that cold rows stay in the host's.
    pub cold_on_host: bool,
    /// Hot rows of each table.
    #[serde(skip)]
    pub hot_rows: Vec<usize>,
    pub variants: Vec<Forecast>,
    /// The place of the chosen variant, and why.
    pub chosen: usize,
    pub reason: String,
}

/// Judges every variant for a model and a trace, by what the ids say that it reads.
pub fn forecast(gpu: &Gpu, spec: &Spec, lookups: &Lookups) -> GpuForecast {
    let (mut launches, mut known) = (BTreeMap::new(), BTreeMap::new());
    forecast_from(gpu, spec, lookups, &mut |build, hot, setting| {
        // Variants that cut rows alike and prefetch into the same cache make the same requests.
        let prefetches = match build.variant.ahead {
            Ahead::L1 => 1,
            Ahead::L2 => 2,
            _ => 0,
        };
        let kind = (build.slice_elements(), prefetches);
        let launch = launches
            .entry(kind)
            .or_insert_with(|| Launch::from_ids(gpu, spec, lookups, hot, build, LOOKUPS_ENOUGH));
        *known.entry((kind, *setting)).or_insert_with(|| launch.traffic(gpu, setting))
    })
}

/// Says what becomes of the requests of a build, given the hot rows of each table.
pub type TrafficSource<'a> = dyn FnMut(&Build, &[Vec<u32>], &Setting) -> Traffic + 'a;

/// Judges every variant for a model and a trace; `traffic` says what it reads.
pub fn forecast_from(
    gpu: &Gpu,
    spec: &Spec,
    lookups: &Lookups,
    traffic: &mut TrafficSource<'_>,
) -> GpuForecast {
    let histograms: Vec<Histogram> = (0..spec.tables.len()).map(|t| lookups.histogram(t)).collect();
    let (hot_rows, pinned_bytes) = pinned(gpu, spec, &histograms);
    let hot: Vec<Vec<u32>> =
        histograms.iter().zip(&hot_rows).map(|(h, n)| h.hottest(*n).to_vec()).collect();
    let all: u64 = histograms.iter().map(Histogram::lookups).sum();
    let taken: f64 =
        histograms.iter().zip(&hot_rows).map(|(h, n)| h.share(*n) * h.lookups() as f64).sum();
    let table_bytes: u64 = (spec.tables.iter())
        .map(|table| (table.rows * row_stride(device_dtype(table.dtype), table.dim)) as u64)
        .sum();
    let kernel = kernel(spec);
    let mut variants: Vec<Forecast> = Vec::new();
    for build in builds(gpu) {
        if let Some(taken) = resources(&gpu.arch, &build, &kernel) {
            let occupancy = occupancy(&gpu.arch, &taken, THREADS);
            let setting = setting(gpu, &build, &taken, &occupancy, pinned_bytes);
            let traffic = traffic(&build, &hot, &setting);
            variants.push(judge(gpu, build, &taken, &occupancy, traffic));
        }
    }
    let chosen = choose(&variants);
    let reason = variants.get(chosen).map_or_else(String::new, |best| reason(gpu, best, &variants));
    GpuForecast {
        gpu: gpu.name,
        arch: gpu.arch.name,
        pinned_rows: hot_rows.iter().sum(),
        pinned_bytes,
        pinned_share: if all == 0 { 0.0 } else { taken / all as f64 },
        cold_on_host: table_bytes > gpu.memory_bytes * 9 / 10,
        hot_rows,
        variants,
        chosen,
        reason,
    }
}

impl GpuForecast {
    /// The plan that follows.
    pub fn plan(&self, spec: &Spec, lookups: &Lookups) -> Plan {
        let mut plan = Plan::standard(spec);
        plan.device = Device::Cuda(0);
        let Some(best) = self.variants.get(self.chosen) else { return plan };
        plan.cuda = Some(CudaPlan {
            variant: best.build.variant,
            distance: best.build.distance,
            min_blocks: best.build.min_blocks,
            cold_on_host: self.cold_on_host,
        });
        for (t, table) in plan.tables.iter_mut().enumerate() {
            table.hot_rows = self.hot_rows[t];
            table.packing = if table.hot_rows > 0 { Packing::Lookup } else { Packing::Off };
            plan.hot[t] = lookups.histogram(t).hottest(table.hot_rows).to_vec();
        }
        plan
    }
}

/// All builds with known resources, and the pinning that runs the code of vec4.
fn builds(gpu: &Gpu) -> Vec<Build> {
    let mut builds: Vec<Build> = planned_builds(&gpu.arch).collect();
    let host_only = Variant::ALL.into_iter().filter(|variant| !variant.has_own_code());
    builds.extend(host_only.map(Build::new));
    let place = |build: &Build| Variant::ALL.iter().position(|variant| *variant == build.variant);
    builds.sort_by_key(|build| (place(build), build.min_blocks));
    builds
}

/// The kernel that most of a model's tables run in.
fn kernel(spec: &Spec) -> String {
    let count =
        |dtype: Dtype| spec.tables.iter().filter(|t| device_dtype(t.dtype) == dtype).count();
    let types = [Dtype::F32, Dtype::F16, Dtype::Int8];
    let dtype = types.into_iter().max_by_key(|dtype| count(*dtype)).unwrap_or(Dtype::F32);
    let is_max = spec.tables.iter().all(|table| table.pooling == Pooling::Max);
    kernel_name(dtype, if is_max { Mode::Max } else { Mode::Sum })
}

/// The hottest rows of all tables that fit the part of L2, most lookups per byte first. A row that was
/// asked for once is not hot.
fn pinned(gpu: &Gpu, spec: &Spec, hot: &[Histogram]) -> (Vec<usize>, usize) {
    let stride =
        |t: usize| row_stride(device_dtype(spec.tables[t].dtype), spec.tables[t].dim).max(1);
    let mut rows: Vec<(f64, usize)> = Vec::new();
    for (t, hot) in hot.iter().enumerate() {
        let most = gpu.persisting_bytes / stride(t);
        let counts = hot.counts().iter().take(most).filter(|count| **count > 1);
        rows.extend(counts.map(|count| (*count as f64 / stride(t) as f64, t)));
    }
    // A stable order: within a table rows stand hottest first already.
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut hot_rows = vec![0; hot.len()];
    let mut bytes = 0;
    for (_, t) in rows {
        if bytes + stride(t) > gpu.persisting_bytes {
            break;
        }
        bytes += stride(t);
        hot_rows[t] += 1;
    }
    (hot_rows, bytes)
}

/// Rows of a warp that are on their way at once.
fn rows_in_flight(build: &Build) -> f64 {
    match build.variant.ahead {
        Ahead::None => 1.0,
        // A batch is read at once, and none while it is summed: on average half of it is on its way.
        Ahead::Shared | Ahead::Local => f64::from(build.distance).max(2.0) / 2.0,
        Ahead::Register | Ahead::L1 | Ahead::L2 => f64::from(build.distance),
    }
}

/// Time of a warp per row, if nothing but latency held it up: reading the row number and adding
/// cost one access to L1, and so does taking a row from where it was fetched to.
fn row_ns(gpu: &Gpu, build: &Build, traffic: &Traffic) -> f64 {
    let misses = 1.0 - traffic.l1_hits;
    let near = traffic.l1_hits * gpu.l1_latency_ns;
    let far = traffic.l2_hits * gpu.l2_latency_ns + (1.0 - traffic.l2_hits) * gpu.dram_latency_ns;
    let latency = near + misses * far;
    let (add, take) = (gpu.l1_latency_ns, gpu.l1_latency_ns);
    let shared_out = latency / f64::from(build.distance.max(1));
    match build.variant.ahead {
        Ahead::None => latency + add,
        Ahead::Register => shared_out.max(add),
        Ahead::Shared | Ahead::Local => shared_out + add + take,
        Ahead::L1 => shared_out.max(add + take),
        // The row waits in L2, not in L1.
        Ahead::L2 => shared_out.max(add + near + misses * gpu.l2_latency_ns),
    }
}

/// The caches that a build leaves to its rows.
fn setting(
    gpu: &Gpu,
    build: &Build,
    taken: &Resources,
    occupancy: &Occupancy,
    pinned_bytes: usize,
) -> Setting {
    let shared = occupancy.blocks * (taken.shared_bytes + 1024);
    Setting {
        l1_bytes: gpu.l1_bytes.saturating_sub(shared as usize),
        blocks: occupancy.blocks as usize,
        pinned_bytes: (build.variant.pinning != Pinning::None).then_some(pinned_bytes),
    }
}

fn judge(
    gpu: &Gpu,
    build: Build,
    taken: &Resources,
    occupancy: &Occupancy,
    traffic: Traffic,
) -> Forecast {
    let Occupancy { warps, limit, .. } = *occupancy;
    // A thread of the baseline loads one element: four warps share what one reads elsewhere.
    let passes = 4.0 / f64::from(build.variant.vec);
    let warps_at_once = f64::from(warps).max(1.0) * gpu.sms as f64;
    // A spilled word goes to L1 and back; a nanosecond each is a guess.
    let spills = f64::from(taken.spill_bytes) / 4.0;
    let l1_misses = 1.0 - traffic.l1_hits;
    Forecast {
        variant: build.variant.name,
        min_blocks: build.min_blocks,
        registers: taken.registers,
        spill_bytes: taken.spill_bytes,
        shared_bytes: taken.shared_bytes,
        warps,
        limit: limit.to_string(),
        in_flight_bytes: f64::from(warps) * rows_in_flight(&build) * traffic.row_bytes / passes,
        wanted_bytes: gpu.dram_bytes_per_ns * gpu.dram_latency_ns / gpu.sms as f64,
        dram_ns: traffic.dram_bytes / gpu.dram_bytes_per_ns,
        l2_ns: l1_misses * traffic.row_bytes / gpu.l2_bytes_per_ns,
        latency_ns: (row_ns(gpu, &build, &traffic) + spills) * passes / warps_at_once,
        traffic,
        build,
    }
}

/// The fastest by its bounds; of those that are close the first, which is the simplest.
fn choose(variants: &[Forecast]) -> usize {
    let best = variants.iter().map(Forecast::ns_per_lookup).fold(f64::INFINITY, f64::min);
    variants.iter().position(|variant| variant.ns_per_lookup() <= best * CLOSE).unwrap_or(0)
}

fn reason(gpu: &Gpu, best: &Forecast, variants: &[Forecast]) -> String {
    let base = variants.iter().find(|variant| variant.variant == Variant::BASE.name);
    let gain = base.map_or(1.0, |base| base.ns_per_lookup() / best.ns_per_lookup());
    let why = match best.bound() {
        "DRAM" => format!(
            "it reads the fewest bytes, {:.0} per lookup, and DRAM's {:.0} GB/s are the bound",
            best.traffic.dram_bytes, gpu.dram_bytes_per_ns
        ),
        "L2" => "almost all rows come from L2, whose bandwidth is the bound".to_string(),
        _ => format!(
            "it has {:.0} KiB per SM on their way at once; DRAM alone would take {:.0} KiB",
            best.in_flight_bytes / 1024.0,
            best.wanted_bytes / 1024.0
        ),
    };
    format!("{why}; by these bounds {gain:.1} × the baseline")
}

#[cfg(test)]
mod tests {
    use hither_dlrm::generate::Shape;
    use hither_dlrm::lookups::{self, Hotness};

    use super::*;

    fn judged(hotness: Hotness, gpu: &str) -> GpuForecast {
        let mut shape = Shape::preset("micro24").expect("a preset");
        (shape.tables, shape.rows) = (2, 200_000);
        let spec = shape.spec("m");
        let drawn = lookups::Shape { batches: 1, batch: 512, pooling: 100 };
        let lookups = Lookups::draw(hotness, &[shape.rows; 2], drawn, 1);
        forecast(&gpu.parse().expect("a GPU"), &spec, &lookups)
    }

    fn of<'a>(forecast: &'a GpuForecast, variant: &str) -> &'a Forecast {
        forecast.variants.iter().find(|v| v.variant == variant).expect(variant)
    }

    #[test]
    fn pinned_rows_fit_the_part_of_l2() {
        for gpu in Gpu::ALL {
            let judged = judged(Hotness::High, gpu.name);
            assert!(judged.pinned_bytes <= gpu.persisting_bytes);
            assert_eq!(judged.pinned_bytes, judged.pinned_rows * 512);
            assert!(judged.pinned_share > 0.5, "{}", judged.pinned_share);
        }
    }

    #[test]
    fn pinning_saves_dram_where_rows_are_hot_and_nothing_where_they_are_not() {
        let hot = judged(Hotness::Medium, "a10");
        let (pinned, plain) = (of(&hot, "pin-prefetch"), of(&hot, "vec4"));
        assert!(pinned.traffic.dram_bytes < plain.traffic.dram_bytes);
        let random = judged(Hotness::Random, "a10");
        let (pinned, plain) = (of(&random, "pin-prefetch"), of(&random, "vec4"));
        assert!(pinned.traffic.dram_bytes > 0.8 * plain.traffic.dram_bytes);
    }

    #[test]
    fn fetching_ahead_helps_where_latency_is_the_bound() {
        let random = judged(Hotness::Random, "h100");
        let (ahead, plain) = (of(&random, "register"), of(&random, "vec4"));
        assert!(ahead.latency_ns < plain.latency_ns);
        assert!(random.variants[random.chosen].ns_per_lookup() <= plain.ns_per_lookup());
    }
}
