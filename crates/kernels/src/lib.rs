//! The only SIMD code of the project, and no I/O. Every kernel has a plain reference beside it;
//! which variant runs is chosen once, at load, by [`detect`].

pub mod bag;
mod compiled;
pub mod counting;
pub mod detect;
mod fetch;
pub mod gemm;
pub mod interact;
pub mod memory;
mod simd;
pub mod spmm;
pub mod threads;
pub mod vector;
