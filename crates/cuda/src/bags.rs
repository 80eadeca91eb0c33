//! The kernels' source, what the compiler is told of a variant, and what the host hands to a launch.
//!
//! `bags.cu` holds every technique; a [`Build`] chooses one by defines. The source is compiled for the
//! GPU at hand when a model is loaded, so nothing of CUDA is needed to build this crate. Nothing here
//! calls a driver.

use hither_dlrm::plan::gpu::{Ahead, Pinning, Variant};
use hither_kernels::bag::Dtype;

/// The source of all variants.
pub const SOURCE: &str = include_str!("bags.cu");
/// The source of the layers around the bags.
pub const LAYERS_SOURCE: &str = include_str!("layers.cu");
/// Rows and columns of a block of the kernel `linear`.
pub const TILE: u32 = 16;
/// The kernel that reads packed hot rows into L2 so that they stay there.
pub const PIN_KERNEL: &str = "pin";
/// Bytes per step of [`PIN_KERNEL`]: one sector of L2.
pub const PIN_STEP_BYTES: usize = 32;

/// Threads per block of every kernel.
pub const THREADS: u32 = 256;

/// A variant with its parameters: what the compiler is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Build {
    pub variant: Variant,
    /// Rows ahead; variants that fetch nothing ahead ignore it.
    pub distance: u32,
    /// Threads per row: a power of two up to 32.
    pub lanes: u32,
    /// Blocks that must fit an SM, which caps the registers; 0 for no cap.
    pub min_blocks: u32,
}

impl Build {
    pub fn new(variant: Variant) -> Self {
        Self { variant, distance: 4, lanes: 32, min_blocks: 0 }
    }

    /// The threads per row that leave the fewest idle in rows of at most `dim` elements.
    pub fn lanes_for(variant: Variant, dim: usize) -> u32 {
        let needed = dim.div_ceil(variant.vec as usize).max(1);
        (needed.next_power_of_two() as u32).min(32)
    }

    /// Elements of a row that one group of threads sums.
    pub fn slice_elements(&self) -> usize {
        (self.lanes * self.variant.vec) as usize
    }

    /// Options for nvcc and NVRTC alike.
    pub fn defines(&self) -> Vec<String> {
        let ahead = match self.variant.ahead {
            Ahead::None => 0,
            Ahead::Register => 1,
            Ahead::Shared => 2,
            Ahead::Local => 3,
            Ahead::L1 => 4,
            Ahead::L2 => 5,
        };
        let policy = u32::from(self.variant.pinning == Pinning::Policy);
        [
            ("AHEAD", ahead),
            ("DISTANCE", self.distance),
            ("VEC", self.variant.vec),
            ("LANES", self.lanes),
            ("POLICY", policy),
            ("THREADS", THREADS),
            ("MIN_BLOCKS", self.min_blocks),
        ]
        .map(|(name, value)| format!("-D{name}={value}"))
        .to_vec()
    }
}

/// How a bag's rows become one. A mean is a sum with scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Sum,
    Weighted,
    Max,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Sum, Self::Weighted, Self::Max];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Weighted => "weighted",
            Self::Max => "max",
        }
    }
}

/// The types of elements that the kernels read. Others are widened to fp16 or fp32 on the way to
/// the device.
pub const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Int8];

/// The type that a table has on the device.
pub fn device_dtype(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F32 | Dtype::Bf16 => Dtype::F32,
        Dtype::F16 => Dtype::F16,
        Dtype::Int8 | Dtype::Int4 => Dtype::Int8,
    }
}

/// The name of a kernel in the compiled source.
pub fn kernel_name(dtype: Dtype, mode: Mode) -> String {
    format!("bags_{}_{}", dtype.name(), mode.name())
}

/// Bytes from one row to the next on the device: a whole number of four elements, so that 128-bit
/// loads of fp32 are aligned whatever the dim.
pub fn row_stride(dtype: Dtype, dim: usize) -> usize {
    let padded = dim.next_multiple_of(4);
    match dtype {
        Dtype::F32 => padded * 4,
        Dtype::F16 | Dtype::Bf16 => padded * 2,
        Dtype::Int8 | Dtype::Int4 => padded,
    }
}

/// `struct Slice` of the source: adjacent elements of the rows of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Slice {
    /// Address of the slice's first element of row 0.
    pub hot: u64,
    /// Where row 0 would lie, were the hot rows not elsewhere; may lie before the allocation.
    pub cold: u64,
    pub params: u64,
    pub hot_rows: u32,
    pub stride: u32,
    pub width: u32,
    pub table: u32,
    pub column: u32,
    pub unused: u32,
}

impl Slice {
    /// Cuts the rows of a table into slices, each for one group of threads of a build. `self` holds the
    /// addresses and the column of the table's first element.
    pub fn cut(self, dim: usize, build: &Build) -> impl Iterator<Item = Self> {
        let element_bytes = self.stride as usize / dim.next_multiple_of(4).max(1);
        let elements = build.slice_elements();
        (0..dim).step_by(elements).map(move |first| {
            let offset = (first * element_bytes) as u64;
            Self {
                hot: self.hot.wrapping_add(offset),
                cold: self.cold.wrapping_add(offset),
                width: elements.min(dim - first) as u32,
                column: self.column + first as u32,
                ..self
            }
        })
    }
}

/// `struct Batch` of the source: the bags of one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Batch {
    pub rows: u64,
    pub starts: u64,
    pub weights: u64,
    pub scales: u64,
    pub out: u64,
    pub bags: u32,
    pub out_stride: u32,
    pub bags_per_group: u32,
    pub unused: u32,
}

/// Blocks in x that cover `bags` bags.
pub fn blocks_for(build: &Build, bags: u32, bags_per_group: u32) -> u32 {
    let groups = bags.div_ceil(bags_per_group.max(1));
    groups.div_ceil(THREADS / build.lanes)
}

/// As many consecutive bags per group of threads as still leave work for every warp of a device:
/// prefetching crosses bags, but only within a run.
pub fn bags_per_group(build: &Build, sms: usize, bags: usize, slices: usize) -> u32 {
    let groups_at_once = sms * (2048 / build.lanes as usize);
    (bags * slices / groups_at_once.max(1)).clamp(1, 64) as u32
}
