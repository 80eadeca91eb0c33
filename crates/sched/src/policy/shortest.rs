//! Shortest remaining time first, and shortest remaining service (time × GPUs) first. They know
//! how long jobs take, which real clusters do not: bounds to compare with.

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::job::JobId;
use crate::order::SortKey;
use crate::policy::placing::Placing;
use crate::policy::replan::{Order, Ranks};
use crate::policy::{Policy, saved_whole};
use crate::state::Turn;

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

pub fn srtf(options: &Options) -> Box<dyn Policy> {
    Box::new(Shortest { order: LeastLeft::by(false, options), ranks: Ranks::default() })
}

pub fn srsf(options: &Options) -> Box<dyn Policy> {
    Box::new(Shortest { order: LeastLeft::by(true, options), ranks: Ranks::default() })
}

pub fn srtf_strict(_options: &Options) -> Box<dyn Policy> {
    srtf(&Options { placing: Placing::Strict })
}

#[derive(Debug, Serialize, Deserialize)]
struct Shortest {
    #[serde(skip)]
    order: LeastLeft,
    ranks: Ranks<SortKey>,
}

/// The least that is left first: time, or time × GPUs.
#[derive(Debug, Clone, Copy, Default)]
struct LeastLeft {
    by_service: bool,
    placing: Placing,
}

impl LeastLeft {
    fn by(by_service: bool, options: &Options) -> Self {
        Self { by_service, placing: options.placing }
    }
}

impl Order for LeastLeft {
    type Key = SortKey;
    type Cohort = JobId;

    fn key(&self, turn: &Turn, id: JobId) -> SortKey {
        let job = turn.state.job(id);
        let gpus = if self.by_service { f64::from(job.gpus()) } else { 1.0 };
        SortKey(turn.state.forecast.left_s(job, turn.now()) * gpus)
    }

    fn limit(&self, turn: &Turn, id: JobId) -> (SortKey, Seconds) {
        let forecast = &turn.state.forecast;
        (self.key(turn, id), forecast.falls_until_s(turn.state.job(id), turn.now()))
    }

    fn cohort(&self, _turn: &Turn, id: JobId) -> JobId {
        id
    }

    fn placing(&self) -> Placing {
        self.placing
    }
}

impl Policy for Shortest {
    fn is_clairvoyant(&self) -> bool {
        true
    }

    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        let key = self.order.key(turn, id);
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

    saved_whole!(order);

    fn schedule(&mut self, turn: &mut Turn) {
        self.ranks.replan(turn, &self.order);
    }
}
