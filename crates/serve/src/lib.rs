//! The inference server around the dlrm engine, in three parts:
//!
//! - the shell ([`http`], [`grpc`], [`listen`]) translates the Open Inference Protocol into one
//!   request type ([`infer`]) and back;
//! - the [`queue`] of each model cuts batches, fairly between clients and within bounds, and refuses what its
//!   [`pace`] cannot answer in time;
//! - the [`backend`] computes them on the engine's threads, which all models share.
//!
//! Around them: the [`repository`] loads and exchanges models, [`settle`] moves their tables, [`shm`]
//! reads tensors that are not sent, and [`stats`] and [`metrics`] count.

pub mod backend;
pub mod config;
pub mod describe;
pub mod error;
pub mod grpc;
pub mod http;
pub mod infer;
pub mod inputs;
pub mod listen;
pub mod metrics;
pub mod pace;
pub mod queue;
pub mod receive;
pub mod repository;
pub mod run;
pub mod server;
pub mod settle;
pub mod shm;
pub mod stats;
pub mod tensor;
pub mod tls;

pub use error::Error;
