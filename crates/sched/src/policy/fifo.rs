//! First in, first out: the head of the line blocks all behind it that could use the same GPUs.

use hither_core::Seconds;

use crate::policy::Policy;
use crate::state::State;

pub const ABOUT: &str = "in order of submission; the head of the line blocks the rest";

pub struct Fifo;

impl Policy for Fifo {
    /// Whoever waits is overdue at once.
    fn overtaking_s_max(&self, _state: &State) -> Option<Seconds> {
        Some(0.0)
    }
}
