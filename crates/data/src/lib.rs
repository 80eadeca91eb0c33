//! Bytes in and out: memory with the pages one asks for, mapped files, tensors as other programs
//! write them, and traces of ids.
//!
//! Bytes of files are not trusted: every length is checked before it is used, and nothing from a
//! file is ever run. Opening is mapping: no tensor is copied unless its layout forces it.

pub mod array;
pub mod error;
pub mod ids;
pub mod map;
pub mod memory;
pub mod npy;
pub mod npz;
pub mod output;
pub mod pickle;
pub mod safetensors;
pub mod samples;
pub mod scratch;
mod shards;
pub mod spill;
pub mod tensor;
pub mod torch;
#[cfg(unix)]
mod torn;
mod zipped;

pub use array::Array;
pub use error::Error;
pub use ids::{Columns, Dense, IdTrace};
pub use map::{Backing, Buffer, Bytes, Pages};
pub use npz::Npz;
pub use output::Output;
pub use scratch::Scratch;
pub use spill::Spill;
pub use tensor::{Checkpoint, Dtype, Tensor};
