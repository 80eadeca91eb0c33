//! A running `hither serve` from outside: what Triton's clients would send, what nobody should send,
//! more than it can take, and `hither load` as its client.

mod bed;
mod hostile;
mod load;
mod overload;
mod page;
mod transcript;
