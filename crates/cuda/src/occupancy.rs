//! How many warps of a kernel an SM holds at once, and what limits them.
//!
//! The same answer as NVIDIA's `cuda_occupancy.h`, which a test compiles and compares.

use std::fmt;

/// Threads of a warp.
const WARP: u32 = 32;
/// Registers are given to a warp in units of so many.
const REGISTER_UNIT: u32 = 256;
const REGISTERS_PER_THREAD_MAX: u32 = 255;
/// Registers of one of the four parts of an SM; a warp lives in one part.
const REGISTERS_PER_PART: u32 = 16_384;
const PARTS: u32 = 4;
/// Shared memory is given to a block in units of so many bytes, and the driver takes some of its own.
const SHARED_UNIT: u32 = 128;
const SHARED_RESERVED: u32 = 1024;

/// What an architecture offers per SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arch {
    /// As compilers name it: `sm_80`.
    pub name: &'static str,
    pub major: u32,
    pub minor: u32,
    pub warps: u32,
    pub blocks: u32,
    pub shared_bytes: u32,
    /// The most that one block may take.
    pub shared_bytes_per_block: u32,
}

impl Arch {
    pub const SM_80: Self = arch("sm_80", (8, 0), (64, 32), (164 << 10, 163 << 10));
    pub const SM_86: Self = arch("sm_86", (8, 6), (48, 16), (100 << 10, 99 << 10));
    pub const SM_90: Self = arch("sm_90", (9, 0), (64, 32), (228 << 10, 227 << 10));
    pub const SM_100: Self = arch("sm_100", (10, 0), (64, 32), (228 << 10, 227 << 10));
    pub const ALL: [Self; 4] = [Self::SM_80, Self::SM_86, Self::SM_90, Self::SM_100];

    /// The latest architecture that is not newer than a compute capability; the oldest for older ones.
    pub fn for_version(version: (u32, u32)) -> Self {
        let mut known = Self::ALL.into_iter().rev();
        known.find(|arch| (arch.major, arch.minor) <= version).unwrap_or(Self::SM_80)
    }

    /// Blocks of so many threads that an SM has room for: the strictest cap of registers.
    pub fn blocks_max(&self, threads: u32) -> u32 {
        self.warps * WARP / threads
    }
}

const fn arch(
    name: &'static str,
    version: (u32, u32),
    (warps, blocks): (u32, u32),
    (shared_bytes, shared_bytes_per_block): (u32, u32),
) -> Arch {
    let (major, minor) = version;
    Arch { name, major, minor, warps, blocks, shared_bytes, shared_bytes_per_block }
}

/// What a compiled kernel takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Per thread.
    pub registers: u32,
    /// Per thread, of stores and loads together.
    pub spill_bytes: u32,
    /// Per thread.
    pub stack_bytes: u32,
    /// Per block.
    pub shared_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    Warps,
    Blocks,
    Registers,
    Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Resident blocks per SM; 0 where the kernel cannot run.
    pub blocks: u32,
    pub warps: u32,
    pub limit: Limit,
}

/// How many blocks of `threads` threads an SM holds.
pub fn occupancy(arch: &Arch, kernel: &Resources, threads: u32) -> Occupancy {
    let warps = threads.div_ceil(WARP).max(1);
    let by_registers = match kernel.registers {
        0 => u32::MAX,
        r if r > REGISTERS_PER_THREAD_MAX => 0,
        r => {
            let per_warp = (r * WARP).next_multiple_of(REGISTER_UNIT);
            // The launch reserves whole rounds of all parts for a block.
            let fits = warps.next_multiple_of(PARTS) * per_warp <= REGISTERS_PER_PART * PARTS;
            if fits { REGISTERS_PER_PART / per_warp * PARTS / warps } else { 0 }
        }
    };
    let shared = (kernel.shared_bytes + SHARED_RESERVED).next_multiple_of(SHARED_UNIT);
    let by_shared = match kernel.shared_bytes > arch.shared_bytes_per_block {
        true => 0,
        false => arch.shared_bytes / shared,
    };
    let limits = [
        (arch.warps / warps, Limit::Warps),
        (arch.blocks, Limit::Blocks),
        (by_registers, Limit::Registers),
        (by_shared, Limit::Shared),
    ];
    let (blocks, limit) =
        limits.into_iter().min_by_key(|(blocks, _)| *blocks).expect("four limits");
    Occupancy { blocks, warps: blocks * warps, limit }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Warps => "warps",
            Self::Blocks => "blocks",
            Self::Registers => "registers",
            Self::Shared => "shared memory",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_the_paper_round_up() {
        let warps = |registers| {
            let kernel = Resources { registers, ..Resources::default() };
            occupancy(&Arch::SM_80, &kernel, 256).warps
        };
        // A cap of 42 rounds to 48, and 40 warps fit.
        assert_eq!((warps(32), warps(42), warps(68), warps(88)), (64, 40, 24, 16));
    }
}
