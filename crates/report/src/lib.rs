//! Rows to something a person reads: a comparison table for the terminal ([`table`]) and one
//! self-contained HTML page with plots ([`html`]).
//!
//! Nothing here reads or writes files, and nothing depends on clock, locale or hash order: the same
//! rows give the same bytes.

mod curve;
mod data;
mod format;
mod label;
mod metric;
mod pack;
mod page;
pub mod plan;
mod replay;
mod span;
pub mod sweep;
mod table;
pub mod train;

pub use page::{Group, html};
pub use table::table;
