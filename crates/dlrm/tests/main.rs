//! All integration tests of this crate, in one binary: each would link the whole tree again.

mod bags;
mod common;
mod import;
mod layouts;
mod mlp;
mod model;
mod plan;
mod requests;
mod run;
