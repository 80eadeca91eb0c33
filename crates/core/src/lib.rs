//! The few ideas that all of Hither's engines share: places and their distances ([`topology`]),
//! named random streams ([`seed`]), order statistics ([`summary`]) and the rows that every run
//! writes ([`record`]).

pub mod record;
pub mod seed;
pub mod summary;
pub mod topology;

/// Seconds since the start of a run. Every time in Hither is one of these.
pub type Seconds = f64;
