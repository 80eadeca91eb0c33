//! Themis (NSDI 2020), reduced to rigid gangs: GPUs are leased, and when leases end they go to the
//! jobs that are furthest behind, by finish-time fairness ρ = time in the shared cluster over time
//! alone. The paper's auction among applications that could use any number of GPUs has no part
//! here: a gang bids for all its GPUs or none. This is our reconstruction.

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Placement, PoolId};
use crate::event::Timer;
use crate::job::JobId;
use crate::order::Total;
use crate::policy::replan::{Order, Ranks};
use crate::policy::{Policy, saved_whole};
use crate::state::{JobState, Turn};

pub const ABOUT: &str = "Themis: finish-time fairness with leases, for rigid gangs";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// How long a job keeps its GPUs for certain.
    pub lease_s: Seconds,
}

impl Default for Options {
    fn default() -> Self {
        Self { lease_s: 1200.0 }
    }
}

/// Leases that still hold first, then the most unfairly treated.
type Rank = (bool, Total);

#[derive(Debug, Serialize, Deserialize)]
struct Themis {
    #[serde(skip)]
    options: Options,
    ranks: Ranks<Rank>,
    /// Whether this turn is an auction; otherwise free GPUs are given out and nobody is moved.
    auction: bool,
    /// Whether the next auction has been called.
    called: bool,
}

pub fn themis(options: &Options) -> Box<dyn Policy> {
    let options = options.clone();
    Box::new(Themis { options, ranks: Ranks::default(), auction: false, called: false })
}

/// ρ: what the job will have taken in all if it runs undisturbed from now on, over what it takes
/// alone.
fn unfairness(turn: &Turn, id: JobId) -> f64 {
    let job = turn.state.job(id);
    let elapsed = turn.now() - job.job.submit_s;
    let forecast = &turn.state.forecast;
    let whole_s = forecast.whole_s(job, turn.now());
    (elapsed + forecast.left_s(job, turn.now())) / whole_s.max(1.0)
}

impl Order for Themis {
    type Key = Rank;
    type Cohort = JobId;

    fn key(&self, turn: &Turn, id: JobId) -> Rank {
        let running = turn.state.job(id).run().is_some();
        let lease_over = turn.state.worked_s(id).is_some_and(|s| s >= self.options.lease_s);
        let leased = running && !(self.auction && lease_over);
        (!leased, Total(-unfairness(turn, id)))
    }

    /// Between auctions nobody loses its lease.
    fn limit(&self, _turn: &Turn, _id: JobId) -> (Rank, Seconds) {
        ((false, Total(f64::INFINITY)), f64::INFINITY)
    }

    fn ranks_all(&self) -> bool {
        self.auction
    }

    fn cohort(&self, _turn: &Turn, id: JobId) -> JobId {
        id
    }

    fn place(&self, cluster: &Cluster, job: &JobState, pool: PoolId) -> Option<Placement> {
        cluster.best_offer(job.demand(), Some(pool))
    }
}

impl Policy for Themis {
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

    saved_whole!(options);

    fn schedule(&mut self, turn: &mut Turn) {
        let mut ranks = std::mem::take(&mut self.ranks);
        ranks.replan(turn, self);
        self.ranks = ranks;
        self.auction = false;
        if turn.state.waiting > 0 && !self.called {
            self.called = true;
            turn.set_timer(Timer::Round, turn.now() + self.options.lease_s / 4.0);
        }
    }
}
