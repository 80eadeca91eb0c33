//! All tests of the crate, in one binary.

mod driver;
mod vopr;
