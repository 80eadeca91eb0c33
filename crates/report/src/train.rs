//! Training runs compared: for the terminal ([`table`]) and as one page ([`page()`]).

mod about;
mod classes;
mod curve;
mod figure;
mod group;
mod page;
mod text;

pub use page::page;
pub use text::table;
