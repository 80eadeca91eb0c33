//! The scheduler and its simulator. `decide.rs` is the entry for drivers, `policy/dally` the
//! algorithm, `sim.rs` the simulator that plays traces against it. Nothing here reads a file or a
//! clock.

pub mod check;
pub mod cluster;
pub mod compat;
pub mod contention;
pub mod decide;
pub mod event;
#[cfg(test)]
mod fixture;
pub mod forecast;
mod history;
mod holes;
pub mod job;
pub mod jobs;
pub mod network;
pub mod order;
pub mod outcome;
pub mod pass;
mod place;
pub mod policy;
pub mod profile;
pub mod read;
mod room;
pub mod sim;
pub mod state;
pub mod topo;
pub mod trace;
pub mod vopr;
mod waits;
pub mod world;
