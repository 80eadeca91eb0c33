//! Training of graph neural networks over parts of a graph: learn locally, correct globally.
//!
//! [`train`] is the algorithm; what it calls stands in the files that it names.

pub mod average;
pub mod checkpoint;
pub mod config;
pub mod correct;
mod cost;
pub mod dataset;
pub mod error;
pub mod fetch;
pub mod full_batch;
pub mod generate;
pub mod graph;
pub mod layer;
pub mod links;
pub mod load;
pub mod local;
pub mod loss;
pub mod mode;
pub mod model;
mod named;
pub mod names;
pub mod normalisation;
pub mod optim;
pub mod partition;
pub mod parts;
pub mod probe;
pub mod run;
pub mod sample;
pub mod save;
pub mod schedule;
pub mod score;
pub mod summary;
pub mod task;
pub mod train;
pub mod transport;
pub mod update;

pub use config::TrainConfig;
pub use dataset::{Dataset, Features, Labels, Metric, Split};
pub use error::Error;
pub use graph::Graph;
pub use links::Links;
pub use names::Names;
