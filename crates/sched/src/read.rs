//! What readers of traces, topologies and profiles share: their error, and tables of text.

mod error;
pub(crate) mod table;

pub use error::{Error, Problem};
