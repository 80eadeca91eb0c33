//! In order of submission, but every job that fits may start; on the first machines that have room.

use serde::{Deserialize, Serialize};

use crate::event::Why;
use crate::job::JobId;
use crate::policy::queue::{Queue, class_of};
use crate::policy::{Policy, saved_whole};
use crate::state::Turn;

pub const ABOUT: &str = "in order of submission, skipping jobs that do not fit; first machines";

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FirstFit {
    queue: Queue<()>,
}

impl Policy for FirstFit {
    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        self.queue.insert(class_of(turn.state.job(id)), (), id);
    }

    fn forget(&mut self, turn: &mut Turn, id: JobId) {
        self.queue.remove(class_of(turn.state.job(id)), (), id);
    }

    saved_whole!();

    fn schedule(&mut self, turn: &mut Turn) {
        while let Some((class, key, id)) = self.queue.first_fitting(&turn.state.cluster) {
            let cluster = &turn.state.cluster;
            let placed =
                cluster.pools_for(class.1).find_map(|pool| cluster.first_fit(class.0, pool));
            self.queue.remove(class, key, id);
            let placed = placed.expect("the class fits");
            let why = Why::Turn { tier: placed.tier };
            turn.start(id, placed, why);
        }
    }
}
