//! One pass over the line: what is free is offered to the waiting jobs, by claim.
//!
//! Whoever is offered a place that it does not want declines, and the next is asked: no head of the line blocks
//! the others, until it has waited so long that it is overdue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_core::topology::Tier;

use crate::cluster::{Placement, PoolId};
use crate::event::Why;
use crate::job::JobId;
use crate::policy::Policy;
use crate::state::{Ask, Declined, Spot, Turn, await_giving_in};

/// The best that is free for a job.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    pub tier: Tier,
    pub pool: PoolId,
}

/// What a job says to an offer.
#[derive(Debug)]
pub enum Answer {
    Take(Placement, Why),
    /// It declines. Of its ask nobody has to be asked again before `until_s`, unless the offer gets better; it gives
    /// in at `gives_in_s`.
    HoldOut {
        until_s: Seconds,
        gives_in_s: Seconds,
    },
    /// It declines; the next of its ask may not.
    Wait,
    /// It declines, and so would all others of its ask.
    AllWait,
}

/// Of each ask so many jobs may hold out in a pass.
const ASKED_MAX: u32 = 16;

pub fn pass(policy: &mut dyn Policy, turn: &mut Turn) {
    turn.begin_pass();
    turn.enlist(policy);
    let reserved = serve_overdue(policy, turn);
    let mut heads = heads(policy, turn, &reserved);
    let mut declined: BTreeMap<Ask, (u32, Declined)> = BTreeMap::new();
    let mut stopped: BTreeSet<JobId> = BTreeSet::new();
    while let Some(Reverse((spot, ask))) = heads.pop() {
        let id = spot.1;
        let next = turn.state.line.after(ask, spot).map(|spot| Reverse((spot, ask)));
        if stopped.contains(&id) {
            heads.extend(next); // it has only just made room
            continue;
        }
        let mut answer = offer_to(policy, turn, id, ask);
        let has_place = matches!(answer, Some((_, Answer::Take(..))));
        if !has_place && policy.may_stop() && make_room(policy, turn, id, &mut stopped) {
            answer = offer_to(policy, turn, id, ask);
        }
        if let Some((_, Answer::Take(placement, why))) = answer {
            turn.accept(id, placement, why);
            heads.extend(next);
            continue;
        }
        match answer {
            Some((Offer { tier, .. }, Answer::HoldOut { until_s, gives_in_s })) => {
                let answer = Declined { tier, until_s, first: id, gives_in_s };
                let (count, first) = declined.entry(ask).or_insert((0, answer));
                if gives_in_s < first.gives_in_s {
                    *first = answer;
                }
                *count += 1;
                heads.extend(next.filter(|_| *count < ASKED_MAX));
            }
            Some((_, Answer::Wait)) => heads.extend(next),
            _ => {
                turn.hold_out(ask, false);
                declined.remove(&ask);
            }
        }
    }
    for (ask, (_, declined)) in declined {
        turn.hold_out(ask, true);
        turn.declined(ask, Some(declined));
        await_giving_in(turn, &declined);
        turn.report_wait(ask);
    }
}

/// Stops those whom a waiting job displaces. Returns whether there are any.
fn make_room(
    policy: &mut dyn Policy,
    turn: &mut Turn,
    id: JobId,
    stopped: &mut BTreeSet<JobId>,
) -> bool {
    let victims = policy.victims(turn, id);
    for &victim in &victims {
        turn.preempt(victim, Reason::Priority, Why::Outranked);
    }
    turn.enlist(policy);
    stopped.extend(&victims);
    !victims.is_empty()
}

/// Offers the job the best that is free for it, if anything is.
fn offer_to(
    policy: &mut dyn Policy,
    turn: &mut Turn,
    id: JobId,
    ask: Ask,
) -> Option<(Offer, Answer)> {
    let (tier, pool) = turn.state.cluster.best_pool(ask.gang, ask.pool)?;
    let offer = Offer { tier, pool };
    Some((offer, policy.answer(turn, id, offer)))
}

/// The first job of each ask that has to be asked. An ask that is offered nothing does not hold out.
fn heads(
    policy: &dyn Policy,
    turn: &mut Turn,
    reserved: &Reserved,
) -> BinaryHeap<Reverse<(Spot, Ask)>> {
    let (now, may_stop) = (turn.now(), policy.may_stop());
    let (mut heads, mut idle, mut again) = (BinaryHeap::new(), Vec::new(), Vec::new());
    for (ask, spot, declined) in turn.state.line.heads() {
        let offered = turn.state.cluster.best_pool(ask.gang, ask.pool);
        let offered = offered.filter(|_| reserved.allows(ask.pool));
        let Some((tier, _)) = offered else {
            idle.push(ask);
            if may_stop && reserved.allows(ask.pool) {
                heads.push(Reverse((spot, ask)));
            }
            continue;
        };
        let holds = |declined: Declined| {
            tier >= declined.tier && now < declined.until_s && now < declined.gives_in_s - 1e-6
        };
        if !declined.is_some_and(holds) {
            heads.push(Reverse((spot, ask)));
            again.extend(declined.map(|_| ask));
        }
    }
    for ask in idle {
        turn.hold_out(ask, false);
        turn.declined(ask, None);
    }
    again.into_iter().for_each(|ask| turn.declined(ask, None));
    heads
}

/// Starts overdue jobs, oldest first. GPUs of the types that those left could use are reserved for them: nobody
/// else starts there.
fn serve_overdue(policy: &mut dyn Policy, turn: &mut Turn) -> Reserved {
    let mut reserved = Reserved::default();
    let Some(overdue_s) = policy.overtaking_s_max(&turn.state) else { return reserved };
    let pools = turn.state.cluster.pool_count();
    let mut from = 0;
    while !reserved.is_everything(pools)
        && let Some(id) = turn.overdue(overdue_s, from)
    {
        from = id + 1;
        let job = turn.state.job(id);
        match turn.state.cluster.best_offer(job.demand(), job.pool) {
            Some(placement) if reserved.allows(job.pool) => {
                let (tier, waited_s) = (placement.tier, turn.now() - job.since_s);
                let why = match overdue_s > 0.0 {
                    true => Why::Overdue { tier, waited_s },
                    false => Why::Turn { tier },
                };
                turn.accept(id, placement, why);
            }
            _ => reserved.add(job.pool),
        }
    }
    reserved
}

/// GPU types whose free GPUs are reserved for overdue jobs.
#[derive(Debug, Default)]
struct Reserved {
    all: bool,
    pools: BTreeSet<PoolId>,
}

impl Reserved {
    fn add(&mut self, wanted: Option<PoolId>) {
        match wanted {
            Some(pool) => drop(self.pools.insert(pool)),
            None => self.all = true,
        }
    }

    fn is_everything(&self, pools: usize) -> bool {
        self.all || self.pools.len() == pools
    }

    /// Whether a job that wants this type takes nothing that is reserved.
    fn allows(&self, wanted: Option<PoolId>) -> bool {
        match wanted {
            Some(pool) => !self.all && !self.pools.contains(&pool),
            None => !self.all && self.pools.is_empty(),
        }
    }
}
