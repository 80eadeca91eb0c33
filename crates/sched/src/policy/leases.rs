//! Policies that lease GPUs: a job keeps its GPUs for as long as its lease, and at the auctions
//! between, GPUs whose lease is over go to the jobs with the greatest need.
//!
//! - Themis (NSDI 2020), reduced to rigid gangs: need is finish-time unfairness ρ, the time in the
//!   shared cluster over the time alone. The paper's auction among applications that could use any
//!   number of GPUs has no part here: a gang bids for all its GPUs or none. Bids carry what places are
//!   worth: ρ counts the pace at the place that a job has, and a job whose lease is over also bids for
//!   a better place. This is our reconstruction.
//! - Least attained service, without Tiresias' queues: need is the least GPU time so far.

use hither_core::Seconds;
use hither_core::record::Reason;
use serde::{Deserialize, Serialize};

use crate::cluster::Placement;
use crate::event::{Timer, Why};
use crate::job::JobId;
use crate::pass::{Answer, Offer};
use crate::policy::replan::outranked;
use crate::policy::{Placing, Policy};
use crate::state::{Claim, Phase, State, Turn};

pub const ABOUT_THEMIS: &str = "Themis: finish-time fairness with leases, for rigid gangs";
pub const ABOUT_LAS: &str = "least GPU time so far first, in rounds";
pub const ABOUT_LAS_STRICT: &str = "las that waits for its best tier for ever";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ThemisOptions {
    /// How long a job keeps its GPUs for certain.
    pub lease_s: Seconds,
    /// Whether bids carry what places are worth.
    pub sensitive: bool,
    pub placing: Placing,
}

impl Default for ThemisOptions {
    fn default() -> Self {
        Self { lease_s: 1200.0, sensitive: true, placing: Placing::Close }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LasOptions {
    /// How long a job keeps its GPUs for certain. Blox plans every five minutes.
    pub lease_s: Seconds,
    pub placing: Placing,
}

impl Default for LasOptions {
    fn default() -> Self {
        Self { lease_s: 300.0, placing: Placing::Close }
    }
}

/// What makes a job's need great.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Need {
    /// Finish-time unfairness; `at_place`: at the pace of the place that it has.
    Unfairness { at_place: bool },
    /// Little GPU time so far.
    #[default]
    Service,
}

#[derive(Debug, Clone, Default)]
struct Rules {
    lease_s: Seconds,
    /// Auctions between the start of a lease and its end.
    auctions: f64,
    need: Need,
    placing: Placing,
}

pub struct Leases {
    rules: Rules,
    /// Whether this is an auction; otherwise free GPUs are given out and nobody is moved.
    auction: bool,
    planned: u64,
}

pub fn themis(options: &ThemisOptions) -> Leases {
    let &ThemisOptions { lease_s, sensitive, placing } = options;
    let need = Need::Unfairness { at_place: sensitive };
    Leases::new(Rules { lease_s, auctions: 4.0, need, placing })
}

pub fn las(options: &LasOptions) -> Leases {
    let &LasOptions { lease_s, placing } = options;
    Leases::new(Rules { lease_s, auctions: 1.0, need: Need::Service, placing })
}

impl Rules {
    /// The greatest need has the least value.
    fn need(&self, state: &State, id: JobId) -> Claim {
        let (job, now) = (state.job(id), state.now);
        Claim::by(match self.need {
            Need::Service => f64::from(job.gpus()) * job.held_at(now),
            Need::Unfairness { at_place } => {
                let forecast = &state.forecast;
                let left_s = match &job.phase {
                    Phase::Running(run) if at_place && run.pace.rate > 0.0 => {
                        forecast.left(job, now).map(|left| left / run.pace.rate)
                    }
                    _ => None,
                };
                let left_s = left_s.unwrap_or_else(|| forecast.left_s(job, now));
                let shared_s = now - job.job.submit_s + left_s;
                -shared_s / forecast.whole_s(job, now).max(1.0)
            }
        })
    }

    fn is_over(&self, state: &State, id: JobId) -> bool {
        state.worked_s(id).is_some_and(|s| s >= self.lease_s)
    }
}

impl Leases {
    fn new(rules: Rules) -> Self {
        Self { rules, auction: false, planned: 0 }
    }

    /// Jobs whose lease is over move to better places that are free, if that saves more than the
    /// restart.
    fn bid_for_places(&self, turn: &mut Turn) {
        let running: Vec<JobId> = turn.state.running.iter().copied().collect();
        for id in running {
            if turn.state.cluster.free_total() == 0 {
                return;
            }
            let job = turn.state.job(id);
            let (best, restart_s) = (job.best, turn.state.move_s(id));
            let Some(tier) = job.run().map(|run| run.placement.tier).filter(|t| *t > best) else {
                continue;
            };
            if !self.rules.is_over(&turn.state, id) {
                continue;
            }
            let Some(offer) = turn.offer_instead(id).filter(|offer| offer.tier < tier) else {
                continue;
            };
            let saved_s = saving_s(turn, id, &offer);
            if let Some(saved_s) = saved_s.filter(|&saved_s| saved_s > restart_s) {
                let why = Why::Saves { tier: offer.tier, saved_s };
                turn.preempt(id, Reason::Upgrade, why);
                turn.start(id, offer, why);
            }
        }
    }
}

/// Time that a running job saves over what is left of it if it goes on at the offered place, on idle
/// links; `None`: nobody knows.
fn saving_s(turn: &Turn, id: JobId, offer: &Placement) -> Option<Seconds> {
    let state = &turn.state;
    let job = state.job(id);
    let rate = job.run().map(|run| run.pace.rate).filter(|&rate| rate > 0.0)?;
    let shape = state.network.shape(&state.cluster, offer);
    let there_s = state.network.iteration_s(&job.job.profile, &shape);
    let left = state.forecast.left(job, turn.now()).filter(|_| job.job.profile.is_known())?;
    Some(left * (1.0 / rate - there_s))
}

impl Policy for Leases {
    fn claim(&self, state: &State, id: JobId) -> Claim {
        self.rules.need(state, id)
    }

    fn answer(&mut self, turn: &mut Turn, id: JobId, _offer: Offer) -> Answer {
        self.rules.placing.answer(turn, id)
    }

    /// At an auction jobs lose their GPUs whose lease is over.
    fn victims(&mut self, turn: &mut Turn, _id: JobId) -> Vec<JobId> {
        let rules = &self.rules;
        let rank = |state: &State, id| rules.is_over(state, id).then(|| rules.need(state, id));
        outranked(turn, &mut self.planned, rules.placing, rank)
    }

    fn round(&mut self, turn: &mut Turn) -> bool {
        if turn.take_due(Timer::Round) {
            self.auction = true;
            let waiting: Vec<JobId> = turn.state.line.ids().collect();
            turn.rank_anew(self, &waiting);
            return true;
        }
        if std::mem::take(&mut self.auction)
            && self.rules.need == (Need::Unfairness { at_place: true })
        {
            self.bid_for_places(turn);
        }
        if !turn.state.line.is_empty() {
            turn.await_round(self.rules.lease_s / self.rules.auctions);
        }
        false
    }

    fn may_stop(&self) -> bool {
        self.auction
    }
}
