//! All integration tests of this crate, in one binary: each would link the whole tree again.

mod bag;
mod detect;
mod gemm;
mod interact;
mod machine_code;
mod prefetch;
mod product;
mod spmm;
mod threads;
mod vector;
