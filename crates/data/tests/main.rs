//! All integration tests of this crate, in one binary: each would link the whole tree again.

mod hostile;
mod ids;
mod npz;
mod pickle;
mod safetensors;
mod torch;
