//! What a build's machine code asks memory for: it runs in the emulator, on the ids at hand.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use hither_cuda::bags::{
    Batch, Build, Mode, SOURCE, Slice, THREADS, bags_per_group, blocks_for, kernel_name, row_stride,
};
use hither_cuda::forecast::cache::{Content, LINE, Launch, Request, Way};
use hither_cuda::gpu::Gpu;
use hither_dlrm::lookups::Lookups;
use hither_dlrm::model::Spec;
use hither_dlrm::plan::gpu::Variant;
use hither_dlrm::workload::Requests;
use hither_kernels::bag::{Dtype, Pooling};
use hither_sass::launch::{self, Access, Arch, Kind};
use hither_sass::memory::Memory;
use hither_sass::parse::{Program, parse};
use hither_sass::toolchain::Toolchain;

/// Where rows begin and how far apart they lie where only their addresses are wanted.
const FIRST: u64 = 0x7_0000_0000;
const GAP: u64 = 4096;

/// Compiled builds for one architecture, by the name of the variant and the register cap.
pub struct Programs {
    arch: Arch,
    programs: BTreeMap<(&'static str, u32), (Program, usize)>,
}

impl Programs {
    /// Compiles all builds for a GPU; the first call installs NVIDIA's compilers.
    pub fn new(gpu: &Gpu, builds: impl Iterator<Item = Build>) -> Result<Self> {
        let known = [Arch::Sm80, Arch::Sm90].into_iter().find(|arch| arch.name() == gpu.arch.name);
        let arch = known.with_context(|| {
            format!("--gpus {gpu}: the emulator knows sm_80 and sm_90, not {}", gpu.arch.name)
        })?;
        let (toolchain, name) = (Toolchain::get(), kernel_name(Dtype::F32, Mode::Sum));
        let mut programs = BTreeMap::new();
        for build in builds {
            let compiled = toolchain.compile(SOURCE, arch.name(), &build.defines());
            let report = compiled.reports().into_iter().find(|report| report.kernel == name);
            let shared_bytes = report.context("the compiler reports every kernel")?.shared_bytes;
            let all =
                parse(&toolchain.disassemble(&compiled)).map_err(|e| anyhow::anyhow!("{e}"))?;
            let program = all.into_iter().find(|program| program.name == name);
            let program = program.context("the machine code of every kernel")?;
            let key = (build.variant.name, build.min_blocks);
            programs.insert(key, (program, shared_bytes as usize));
        }
        Ok(Self { arch, programs })
    }

    fn get(&self, build: &Build) -> Option<&(Program, usize)> {
        // Pinning by a kernel that runs before runs the code of vec4.
        let variant = if build.variant.has_own_code() { build.variant } else { Variant::VEC4 };
        self.programs.get(&(variant.name, build.min_blocks))
    }

    /// Runs a build on a batch of the shape of these lookups in which all ids differ.
    pub fn template(
        &self,
        gpu: &Gpu,
        spec: &Spec,
        lookups: &Lookups,
        build: &Build,
    ) -> Result<Template> {
        let requests = lookups.batches().first().context("a batch of lookups")?;
        let bags = lookups.bags(0).batch;
        let begin = |t: usize| requests.offsets[t * bags] as usize;
        let tables = spec.tables.len();
        let rows: Vec<usize> = (0..tables).map(|t| (begin(t + 1) - begin(t)).max(1)).collect();
        let numbers: Vec<u32> =
            (0..tables).flat_map(|t| 0..(begin(t + 1) - begin(t)) as u32).collect();
        let none = vec![0; tables];
        let device = Device::upload(gpu, spec, build, &rows, &none, &numbers, requests)?;
        let (launch, rows) = self.run(device, build)?;
        Ok(Template { launch, rows, offsets: requests.offsets.clone() })
    }

    fn run(&self, mut device: Device, build: &Build) -> Result<(Launch, Rows)> {
        let (program, shared_bytes) = self.get(build).context("a compiled build")?;
        let mut parameters = bytemuck::bytes_of(&device.batch).to_vec();
        parameters.extend(device.slices_at.to_le_bytes());
        let blocks = blocks_for(build, device.batch.bags, device.batch.bags_per_group);
        let groups_per_block = (THREADS / build.lanes) as usize;
        let mut groups = vec![Vec::new(); blocks as usize * device.slices * groups_per_block];
        let mut watch = |access: &Access<'_>| {
            let block = access.block[1] as usize * blocks as usize + access.block[0] as usize;
            let group = &mut groups[block * groups_per_block + access.warp];
            let is_l2 = program.code[access.pc / 16].has("PF2");
            let way = match access.kind {
                Kind::Load => Way::Load,
                Kind::Prefetch if is_l2 => Way::PrefetchL2,
                Kind::Prefetch => Way::PrefetchL1,
                Kind::Store => Way::Store,
            };
            push(group, access, way, &device.rows);
        };
        let how = launch::Launch {
            grid: [blocks, device.slices as u32, 1],
            block: [THREADS, 1, 1],
            shared_bytes: *shared_bytes,
            parameters: &parameters,
            arch: self.arch,
        };
        launch::launch(program, &how, &mut device.memory, &mut watch)
            .map_err(|fault| anyhow::anyhow!("{fault}"))?;
        let row_bytes = device.lookups as f64 * device.rows.stride as f64;
        let launch = Launch { groups, groups_per_block, lookups: device.lookups, row_bytes };
        Ok((launch, device.rows))
    }
}

