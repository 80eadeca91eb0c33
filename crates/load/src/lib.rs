//! A load generator for servers of the Open Inference Protocol (KServe v2, Triton).
//!
//! `wire` sends prepared requests over HTTP or gRPC, `describe` asks a server what its models take,
//! `request` encodes tensors, `drive` offers load in an open or a closed loop, `measure` turns answers
//! into figures, `host` tells what a virtual machine lost meanwhile, and `search` looks for the highest rate that keeps a latency target. Which ids a
//! request carries is the caller's choice: this crate knows no model.

pub mod describe;
pub mod drive;
mod error;
mod host;
pub mod measure;
pub mod proto;
pub mod request;
pub mod search;
pub mod wire;

pub use error::Error;
