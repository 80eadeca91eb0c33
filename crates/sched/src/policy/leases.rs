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
use crate::order::SortKey;
use crate::policy::placing::Placing;
use crate::policy::replan::{Order, Ranks};
use crate::policy::{Policy, saved_whole};
use crate::state::{Phase, Turn};

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

/// Leases that still hold first; then the greatest need; then running before waiting.
type Rank = (bool, SortKey, bool);

#[derive(Debug, Serialize, Deserialize)]
struct Leases {
    #[serde(skip)]
    rules: Rules,
    ranks: Ranks<Rank>,
    /// Whether this turn is an auction; otherwise free GPUs are given out and nobody is moved.
    auction: bool,
    /// Whether the next auction has been called.
    called: bool,
}

fn leases(rules: Rules) -> Box<dyn Policy> {
    Box::new(Leases { rules, ranks: Ranks::default(), auction: false, called: false })
}

pub fn themis(options: &ThemisOptions) -> Box<dyn Policy> {
    let &ThemisOptions { lease_s, sensitive, placing } = options;
    let need = Need::Unfairness { at_place: sensitive };
    leases(Rules { lease_s, auctions: 4.0, need, placing })
}

pub fn las(options: &LasOptions) -> Box<dyn Policy> {
    let &LasOptions { lease_s, placing } = options;
    leases(Rules { lease_s, auctions: 1.0, need: Need::Service, placing })
}

pub fn las_strict(options: &LasOptions) -> Box<dyn Policy> {
    las(&LasOptions { placing: Placing::Strict, ..options.clone() })
}

impl Rules {
    /// The greatest need has the least value.
    fn need(&self, turn: &Turn, id: JobId) -> f64 {
        let job = turn.state.job(id);
        match self.need {
            Need::Service => f64::from(job.gpus()) * job.held_at(turn.now()),
            Need::Unfairness { at_place } => {
                let (forecast, now) = (&turn.state.forecast, turn.now());
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
        }
    }
}

impl Leases {
    fn is_over(&self, turn: &Turn, id: JobId) -> bool {
        turn.state.worked_s(id).is_some_and(|s| s >= self.rules.lease_s)
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
            if !self.is_over(turn, id) {
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

impl Order for Leases {
    type Key = Rank;
    type Cohort = JobId;

    fn key(&self, turn: &Turn, id: JobId) -> Rank {
        if turn.state.job(id).is_waiting() {
            return (true, SortKey(self.rules.need(turn, id)), true);
        }
        self.stop_key(turn, id).unwrap_or((false, SortKey(0.0), false))
    }

    /// The greatest rank: an auction ranks all anyway.
    fn limit(&self, _turn: &Turn, _id: JobId) -> (Rank, Seconds) {
        ((true, SortKey(f64::INFINITY), true), f64::INFINITY)
    }

    /// Between auctions nobody loses its lease.
    fn may_preempt(&self) -> bool {
        self.auction
    }

    fn stop_key(&self, turn: &Turn, id: JobId) -> Option<Rank> {
        let may_lose = self.auction && self.is_over(turn, id);
        may_lose.then(|| (true, SortKey(self.rules.need(turn, id)), false))
    }

    fn ranks_all(&self) -> bool {
        true
    }

    fn cohort(&self, _turn: &Turn, id: JobId) -> JobId {
        id
    }

    fn placing(&self) -> Placing {
        self.rules.placing
    }
}

impl Policy for Leases {
    fn enqueue(&mut self, turn: &mut Turn, id: JobId) {
        let rank = self.key(turn, id);
        self.ranks.insert(turn, rank, id);
    }

    fn forget(&mut self, _turn: &mut Turn, id: JobId) {
        self.ranks.remove(id);
    }

    fn started(&mut self, id: JobId) {
        self.ranks.revise(id);
    }

    fn timer(&mut self, turn: &mut Turn, _round: Timer) {
        self.auction = true;
        self.called = false;
        let mut ranks = std::mem::take(&mut self.ranks);
        ranks.rank_waiting(|id| self.key(turn, id));
        self.ranks = ranks;
    }

    saved_whole!(rules);

    fn schedule(&mut self, turn: &mut Turn) {
        let mut ranks = std::mem::take(&mut self.ranks);
        ranks.replan(turn, self);
        self.ranks = ranks;
        if std::mem::take(&mut self.auction)
            && self.rules.need == (Need::Unfairness { at_place: true })
        {
            self.bid_for_places(turn);
        }
        if turn.state.waiting > 0 && !self.called {
            self.called = true;
            let between_s = self.rules.lease_s / self.rules.auctions;
            turn.set_timer(Timer::Round, turn.now() + between_s);
        }
    }
}