/// The requests of a batch whose ids all differ. The order of requests does not depend on ids (a test
/// shows it), so each request for a row stands for the id at that row's place in the batch.
pub struct Template {
    launch: Launch,
    rows: Rows,
    offsets: Vec<i64>,
}

impl Template {
    /// The requests of a batch of the same shape with other ids.
    pub fn with_ids(
        &self,
        spec: &Spec,
        lookups: &Lookups,
        hot: &[Vec<u32>],
        is_pinned: bool,
    ) -> Result<Launch> {
        let requests = lookups.batches().first().context("a batch of lookups")?;
        ensure!(requests.offsets == self.offsets, "batches of different shapes");
        let rows: Vec<usize> = spec.tables.iter().map(|table| table.rows).collect();
        let hot_rows: Vec<usize> =
            hot.iter().map(|rows| if is_pinned { rows.len() } else { 0 }).collect();
        let places = Rows::new(&mut Memory::default(), &rows, &hot_rows, self.rows.stride, false);
        let numbers: Vec<Vec<u32>> = (rows.iter().zip(hot).zip(&hot_rows))
            .map(|((rows, hot), count)| hottest_first(*rows, &hot[..*count]))
            .collect();
        let bags = lookups.bags(0).batch;
        let mut launch = self.launch.clone();
        for request in launch.groups.iter_mut().flatten() {
            if request.content != Content::Other {
                let (table, place, within) = self.rows.find(request.line * LINE as u64);
                let id = requests.ids[requests.offsets[table * bags] as usize + place];
                let address = places.address(table, numbers[table][id as usize]) + within;
                request.line = address / LINE as u64;
                request.content = places.content(address);
            }
        }
        Ok(launch)
    }
}

/// Adds the lines that an access touches, one request per run of adjacent lines.
fn push(group: &mut Vec<Request>, access: &Access<'_>, way: Way, rows: &Rows) {
    let lanes = (0..access.addresses.len()).filter(|lane| access.mask >> lane & 1 == 1);
    let mut last: Option<Request> = None;
    for lane in lanes {
        let address = access.addresses[lane];
        let line = address / LINE as u64;
        match &mut last {
            Some(run) if (run.line..run.line + u64::from(run.lines)).contains(&line) => {}
            Some(run) if line == run.line + u64::from(run.lines) => run.lines += 1,
            _ => {
                group.extend(last);
                last = Some(Request { line, lines: 1, content: rows.content(address), way });
            }
        }
    }
    group.extend(last);
}

/// Where rows lie on the device: hot rows of all tables side by side, then each table's others.
#[derive(Clone)]
pub struct Rows {
    stride: usize,
    hot: std::ops::Range<u64>,
    /// Where each table's hot rows begin, and how many there are.
    hot_of_tables: Vec<(u64, usize)>,
    cold: Vec<std::ops::Range<u64>>,
}

impl Rows {
    /// Lays out tables of so many rows. Rows are zero, as only addresses matter; without `is_filled`
    /// there are none.
    fn new(
        memory: &mut Memory,
        rows: &[usize],
        hot_rows: &[usize],
        stride: usize,
        is_filled: bool,
    ) -> Self {
        let mut end = FIRST;
        let mut add = |name: &str, bytes: usize| {
            if is_filled {
                return memory.add(name, vec![0; bytes], false);
            }
            let base = end;
            end = (base + bytes as u64 + GAP).next_multiple_of(256);
            base
        };
        let hot_bytes = hot_rows.iter().sum::<usize>() * stride;
        let base = add("hot rows", hot_bytes);
        let mut hot_end = base;
        let mut hot_of_tables = Vec::new();
        let mut cold = Vec::new();
        for (rows, hot_rows) in rows.iter().zip(hot_rows) {
            hot_of_tables.push((hot_end, *hot_rows));
            hot_end += (hot_rows * stride) as u64;
            let bytes = (rows - hot_rows) * stride;
            let first = add("cold rows", bytes);
            cold.push(first..first + bytes as u64);
        }
        Self { stride, hot: base..hot_end, hot_of_tables, cold }
    }

