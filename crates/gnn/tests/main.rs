//! All integration tests of this crate, in one binary: each would link the whole tree again.

mod batches;
mod common;
mod edge_lists;
mod generate;
mod interactions;
mod labels;
mod layers;
mod links;
mod load;
mod load_real;
mod partition;
mod partition_real;
mod parts;
mod probe;
mod pytorch;
mod reference;
mod run;
mod train;
mod transport;
