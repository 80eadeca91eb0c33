//! A batch over some awkward tables: in the emulator's memory, and by plain arithmetic.

use hither_cuda::bags::{
    Batch, Build, Mode, SOURCE, Slice, THREADS, blocks_for, kernel_name, row_stride,
};
use hither_kernels::bag::Dtype;
use hither_sass::Fault;
use hither_sass::launch::{Arch, Launch, Observer, launch};
use hither_sass::memory::Memory;
use hither_sass::parse::{Program, parse};
use hither_sass::toolchain::Toolchain;

/// Elements: fewer than a vector, odd, a whole warp, and more than one slice.
const DIMS: [usize; 5] = [1, 4, 13, 64, 130];
const ROWS: usize = 23;
/// Ids per bag, repeated over bags: empty ones first, in the middle and last; runs of several
/// prefetch distances.
const BAGS: [usize; 12] = [0, 1, 3, 0, 0, 7, 2, 12, 1, 5, 4, 0];

/// A small deterministic generator: the same data on every machine.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    /// Not zero, so that the order of a zero's signs never matters.
    pub fn float(&mut self) -> f32 {
        let value = self.below(4_000_000) as f32 / 1_000_000.0 - 2.0;
        if value == 0.0 { 0.5 } else { value }
    }
}

pub struct Table {
    pub dim: usize,
    /// Values as the kernel should see them, before scale and bias.
    pub values: Vec<f32>,
    /// Scale and bias per row, as half floats.
    pub params: Vec<[half::f16; 2]>,
    pub hot_rows: usize,
}

pub struct Problem {
    pub dtype: Dtype,
    pub tables: Vec<Table>,
    pub bags: usize,
    pub rows: Vec<u32>,
    pub starts: Vec<u32>,
    pub weights: Vec<f32>,
    pub scales: Vec<f32>,
}

impl Problem {
    pub fn draw(dtype: Dtype, seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let table = |(index, dim): (usize, &usize)| {
            let mut value = || match dtype {
                Dtype::Int8 => draw.below(256) as f32,
                Dtype::F16 => half::f16::from_f32(draw.float()).to_f32(),
                _ => draw.float(),
            };
            let values = (0..ROWS * dim).map(|_| value()).collect();
            let mut param = || half::f16::from_f32(draw.float());
            let params = (0..ROWS).map(|_| [param(), param()]).collect();
            // No hot row, some, and nothing but hot rows.
            Table { dim: *dim, values, params, hot_rows: [0, 5, ROWS][index % 3] }
        };
        let tables: Vec<Table> = DIMS.iter().enumerate().map(table).collect();
        let mut draw = Draw::new(seed + 1);
        let (mut rows, mut starts) = (Vec::new(), vec![0]);
        for table in 0..tables.len() {
            for bag in 0..BAGS.len() {
                let ids = BAGS[(bag + table) % BAGS.len()];
                rows.extend((0..ids).map(|_| draw.below(ROWS) as u32));
                starts.push(rows.len() as u32);
            }
        }
        let weights = rows.iter().map(|_| draw.float()).collect();
        let scales = (1..starts.len()).map(|bag| 1.0 / (1 + bag % 3) as f32).collect();
        Self { dtype, tables, bags: BAGS.len(), rows, starts, weights, scales }
    }

    pub fn width(&self) -> usize {
        self.tables.iter().map(|table| table.dim).sum()
    }

    /// The sums by plain arithmetic, in the order of the CPU's reference.
    pub fn reference(&self, mode: Mode) -> Vec<f32> {
        let mut out = vec![0.0; self.bags * self.width()];
        let mut column = 0;
        for (t, table) in self.tables.iter().enumerate() {
            for bag in 0..self.bags {
                let at = t * self.bags + bag;
                let range = self.starts[at] as usize..self.starts[at + 1] as usize;
                for d in 0..table.dim {
                    let value = self.element(table, mode, range.clone(), d, self.scales[at]);
                    out[bag * self.width() + column + d] = value;
                }
            }
            column += table.dim;
        }
        out
    }

    fn element(
        &self,
        table: &Table,
        mode: Mode,
        range: std::ops::Range<usize>,
        d: usize,
        bag_scale: f32,
    ) -> f32 {
        let is_empty = range.is_empty();
        let is_quantised = self.dtype == Dtype::Int8;
        let (mut sum, mut bias_sum) =
            (if mode == Mode::Max { f32::NEG_INFINITY } else { 0.0 }, 0.0f32);
        for p in range {
            let row = self.rows[p] as usize;
            let x = table.values[row * table.dim + d];
            let [scale, bias] = match is_quantised {
                true => table.params[row].map(half::f16::to_f32),
                false => [1.0, 0.0],
            };
            let weight = if mode == Mode::Weighted { self.weights[p] } else { 1.0 };
            sum = match mode {
                Mode::Max => sum.max(x.mul_add(scale, bias)),
                _ => x.mul_add(scale * weight, sum),
            };
            bias_sum = bias.mul_add(weight, bias_sum);
        }
        match mode {
            Mode::Max if is_empty => 0.0,
            Mode::Max => sum,
            _ if is_quantised => (sum + bias_sum) * bag_scale,
            _ => sum * bag_scale,
        }
    }

