//! Recommendation models on NVIDIA GPUs.
//!
//! [`load`] puts a model on a device, behind the trait that the engine has for it ([`hither_dlrm::run::Gpu`]);
//! [`measure()`] times the variants of its embedding stage, and [`forecast`] judges them for a GPU that need
//! not be there. The driver and its run-time compiler are looked for when a device is opened: neither is
//! needed to build this crate.

pub mod bags;
pub mod device;
mod engine;
pub mod forecast;
pub mod gpu;
pub mod occupancy;

pub use engine::{Measured, candidates, load, measure};

/// Why a GPU cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("no CUDA driver found (libcuda.so.1); install NVIDIA's driver")]
    NoDriver,
    #[error("the CUDA driver is too old: it lacks {missing}; install version 535 or later")]
    OldDriver { missing: String },
    #[error(
        "no run-time compiler found (libnvrtc.so); install CUDA's nvrtc, or set LD_LIBRARY_PATH to it"
    )]
    NoCompiler,
    #[error("there is no GPU {number}; the driver shows {count}")]
    NoDevice { number: u32, count: u32 },
    #[error("the GPU has no room for {bytes} bytes; {free} are free")]
    OutOfMemory { bytes: u64, free: u64 },
    #[error("cannot {action}: {problem}")]
    Driver { action: &'static str, problem: String },
    #[error("cannot compile the kernels: {log}")]
    Compile { log: String },
    #[error("the compiled source has no kernel `{name}`")]
    Kernel { name: String },
    #[error("the GPU is lost: cannot {action}: {problem}")]
    Lost { action: &'static str, problem: String },
}

impl Error {
    /// Whether no further call to the device can succeed.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}

/// What the driver tells of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub name: String,
    /// Compute capability: (8, 0) for an A100.
    pub version: (u32, u32),
    pub sms: usize,
    pub memory_bytes: usize,
    pub l2_bytes: usize,
    /// The part of L2 that may be set aside for pinned rows; 0 where the GPU cannot.
    pub persisting_bytes_max: usize,
    pub window_bytes_max: usize,
}

impl From<Error> for hither_dlrm::Error {
    fn from(error: Error) -> Self {
        Self::Gpu { is_lost: error.is_lost(), problem: error.to_string() }
    }
}
