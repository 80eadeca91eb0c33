//! Shortest remaining time first, and shortest remaining service (time × GPUs) first. They know
//! how long jobs take, which real clusters do not: bounds to compare with.

use serde::{Deserialize, Serialize};

use crate::job::JobId;
use crate::order::Total;
use crate::policy::replan::Ranks;
use crate::policy::{Policy, saved_whole};
use crate::state::Turn;

pub const ABOUT_SRTF: &str =
    "shortest remaining time first, preemptive; clairvoyant: told all lengths";
pub const ABOUT_SRSF: &str =
    "shortest remaining GPU time first, preemptive; clairvoyant: told all lengths";

pub fn srtf() -> Box<dyn Policy> {
    Box::new(Shortest { by_service: false, ranks: Ranks::default() })
}

pub fn srsf() -> Box<dyn Policy> {
    Box::new(Shortest { by_service: true, ranks: Ranks::default() })
}

#[derive(Debug, Serialize, Deserialize)]
struct Shortest {
    by_service: bool,
    ranks: Ranks<Total>,
}

fn remaining(turn: &Turn, id: JobId, by_service: bool) -> Total {
    let job = turn.state.job(id);
    let gpus = if by_service { f64::from(job.gpus()) } else { 1.0 };
    Total(turn.state.forecast.left_s(job, turn.now()) * gpus)
}

impl Policy for Shortest {
    fn is_clairvoyant(&self) -> bool {
        true
    }

    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        self.ranks.insert(remaining(turn, id, self.by_service), id);
    }

    fn forget(&mut self, _turn: &mut Turn, id: JobId) {
        self.ranks.remove(id);
    }

    saved_whole!();

    fn schedule(&mut self, turn: &mut Turn) {
        let by_service = self.by_service;
        self.ranks.replan(
            turn,
            |turn, id| remaining(turn, id, by_service),
            |cluster, job, pool| cluster.best_offer(job.demand(), Some(pool)),
        );
    }
}
