//! The waiting jobs in line: by what they ask for, each at the claim that the policy gave it.
//!
//! All jobs of one ask fit or none does, so an offer looks at the heads and not at every job. The books join jobs
//! to the line and take them out of it; a policy only says where each stands.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::cluster::PoolId;
use crate::event::Timer;
use crate::job::{Demand, JobId};
use crate::order::{SortKey, any_float, pairs};
use crate::state::{JobState, Turn};

/// What decides where a job fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ask {
    pub gang: Demand,
    /// The GPU type; `None`: any.
    pub pool: Option<PoolId>,
}

impl Ask {
    pub fn of(job: &JobState) -> Self {
        Self { gang: job.demand(), pool: job.pool }
    }
}

/// Where a job stands: the least goes first, among equals the one that was submitted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Claim {
    pub class: u32,
    pub value: SortKey,
}

impl Claim {
    pub fn by(value: f64) -> Self {
        Self { class: 0, value: SortKey(value) }
    }
}

/// A claim, and whose it is.
pub type Spot = (Claim, JobId);

/// Jobs of an ask declined a place of this tier.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Declined {
    pub tier: hither_core::topology::Tier,
    /// Nobody has to be asked before, unless the offer gets better or another job joins.
    #[serde(with = "any_float")]
    pub until_s: Seconds,
    /// The job that gives in first, if nothing better comes, and when.
    pub first: JobId,
    #[serde(with = "any_float")]
    pub gives_in_s: Seconds,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Line {
    #[serde(with = "pairs")]
    by_ask: BTreeMap<Ask, Asking>,
    #[serde(with = "pairs")]
    spots: BTreeMap<JobId, (Ask, Claim)>,
    /// Jobs that have no claim yet.
    joining: BTreeSet<JobId>,
    /// (since when, job), of all that wait and are not overdue.
    by_wait: BTreeSet<(SortKey, JobId)>,
    overdue: BTreeSet<JobId>,
    #[serde(with = "pairs")]
    since: BTreeMap<JobId, SortKey>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Asking {
    spots: BTreeSet<Spot>,
    /// All that were asked have declined.
    declined: Option<Declined>,
}

impl Line {
    /// The job waits from now on. It has no claim as yet.
    pub(crate) fn join(&mut self, id: JobId, since_s: Seconds) {
        self.joining.insert(id);
        self.since.insert(id, SortKey(since_s));
        self.by_wait.insert((SortKey(since_s), id));
    }

    /// The job waits no more. Returns its ask if nobody else has it.
    pub(crate) fn leave(&mut self, id: JobId) -> Option<Ask> {
        self.joining.remove(&id);
        self.overdue.remove(&id);
        if let Some(since) = self.since.remove(&id) {
            self.by_wait.remove(&(since, id));
        }
        let (ask, claim) = self.spots.remove(&id)?;
        let asking = self.by_ask.get_mut(&ask).expect("its jobs name it");
        asking.spots.remove(&(claim, id));
        asking.declined = asking.declined.filter(|declined| declined.first != id);
        if !asking.spots.is_empty() {
            return None;
        }
        self.by_ask.remove(&ask);
        Some(ask)
    }

    pub(crate) fn take_joining(&mut self) -> BTreeSet<JobId> {
        std::mem::take(&mut self.joining)
    }

    pub(crate) fn insert(&mut self, id: JobId, ask: Ask, claim: Claim) {
        let asking = self.by_ask.entry(ask).or_default();
        asking.spots.insert((claim, id));
        asking.declined = None;
        self.spots.insert(id, (ask, claim));
    }

    /// The job gets its claim anew.
    pub(crate) fn rejoin(&mut self, id: JobId) {
        if let Some((ask, claim)) = self.spots.remove(&id) {
            let asking = self.by_ask.get_mut(&ask).expect("its jobs name it");
            asking.spots.remove(&(claim, id));
            if asking.spots.is_empty() {
                self.by_ask.remove(&ask);
            }
            self.joining.insert(id);
        }
    }

    /// All jobs get their claims anew.
    pub(crate) fn rejoin_all(&mut self) {
        self.joining.extend(std::mem::take(&mut self.spots).into_keys());
        self.by_ask.clear();
    }

    /// What jobs declined may be another thing by now.
    pub(crate) fn ask_again(&mut self) {
        self.by_ask.values_mut().for_each(|asking| asking.declined = None);
    }

    /// All that were asked have declined.
    pub(crate) fn declined(&mut self, ask: Ask, declined: Option<Declined>) {
        if let Some(asking) = self.by_ask.get_mut(&ask) {
            asking.declined = declined;
        }
    }

    /// Of the jobs that have waited for so long, the first with an id of at least `from`.
    pub(crate) fn overdue(
        &mut self,
        now: Seconds,
        overdue_s: Seconds,
        from: JobId,
    ) -> Option<JobId> {
        while let Some(&(SortKey(since_s), id)) = self.by_wait.first()
            && now - since_s >= overdue_s
        {
            self.by_wait.pop_first();
            self.overdue.insert(id);
        }
        self.overdue.range(from..).next().copied()
    }

    pub fn len(&self) -> usize {
        self.since.len()
    }

    pub fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// Waiting jobs in order of id.
    pub fn ids(&self) -> impl Iterator<Item = JobId> + '_ {
        self.since.keys().copied()
    }

    pub fn contains(&self, id: JobId) -> bool {
        self.since.contains_key(&id)
    }

    /// The claim of a waiting job.
    pub fn claim(&self, id: JobId) -> Option<Claim> {
        self.spots.get(&id).map(|spot| spot.1)
    }

    /// Asks, each with its first spot and what was last declined.
    pub fn heads(&self) -> impl Iterator<Item = (Ask, Spot, Option<Declined>)> + '_ {
        let head = |(&ask, asking): (&Ask, &Asking)| {
            (ask, *asking.spots.first().expect("an ask has jobs"), asking.declined)
        };
        self.by_ask.iter().map(head)
    }

    /// The next job of the ask by claim.
    pub fn after(&self, ask: Ask, last: Spot) -> Option<Spot> {
        let range = (Bound::Excluded(last), Bound::Unbounded);
        self.by_ask.get(&ask)?.spots.range(range).next().copied()
    }

    /// The best claim among all asks but these.
    pub fn first_but(&self, hopeless: &BTreeSet<Ask>) -> Option<Spot> {
        let hopeful = self.heads().filter(|(ask, ..)| !hopeless.contains(ask));
        hopeful.map(|(_, spot, _)| spot).min()
    }

    /// All jobs by claim; those without one come last.
    pub fn by_claim(&self) -> Vec<JobId> {
        let mut all: Vec<Spot> =
            self.by_ask.values().flat_map(|asking| &asking.spots).copied().collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).chain(self.joining.iter().copied()).collect()
    }
}

/// The alarm of the job that gives in first.
pub(crate) fn await_giving_in(turn: &mut Turn, declined: &Declined) {
    if declined.gives_in_s.is_finite() {
        turn.set_timer(Timer::Job(declined.first), declined.gives_in_s);
    }
}
