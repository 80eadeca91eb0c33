//! For tests on machines without a GPU: NVIDIA's compilers, installed into a cache, and an emulator
//! that runs the machine code they make.
//!
//! [`launch::launch`] runs a parsed [`parse::Program`] over [`memory::Memory`], warp by warp. Every
//! access is checked for bounds and alignment. Tests of other crates call this; nothing of it is part of the
//! product.

mod compute;
pub mod launch;
pub mod memory;
pub mod parse;
pub mod toolchain;
mod warp;

use std::fmt;

/// Why machine code was stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// An instruction that the emulator does not know.
    Unknown(String),
    OutOfBounds {
        at: u64,
        len: usize,
    },
    Misaligned {
        at: u64,
        len: usize,
    },
    ReadOnly {
        at: u64,
        region: String,
    },
    /// Two threads wrote to one address.
    Race {
        at: u64,
    },
    OutsideScratchpad {
        name: &'static str,
        at: i64,
        len: usize,
    },
    /// Shared memory that was never written.
    Unwritten {
        name: &'static str,
        at: i64,
    },
    /// Lanes disagree on a value that the machine takes from one of them.
    NotUniform {
        instruction: String,
    },
    /// All threads wait for each other.
    Deadlock,
    /// More instructions than any of our kernels runs.
    Endless,
    /// A fault, and where it happened.
    At {
        kernel: String,
        pc: usize,
        instruction: String,
        fault: Box<Fault>,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(instruction) => write!(f, "unknown instruction {instruction}"),
            Self::OutOfBounds { at, len } => {
                write!(f, "{len} bytes at {at:#x} are in no allocation")
            }
            Self::Misaligned { at, len } => write!(f, "{len} bytes at {at:#x} are misaligned"),
            Self::ReadOnly { at, region } => write!(f, "write to {at:#x} in read-only `{region}`"),
            Self::Race { at } => write!(f, "two threads write to {at:#x}"),
            Self::OutsideScratchpad { name, at, len } => {
                write!(f, "{len} bytes at {at:#x} are outside of {name} memory")
            }
            Self::Unwritten { name, at } => write!(f, "{name} memory at {at:#x} was never written"),
            Self::NotUniform { instruction } => write!(f, "lanes disagree in {instruction}"),
            Self::Deadlock => write!(f, "all threads wait for each other"),
            Self::Endless => write!(f, "the kernel does not end"),
            Self::At { kernel, pc, instruction, fault } => {
                write!(f, "{kernel} at {pc:#06x}, {instruction}: {fault}")
            }
        }
    }
}

impl std::error::Error for Fault {}