    /// The address of a table's row, by its number.
    fn address(&self, table: usize, number: u32) -> u64 {
        let (hot, hot_rows) = self.hot_of_tables[table];
        match (number as usize).checked_sub(hot_rows) {
            None => hot + u64::from(number) * self.stride as u64,
            Some(cold) => self.cold[table].start + (cold * self.stride) as u64,
        }
    }

    /// The table of a cold row, its place there, and the bytes before an address in it.
    fn find(&self, address: u64) -> (usize, usize, u64) {
        let table = self.cold.partition_point(|table| table.end <= address);
        let at = address - self.cold[table].start;
        (table, (at / self.stride as u64) as usize, at % self.stride as u64)
    }

    fn content(&self, address: u64) -> Content {
        if self.hot.contains(&address) {
            return Content::HotRow;
        }
        let table = self.cold.partition_point(|table| table.end <= address);
        let is_row = self.cold.get(table).is_some_and(|table| table.contains(&address));
        if is_row { Content::Row } else { Content::Other }
    }
}

/// A model's tables and one batch in the emulator's memory, laid out as the host lays them out.
struct Device {
    memory: Memory,
    batch: Batch,
    slices: usize,
    slices_at: u64,
    rows: Rows,
    lookups: usize,
}

impl Device {
    /// `numbers` are the row numbers of the batch, table after table; `requests` has its bags.
    fn upload(
        gpu: &Gpu,
        spec: &Spec,
        build: &Build,
        rows: &[usize],
        hot_rows: &[usize],
        numbers: &[u32],
        requests: &Requests,
    ) -> Result<Self> {
        let is_plain = |dtype, pooling| dtype == Dtype::F32 && pooling != Pooling::Max;
        ensure!(
            spec.tables.iter().all(|table| is_plain(table.dtype, table.pooling)),
            "only models of fp32 sums are emulated"
        );
        let dim = spec.tables.first().context("a model with tables")?.dim;
        ensure!(spec.tables.iter().all(|table| table.dim == dim), "tables of different widths");
        let (tables, stride) = (spec.tables.len(), row_stride(Dtype::F32, dim));
        let bags = (requests.offsets.len() - 1) / tables;
        let mut memory = Memory::default();
        let places = Rows::new(&mut memory, rows, hot_rows, stride, true);
        let slices: Vec<Slice> = (0..tables)
            .flat_map(|t| {
                let hot_bytes = (hot_rows[t] * stride) as u64;
                let whole = Slice {
                    hot: places.hot_of_tables[t].0,
                    cold: places.cold[t].start.wrapping_sub(hot_bytes),
                    hot_rows: hot_rows[t] as u32,
                    stride: stride as u32,
                    table: t as u32,
                    column: (t * dim) as u32,
                    ..Slice::default()
                };
                whole.cut(dim, build).collect::<Vec<_>>()
            })
            .collect();
        let starts: Vec<u32> = requests.offsets.iter().map(|start| *start as u32).collect();
        let scales = vec![1.0f32; starts.len() - 1];
        let width = tables * dim;
        let bytes = |values: &[u32]| bytemuck::cast_slice(values).to_vec();
        let batch = Batch {
            rows: memory.add("row numbers", bytes(numbers), false),
            starts: memory.add("starts", bytes(&starts), false),
            weights: 0,
            scales: memory.add("scales", bytemuck::cast_slice(&scales).to_vec(), false),
            out: memory.add("sums", vec![0; bags * width * 4], true),
            bags: bags as u32,
            out_stride: width as u32,
            bags_per_group: bags_per_group(build, gpu.sms, bags, slices.len()),
            unused: 0,
        };
        let slices_at = memory.add("slices", bytemuck::cast_slice(&slices).to_vec(), false);
        let (slices, lookups) = (slices.len(), numbers.len());
        Ok(Self { memory, batch, slices, slices_at, rows: places, lookups })
    }
}

/// The number of each row where the hot ones come first and the others keep their order.
fn hottest_first(rows: usize, hot: &[u32]) -> Vec<u32> {
    const COLD: u32 = u32::MAX;
    let mut numbers = vec![COLD; rows];
    for (number, row) in hot.iter().enumerate() {
        numbers[*row as usize] = number as u32;
    }
    let cold = numbers.iter_mut().filter(|number| **number == COLD);
    cold.zip(hot.len() as u32..).for_each(|(number, next)| *number = next);
    numbers
}

