//! The scheduler on a real Slurm, started by the tests.

mod bed;
mod kills;
mod page;
mod shapes;
mod site;
mod story;
mod trouble;
