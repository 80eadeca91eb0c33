//! The CUDA kernels without a GPU: what the compiler makes of them, and that the machine code
//! computes what the plain reference does.

mod compiled;
mod emulated;
mod layers;
mod mutated;
mod occupancy;
mod setup;
