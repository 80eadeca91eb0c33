//! The inference server around the dlrm engine, in three parts:
//!
//! - the shell ([`http`], [`grpc`], [`listen`]) translates the Open Inference Protocol into one
//!   request type ([`infer`]) and back;
//! - the [`queue`] of each model cuts batches, fairly between clients and within bounds, and refuses what its
//!   [`pace`] cannot answer in time;
//! - the [`backend`] computes them on threads that all models share; [`dlrm`] is the one there is.
//!
//! Around them: [`receive`] bounds the bytes of requests, [`inputs`] checks each request once, [`served`] is
//! a version at work, the [`repository`] loads and exchanges versions as the [`catalogue`] decides,
//! [`settle`] moves their tables within the [`memory`] there is, [`shm`] reads tensors that are not sent,
//! and [`stats`] and [`metrics`] count.

pub mod backend;
pub mod catalogue;
pub mod config;
pub mod cost;
pub mod describe;
pub mod dlrm;
pub mod error;
pub mod golden;
pub mod grpc;
pub mod http;
pub mod infer;
pub mod inputs;
pub mod listen;
pub mod memory;
pub mod metrics;
pub mod pace;
pub mod queue;
pub mod receive;
pub mod repository;
pub mod run;
pub mod served;
pub mod server;
pub mod settle;
pub mod shm;
pub mod stats;
pub mod tensor;
pub mod tls;

pub use error::Error;
