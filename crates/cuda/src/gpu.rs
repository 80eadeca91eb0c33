//! GPUs that a plan can be made for without having one: their makers' figures, and what compiled
//! kernels take of them.

use std::fmt;
use std::str::FromStr;

use hither_dlrm::plan::gpu::Variant;

use crate::bags::{Build, THREADS};
use crate::occupancy::{Arch, Resources};

/// A GPU by its data sheet. Latencies are assumptions from published microbenchmarks, good to about a
/// quarter; everything else is the maker's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    pub name: &'static str,
    pub arch: Arch,
    pub sms: usize,
    /// L1 and shared memory of an SM together.
    pub l1_bytes: usize,
    pub l2_bytes: usize,
    /// The part of L2 that may be set aside for pinned rows. Three quarters is what an A100 reports;
    /// for the others it is assumed.
    pub persisting_bytes: usize,
    pub memory_bytes: u64,
    pub dram_bytes_per_ns: f64,
    pub l2_bytes_per_ns: f64,
    pub dram_latency_ns: f64,
    pub l2_latency_ns: f64,
    pub l1_latency_ns: f64,
}

impl Gpu {
    pub const ALL: [Self; 4] = [
        Self {
            name: "a100",
            arch: Arch::SM_80,
            sms: 108,
            l1_bytes: 192 << 10,
            l2_bytes: 40 << 20,
            persisting_bytes: 30 << 20,
            memory_bytes: 40 << 30,
            dram_bytes_per_ns: 1555.0,
            l2_bytes_per_ns: 5120.0,
            dram_latency_ns: 400.0,
            l2_latency_ns: 190.0,
            l1_latency_ns: 25.0,
        },
        Self {
            name: "a10",
            arch: Arch::SM_86,
            sms: 72,
            l1_bytes: 128 << 10,
            l2_bytes: 6 << 20,
            persisting_bytes: 4608 << 10,
            memory_bytes: 24 << 30,
            dram_bytes_per_ns: 600.0,
            l2_bytes_per_ns: 2400.0,
            dram_latency_ns: 400.0,
            l2_latency_ns: 190.0,
            l1_latency_ns: 25.0,
        },
        Self {
            name: "h100",
            arch: Arch::SM_90,
            sms: 132,
            l1_bytes: 256 << 10,
            l2_bytes: 50 << 20,
            persisting_bytes: 75 * (50 << 20) / 100,
            memory_bytes: 80 << 30,
            dram_bytes_per_ns: 3350.0,
            l2_bytes_per_ns: 7000.0,
            dram_latency_ns: 450.0,
            l2_latency_ns: 170.0,
            l1_latency_ns: 22.0,
        },
        Self {
            name: "b200",
            arch: Arch::SM_100,
            sms: 148,
            l1_bytes: 256 << 10,
            l2_bytes: 126 << 20,
            persisting_bytes: 75 * (126 << 20) / 100,
            memory_bytes: 180 << 30,
            dram_bytes_per_ns: 8000.0,
            l2_bytes_per_ns: 12_000.0,
            dram_latency_ns: 500.0,
            l2_latency_ns: 200.0,
            l1_latency_ns: 22.0,
        },
    ];
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl FromStr for Gpu {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|gpu| gpu.name == name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|gpu| gpu.name).collect();
            format!("unknown GPU `{name}`; expected {}", known.join(", "))
        })
    }
}

/// What the pinned compiler made of every build that a plan considers: see the header of the file.
/// A test compiles them all anew and compares.
pub const RESOURCES: &str = include_str!("resources.csv");

/// The builds of which [`RESOURCES`] tells: each variant with its own code, without a register cap and
/// with the strictest.
pub fn planned_builds(arch: &Arch) -> impl Iterator<Item = Build> {
    let own = Variant::ALL.into_iter().filter(|variant| variant.has_own_code());
    let caps = [0, arch.blocks_max(THREADS)];
    own.flat_map(move |variant| caps.map(|min_blocks| Build { min_blocks, ..Build::new(variant) }))
}

/// What a kernel of a build takes on an architecture; `None` where it was not compiled.
pub fn resources(arch: &Arch, build: &Build, kernel: &str) -> Option<Resources> {
    // Pinning by a kernel that runs before runs the code of vec4.
    let variant =
        if build.variant.has_own_code() { build.variant.name } else { Variant::VEC4.name };
    let key = format!("{},{variant},{},{},{kernel},", arch.name, build.distance, build.min_blocks);
    let line = RESOURCES.lines().find_map(|line| line.strip_prefix(&key))?;
    let mut numbers = line.split(',').map_while(|number| number.parse().ok());
    let (registers, spill_bytes) = (numbers.next()?, numbers.next()?);
    let (stack_bytes, shared_bytes) = (numbers.next()?, numbers.next()?);
    Some(Resources { registers, spill_bytes, stack_bytes, shared_bytes })
}
