//! Shortest remaining time first, and shortest remaining service (time × GPUs) first. They know
//! how long jobs take, which real clusters do not: bounds to compare with.

use serde::{Deserialize, Serialize};

use crate::job::JobId;
use crate::pass::{Answer, Offer};
use crate::policy::replan::outranked;
use crate::policy::{Placing, Policy};
use crate::state::{Claim, State, Turn};

pub const ABOUT_SRTF: &str =
    "shortest remaining time first, preemptive; clairvoyant: told all lengths";
pub const ABOUT_SRSF: &str =
    "shortest remaining GPU time first, preemptive; clairvoyant: told all lengths";
pub const ABOUT_SRTF_STRICT: &str = "srtf that waits for its best tier for ever; clairvoyant too";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    pub placing: Placing,
}

/// The least that is left first: time, or time × GPUs.
pub struct Shortest {
    by_service: bool,
    placing: Placing,
    planned: u64,
}

impl Shortest {
    pub fn new(by_service: bool, options: &Options) -> Self {
        Self { by_service, placing: options.placing, planned: 0 }
    }
}

fn least_left(by_service: bool, state: &State, id: JobId) -> Claim {
    let job = state.job(id);
    let gpus = if by_service { f64::from(job.gpus()) } else { 1.0 };
    Claim::by(state.forecast.left_s(job, state.now) * gpus)
}

impl Policy for Shortest {
    fn claim(&self, state: &State, id: JobId) -> Claim {
        least_left(self.by_service, state, id)
    }

    fn answer(&mut self, turn: &mut Turn, id: JobId, _offer: Offer) -> Answer {
        self.placing.answer(turn, id)
    }

    fn victims(&mut self, turn: &mut Turn, _id: JobId) -> Vec<JobId> {
        let rank = |state: &State, id| Some(least_left(self.by_service, state, id));
        outranked(turn, &mut self.planned, self.placing, rank)
    }

    fn may_stop(&self) -> bool {
        true
    }

    fn is_clairvoyant(&self) -> bool {
        true
    }
}