#[cfg(test)]
mod tests {
    use hither_cuda::forecast::{forecast, forecast_from};
    use hither_cuda::gpu::planned_builds;
    use hither_dlrm::generate::Shape;
    use hither_dlrm::lookups::{self, Hotness};
    use hither_dlrm::plan::gpu::Pinning;

    use super::*;

    impl Programs {
        /// Runs a build on the first batch of these lookups. Returns all its requests.
        fn launch(
            &self,
            gpu: &Gpu,
            spec: &Spec,
            lookups: &Lookups,
            hot: &[Vec<u32>],
            build: &Build,
        ) -> Result<(Launch, Rows)> {
            let is_pinned = build.variant.pinning != Pinning::None;
            let hot_rows: Vec<usize> =
                hot.iter().map(|rows| if is_pinned { rows.len() } else { 0 }).collect();
            let requests = lookups.batches().first().context("a batch of lookups")?;
            let bags = lookups.bags(0).batch;
            let mut numbers = Vec::with_capacity(requests.ids.len());
            for (t, table) in spec.tables.iter().enumerate() {
                let number = hottest_first(table.rows, &hot[t][..hot_rows[t]]);
                let ends = [t, t + 1].map(|t| requests.offsets[t * bags] as usize);
                numbers
                    .extend(requests.ids[ends[0]..ends[1]].iter().map(|id| number[*id as usize]));
            }
            let rows: Vec<usize> = spec.tables.iter().map(|table| table.rows).collect();
            let device = Device::upload(gpu, spec, build, &rows, &hot_rows, &numbers, requests)?;
            self.run(device, build)
        }
    }

    /// The requests for rows of each group: addresses, lines, and how they pass the caches.
    fn rows_asked_for(launch: &Launch, rows: &Rows) -> Vec<Vec<Request>> {
        assert!(launch.groups.iter().flatten().any(|request| request.content != Content::Other));
        let is_row = |request: &&Request| {
            let content = rows.content(request.line * LINE as u64);
            assert_eq!(content == Content::Other, request.content == Content::Other);
            content != Content::Other
        };
        launch.groups.iter().map(|group| group.iter().filter(is_row).copied().collect()).collect()
    }

    /// What a plan forecasts from ids alone is what the machine code of every variant asks for: a
    /// variant's order of requests moves hit rates by a few points and DRAM's bytes by less than 5 %. And the requests for rows
    /// are those of a batch whose ids all differ, with these ids in their place.
    #[test]
    fn plans_agree_with_machine_code() {
        let mut shape = Shape::preset("micro24").expect("a preset");
        (shape.tables, shape.rows) = (2, 4000);
        let spec = shape.spec("m");
        let drawn = lookups::Shape { batches: 1, batch: 256, pooling: 20 };
        let lookups = Lookups::draw(Hotness::Medium, &[shape.rows; 2], drawn, 1);
        // As few SMs as the model is small, or each would have a bag or two and everything would fit.
        let a100: Gpu = "a100".parse().expect("a GPU");
        let (l2_bytes, persisting_bytes) = (1 << 20, 256 << 10);
        let small = Gpu { sms: 2, l2_bytes, persisting_bytes, ..a100 };
        let programs = Programs::new(&small, planned_builds(&small.arch)).expect("compiled");
        let by_ids = forecast(&small, &spec, &lookups);
        let by_code = forecast_from(&small, &spec, &lookups, &mut |build, hot, setting| {
            let (launch, rows) =
                programs.launch(&small, &spec, &lookups, hot, build).expect("a good run");
            let is_pinned = build.variant.pinning != Pinning::None;
            let template = programs.template(&small, &spec, &lookups, build).expect("a good run");
            let filled =
                template.with_ids(&spec, &lookups, hot, is_pinned).expect("the same shape");
            assert_eq!(rows_asked_for(&launch, &rows), rows_asked_for(&filled, &rows), "{build:?}");
            launch.traffic(&small, setting)
        });
        for (ids, code) in by_ids.variants.iter().zip(&by_code.variants) {
            let about =
                format!("{} {}: {:?} {:?}", ids.variant, ids.min_blocks, ids.traffic, code.traffic);
            // What a full L1 keeps of lines that were fetched ahead hangs on the very order.
            let bound = if ids.variant == "l1" { 0.1 } else { 0.04 };
            assert_eq!((ids.variant, ids.min_blocks), (code.variant, code.min_blocks));
            assert!((ids.traffic.l1_hits - code.traffic.l1_hits).abs() < bound, "{about}");
            assert!((ids.traffic.l2_hits - code.traffic.l2_hits).abs() < bound, "{about}");
            assert!(
                (ids.traffic.dram_bytes / code.traffic.dram_bytes - 1.0).abs() < 0.05,
                "{about}"
            );
        }
    }
}
