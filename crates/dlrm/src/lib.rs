//! Recommendation models.

pub mod embeddings;
pub mod error;
pub mod generate;
pub mod hotness;
pub mod import;
pub mod interact;
pub mod lookups;
pub mod mlp;
pub mod model;
pub mod plan;
pub mod run;
pub mod tables;
pub mod workload;

pub use error::Error;
pub use model::Model;
