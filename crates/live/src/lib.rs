//! The scheduler on real clusters, with the same decision code as the simulator.
//!
//! `drive.rs` is the loop: look, tell, decide, write down, act. `engine.rs` is the wall to a real
//! cluster, `slurm/` the one engine there is. `news.rs` and `orders.rs` work out what the scheduler
//! and the engine have to be told; `journal.rs` keeps every turn, and `replay.rs` makes it again.

pub mod drive;
pub mod engine;
pub mod explain;
pub mod journal;
pub mod learn;
pub mod news;
pub mod orders;
pub mod places;
pub mod replay;
pub mod run;
pub mod say;
pub mod serve;
pub mod slurm;
pub mod status;
pub mod what_if;
pub mod wish;
