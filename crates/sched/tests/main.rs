//! All integration tests of this crate, in one binary: each would link the whole tree again.

mod beliefs;
mod checkers;
mod cluster;
mod common;
mod contention;
mod decide;
mod muri;
mod network;
mod pinned;
mod policies;
mod profile_library;
mod sim;
mod topo_files;
mod trace_bytes;
mod trace_examples;
mod trace_formats;
mod trace_generate;
mod trace_real;
mod vopr;
