//! Turns records into tables for the terminal and into self-contained HTML pages: simulations
//! ([`table()`], [`html`]), sweeps ([`sweep`]), training runs ([`train`]), plans ([`plan`])
//! and servers under load ([`load`]).
//!
//! Nothing here reads or writes files, and nothing depends on clock, locale or hash order: the same
//! rows give the same bytes.

mod breakdown;
mod curve;
mod data;
mod format;
mod history;
mod label;
pub mod load;
mod metric;
mod pack;
mod page;
pub mod plan;
mod replay;
mod span;
pub mod sweep;
mod table;
pub mod train;

pub use format::{cluster, plural};
pub use page::{Group, html};
pub use table::{longest_waits, table};
