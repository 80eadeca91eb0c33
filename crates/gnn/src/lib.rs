//! Training of graph neural networks over parts of a graph: learn locally, correct globally.

pub mod dataset;
pub mod error;
pub mod graph;
pub mod load;
pub mod partition;

pub use dataset::{Dataset, Features, Labels, Metric, Split};
pub use error::Error;
pub use graph::Graph;
