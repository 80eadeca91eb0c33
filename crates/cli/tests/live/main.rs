//! The scheduler on a real Slurm, started by the tests.

mod bed;
mod kills;
mod story;
mod trouble;
