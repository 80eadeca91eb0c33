//! How often to look for messages: MPI itself would spin, and take a core from the processes that compute.

use std::thread;
use std::time::Duration;

const PAUSE_MAX: Duration = Duration::from_millis(1);
const PAUSE_MIN: Duration = Duration::from_micros(10);

/// Pauses between looks for messages: short at first, longer the longer nothing comes.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub fn new() -> Self {
        Self(PAUSE_MIN)
    }

    pub fn pause(&mut self) {
        thread::sleep(self.0);
        self.0 = (2 * self.0).min(PAUSE_MAX);
    }
}