    fn row_bytes(&self, table: &Table, row: usize) -> Vec<u8> {
        let values = &table.values[row * table.dim..][..table.dim];
        let mut bytes: Vec<u8> = match self.dtype {
            Dtype::Int8 => values.iter().map(|value| *value as u8).collect(),
            Dtype::F16 => {
                values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()
            }
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        };
        bytes.resize(row_stride(self.dtype, table.dim), 0);
        bytes
    }

    /// All of it in device memory: each region ends where its data ends.
    pub fn upload(&self, build: &Build) -> Uploaded {
        let mut memory = Memory::default();
        let mut hot = Vec::new();
        let hot_offsets: Vec<usize> = (self.tables.iter())
            .map(|table| {
                let start = hot.len();
                hot.extend((0..table.hot_rows).flat_map(|row| self.row_bytes(table, row)));
                start
            })
            .collect();
        let hot_base = memory.add("hot rows", hot, false);
        let (mut slices, mut column) = (Vec::new(), 0);
        for (t, table) in self.tables.iter().enumerate() {
            let stride = row_stride(self.dtype, table.dim);
            let cold: Vec<u8> =
                (table.hot_rows..ROWS).flat_map(|row| self.row_bytes(table, row)).collect();
            let cold = memory.add("cold rows", cold, false) - (table.hot_rows * stride) as u64;
            let params = table.params.iter().flatten().flat_map(|p| p.to_le_bytes()).collect();
            let params = memory.add("params", params, false);
            let whole = Slice {
                hot: hot_base + hot_offsets[t] as u64,
                cold,
                params,
                hot_rows: table.hot_rows as u32,
                stride: stride as u32,
                table: t as u32,
                column: column as u32,
                ..Slice::default()
            };
            slices.extend(whole.cut(table.dim, build));
            column += table.dim;
        }
        let bytes = |values: &[u32]| bytemuck::cast_slice(values).to_vec();
        let floats = |values: &[f32]| bytemuck::cast_slice(values).to_vec();
        let batch = Batch {
            rows: memory.add("rows", bytes(&self.rows), false),
            starts: memory.add("starts", bytes(&self.starts), false),
            weights: memory.add("weights", floats(&self.weights), false),
            scales: memory.add("scales", floats(&self.scales), false),
            // NaN where nothing is written.
            out: memory.add("out", vec![0xff; self.bags * self.width() * 4], true),
            bags: self.bags as u32,
            out_stride: self.width() as u32,
            // The last run is shorter than the others.
            bags_per_group: 5,
            unused: 0,
        };
        let slices_at = memory.add("slices", bytemuck::cast_slice(&slices).to_vec(), false);
        Uploaded { memory, batch, slices, slices_at, width: self.width() }
    }
}

pub struct Uploaded {
    pub memory: Memory,
    pub batch: Batch,
    pub slices: Vec<Slice>,
    slices_at: u64,
    width: usize,
}

/// The row of a slice that holds an address; `None` for anything else that a kernel reads.
pub fn row_at(slice: &Slice, address: u64) -> Option<u32> {
    let row = |base: u64| address.checked_sub(base).map(|at| (at / u64::from(slice.stride)) as u32);
    let hot = row(slice.hot).filter(|row| *row < slice.hot_rows);
    hot.or_else(|| row(slice.cold).filter(|row| (slice.hot_rows..ROWS as u32).contains(row)))
}

impl Uploaded {
    /// Runs a kernel and returns the output.
    pub fn run(
        &mut self,
        program: &Program,
        build: &Build,
        shared_bytes: usize,
        arch: Arch,
        observer: &mut dyn Observer,
    ) -> Result<Vec<f32>, Fault> {
        let mut parameters = bytemuck::bytes_of(&self.batch).to_vec();
        parameters.extend(self.slices_at.to_le_bytes());
        let blocks = blocks_for(build, self.batch.bags, self.batch.bags_per_group);
        let how = Launch {
            grid: [blocks, self.slices.len() as u32, 1],
            block: [THREADS, 1, 1],
            shared_bytes,
            parameters: &parameters,
            arch,
        };
        launch(program, &how, &mut self.memory, observer)?;
        let len = self.batch.bags as usize * self.width * 4;
        Ok(bytemuck::pod_collect_to_vec(self.memory.read(self.batch.out, len)?))
    }
}

/// A compiled build: its kernels and the shared memory of each.
pub struct Kernels {
    programs: Vec<(Program, usize)>,
}

impl Kernels {
    pub fn new(build: &Build, arch: Arch) -> Self {
        let toolchain = Toolchain::get();
        let compiled = toolchain.compile(SOURCE, arch.name(), &build.defines());
        let reports = compiled.reports();
        let programs = parse(&toolchain.disassemble(&compiled)).expect("readable machine code");
        let shared = |program: &Program| {
            let report = reports.iter().find(|report| report.kernel == program.name);
            report.expect("a report for each kernel").shared_bytes as usize
        };
        Self {
            programs: programs.into_iter().map(|p| (shared(&p), p)).map(|(s, p)| (p, s)).collect(),
        }
    }

    pub fn get(&self, dtype: Dtype, mode: Mode) -> (&Program, usize) {
        let name = kernel_name(dtype, mode);
        let found = self.programs.iter().find(|(program, _)| program.name == name);
        let (program, shared) = found.expect("a kernel of this name");
        (program, *shared)
    }
}
