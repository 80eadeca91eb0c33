//! A launch: all blocks of a grid, one after the other.

use std::array::from_fn;
use std::rc::Rc;

use crate::Fault;
use crate::memory::{Memory, Scratchpad};
use crate::parse::Program;
use crate::warp::{LANES, Place, Status, Warp, World};

/// How a kernel is started.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Static shared memory of the kernel.
    pub shared_bytes: usize,
    /// The parameters, laid out as the kernel's C declaration has them.
    pub parameters: &'a [u8],
    pub arch: Arch,
}

/// Where an architecture keeps what a kernel is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    Sm80,
    Sm90,
}

impl Arch {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm90 => "sm_90",
        }
    }

    /// Offset of the parameters in the constant bank.
    fn parameters(self) -> usize {
        match self {
            Self::Sm80 => 0x160,
            Self::Sm90 => 0x210,
        }
    }

    /// Shared memory that the driver keeps at the beginning.
    fn shared_reserved(self) -> usize {
        match self {
            Self::Sm80 => 0,
            Self::Sm90 => 0x400,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Load,
    Store,
    Prefetch,
}

/// One instruction's access to global memory, by all its active lanes.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    pub kind: Kind,
    /// Byte address of the instruction.
    pub pc: usize,
    pub block: [u32; 3],
    pub warp: usize,
    pub mask: u32,
    pub addresses: &'a [u64; LANES],
    /// Bytes per lane.
    pub len: usize,
    /// The memory descriptor, which holds the cache policy; `None` for the default.
    pub descriptor: Option<u64>,
}

/// Who watches the accesses.
pub trait Observer {
    fn access(&mut self, access: &Access<'_>);
}

/// Watches nothing.
impl Observer for () {
    fn access(&mut self, _: &Access<'_>) {}
}

impl<F: FnMut(&Access<'_>)> Observer for F {
    fn access(&mut self, access: &Access<'_>) {
        self(access);
    }
}

/// Where local memory ends; the stack grows down from here.
const LOCAL_BYTES: usize = 2048;
/// Offset of the stack's first address in the constant bank.
const STACK: usize = 0x28;

/// Runs a kernel to its end. Returns the instructions that its warps ran.
pub fn launch(
    program: &Program,
    launch: &Launch<'_>,
    memory: &mut Memory,
    observer: &mut dyn Observer,
) -> Result<u64, Fault> {
    let constants = Rc::new(constants(launch));
    let uses_local = program.code.iter().any(|code| code.name == "STL" || code.name == "LDL");
    let local_bytes = if uses_local { LOCAL_BYTES } else { 0 };
    let mut steps = 0;
    memory.begin_launch();
    for z in 0..launch.grid[2] {
        for y in 0..launch.grid[1] {
            for x in 0..launch.grid[0] {
                let reserved = launch.arch.shared_reserved();
                let mut shared = Scratchpad::shared(reserved, launch.shared_bytes);
                let mut warps = warps(launch.block, [x, y, z], &constants, local_bytes);
                let mut world = World { program, memory, shared: &mut shared, observer };
                run_block(&mut warps, &mut world)?;
                steps += warps.iter().map(|warp| warp.steps).sum::<u64>();
            }
        }
    }
    Ok(steps)
}

fn run_block(warps: &mut [Warp], world: &mut World) -> Result<(), Fault> {
    loop {
        let mut is_waiting = false;
        for warp in &mut *warps {
            is_waiting |= warp.run(world)? == Status::AtBarrier;
        }
        if !is_waiting {
            return Ok(());
        }
        warps.iter_mut().for_each(Warp::release);
    }
}

fn warps(block: [u32; 3], at: [u32; 3], constants: &Rc<Vec<u8>>, local_bytes: usize) -> Vec<Warp> {
    let count = block.iter().product::<u32>() as usize;
    let thread = |index: usize| {
        let index = index as u32;
        [index % block[0], index / block[0] % block[1], index / block[0] / block[1]]
    };
    let place = |first: usize| Place {
        block: at,
        number: first / LANES,
        mask: (0..LANES.min(count - first)).fold(0, |mask, lane| mask | 1 << lane),
        threads: from_fn(|lane| thread(first + lane)),
    };
    let firsts = (0..count).step_by(LANES);
    firsts.map(|first| Warp::new(place(first), Rc::clone(constants), local_bytes)).collect()
}

/// The constant bank: sizes of blocks and grid, the stack, and the parameters.
fn constants(launch: &Launch<'_>) -> Vec<u8> {
    let mut bank = vec![0; launch.arch.parameters() + launch.parameters.len() + 8];
    for (index, size) in launch.block.iter().chain(&launch.grid).enumerate() {
        bank[index * 4..][..4].copy_from_slice(&size.to_le_bytes());
    }
    bank[STACK..][..4].copy_from_slice(&(LOCAL_BYTES as u32).to_le_bytes());
    bank[launch.arch.parameters()..][..launch.parameters.len()].copy_from_slice(launch.parameters);
    bank
}
