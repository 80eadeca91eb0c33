//! Shortest remaining time first, and shortest remaining service (time × GPUs) first. They know
//! how long jobs take, which real clusters do not: bounds to compare with.

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Placement, PoolId};
use crate::job::JobId;
use crate::order::Total;
use crate::policy::replan::{Order, Ranks};
use crate::policy::{Policy, saved_whole};
use crate::state::{JobState, Turn};

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

/// The least that is left first: time, or time × GPUs.
struct LeastLeft {
    by_service: bool,
}

impl Order for LeastLeft {
    type Key = Total;
    type Cohort = JobId;

    fn key(&self, turn: &Turn, id: JobId) -> Total {
        let job = turn.state.job(id);
        let gpus = if self.by_service { f64::from(job.gpus()) } else { 1.0 };
        Total(turn.state.forecast.left_s(job, turn.now()) * gpus)
    }

    fn limit(&self, turn: &Turn, id: JobId) -> (Total, Seconds) {
        let forecast = &turn.state.forecast;
        (self.key(turn, id), forecast.falls_until_s(turn.state.job(id), turn.now()))
    }

    fn cohort(&self, _turn: &Turn, id: JobId) -> JobId {
        id
    }

    fn place(&self, cluster: &Cluster, job: &JobState, pool: PoolId) -> Option<Placement> {
        cluster.best_offer(job.demand(), Some(pool))
    }
}

impl Shortest {
    fn order(&self) -> LeastLeft {
        LeastLeft { by_service: self.by_service }
    }
}

impl Policy for Shortest {
    fn is_clairvoyant(&self) -> bool {
        true
    }

    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        let key = self.order().key(turn, id);
        self.ranks.insert(turn, key, id);
    }

    fn forget(&mut self, _turn: &mut Turn, id: JobId) {
        self.ranks.remove(id);
    }

    fn started(&mut self, id: JobId) {
        self.ranks.revise(id);
    }

    fn revised(&mut self, id: JobId) {
        self.ranks.revise(id);
    }

    saved_whole!();

    fn schedule(&mut self, turn: &mut Turn) {
        let order = self.order();
        self.ranks.replan(turn, &order);
    }
}
