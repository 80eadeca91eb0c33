//! All integration tests of this crate, in one binary: each would link the whole tree again.

mod cut;
mod failures;
mod generated;
mod inputs;
mod queue;
mod sockets;
