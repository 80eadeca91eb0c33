//! First in, first out: the head of the line blocks all behind it.

use std::collections::BTreeSet;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::event::Why;
use crate::job::JobId;
use crate::policy::{Policy, saved_whole};
use crate::state::Turn;

pub const ABOUT: &str = "in order of submission; the head of the line blocks the rest";

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Fifo {
    /// Ids follow the order of submission.
    line: BTreeSet<JobId>,
}

impl Policy for Fifo {
    fn enqueue(&mut self, _turn: &mut Turn, id: JobId) {
        self.line.insert(id);
    }

    fn forget(&mut self, _turn: &mut Turn, id: JobId) {
        self.line.remove(&id);
    }

    fn schedule(&mut self, turn: &mut Turn) {
        while let Some(&head) = self.line.first() {
            let job = turn.state.job(head);
            let Some(placement) = turn.state.cluster.best_offer(job.demand(), job.pool) else {
                return;
            };
            self.line.pop_first();
            let why = Why::Turn { tier: placement.tier };
            turn.start(head, placement, why);
        }
    }

    fn line(&self) -> Option<Vec<JobId>> {
        Some(self.line.iter().copied().collect())
    }

    saved_whole!();

    fn overtaking_s_max(&self) -> Option<Seconds> {
        Some(0.0)
    }
}
