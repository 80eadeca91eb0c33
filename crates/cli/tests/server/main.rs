//! The inference server, started by the tests, with Triton's own clients and with plain sockets.

mod bed;
mod clients;
mod operation;
mod reload;
