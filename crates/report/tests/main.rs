//! All integration tests of this crate, in one binary: each would link the whole tree again.

mod browser;
mod common;
mod load;
mod opened;
mod page;
mod plan;
mod sweep;
mod train;
mod train_record;
