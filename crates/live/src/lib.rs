//! The scheduler on real clusters, with the same decision code as the simulator.
//!
//! `drive.rs` is the loop: look, tell, decide, write down, act. `engine.rs` is the wall to a real
//! cluster, `slurm/` the one engine there is. `reconcile.rs` is the table of what becomes of a job, and
//! `jobs.rs` works it; `machines.rs` does the same for machines. `journal.rs` keeps every turn, and
//! `replay.rs` reads them again.

pub mod attempts;
pub mod drive;
pub mod engine;
pub mod explain;
pub mod jobs;
pub mod journal;
pub mod learn;
pub mod limits;
pub mod machines;
pub mod places;
pub mod reconcile;
pub mod replay;
pub mod run;
pub mod say;
pub mod serve;
pub mod slurm;
pub mod status;
pub mod vopr;
pub mod what_if;
pub mod wish;
