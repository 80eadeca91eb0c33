//! The queue of one model, and how batches are cut from it. No I/O, no clock, no threads: callers
//! say what time it is.
//!
//! Work is counted in *cost* ([`crate::cost`]): one is the work of a usual sample.
//!
//! Requests wait in an order that is fair between clients (self-clocked fair queueing, Golestani 1994). A
//! request's *turn* is its cost behind the turn of its client's request before it, or behind virtual time if
//! that is later. Batches are taken in the order of turns, so a client with a thousand requests and one with a
//! single request are served alike. Virtual time is the turn of the request that was taken last. A client keeps
//! its place until virtual time has passed it: a caller with one request at a time does not go before those
//! that wait. When the queue is full, the request at the
//! back is displaced, which is the last one of the client that waits for most; a client alone is refused.
//!
//! A request whose deadline cannot be kept at the present pace is refused on arrival. If the pace falls
//! meanwhile, it is refused when its batch is cut. Otherwise an overloaded server would spend its time on
//! answers that come too late.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::infer::ClientId;
use crate::pace::{Pace, UnderWay};

/// When a batch is cut, and how much may wait. Sizes are costs: samples of the usual size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Cost per batch; a request that costs more is a batch of its own.
    pub batch_cost_max: usize,
    /// Sizes that are worth cutting a batch at, in rising order; empty for any size.
    pub batch_cost_preferred: Vec<usize>,
    /// How long an incomplete batch waits for more requests. Zero still batches: requests gather
    /// while the batch before them runs.
    pub window: Duration,
    /// Requests that may wait.
    pub queue_requests_max: usize,
    /// Cost of the requests that may wait together; one that costs more waits only alone.
    pub queue_cost_max: usize,
}

/// A request that waits.
#[derive(Debug)]
pub struct Waiting<T> {
    pub client: ClientId,
    /// At least 1.
    pub cost: usize,
    pub arrived: Instant,
    /// After this the answer is of no use.
    pub deadline: Option<Instant>,
    pub item: T,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    turn: u64,
    number: u64,
}

pub struct Queue<T> {
    policy: Policy,
    waiting: BTreeMap<Ticket, Waiting<T>>,
    /// Clients that wait, and those whose next turn has not come yet.
    clients: HashMap<ClientId, Lane>,
    /// Of all requests that wait.
    cost: usize,
    /// The first arrival of those that wait, or earlier if that one was withdrawn.
    oldest: Option<Instant>,
    virtual_time: u64,
    /// Requests that ever came, which orders those of the same turn.
    count: u64,
    pace: Pace,
}

/// What a client has in the queue.
#[derive(Debug, Default)]
struct Lane {
    requests: usize,
    /// The virtual time at which its next request would begin.
    next_begin: u64,
    /// The turn of its latest request, which none after it may precede.
    last_turn: u64,
}

/// Lanes of clients that do not wait are swept when there are this many more than requests.
const IDLE_LANES_MAX: usize = 256;

/// What became of a request that was offered.
#[derive(Debug)]
pub enum Offered<T> {
    Queued(Ticket),
    /// Queued in the place of another client's request, which must be told.
    Displaced(Ticket, Box<Waiting<T>>),
    Refused(Box<Waiting<T>>),
}

impl<T> Queue<T> {
    /// For batches that are computed on so many threads, one batch each.
    pub fn new(policy: Policy, threads: usize) -> Self {
        Self {
            policy,
            waiting: BTreeMap::new(),
            clients: HashMap::new(),
            cost: 0,
            oldest: None,
            virtual_time: 0,
            count: 0,
            pace: Pace::new(threads),
        }
    }

    /// Learns from a batch that has been computed.
    pub fn learn(&mut self, batch: &UnderWay, now: Instant) {
        self.pace.learn(batch, now);
    }

    /// A batch that was due got its thread after so long.
    pub fn waited(&mut self, wait: Duration) {
        self.pace.waited(wait);
    }

    /// Whether a request will be answered in time, given what runs and what goes before it.
    fn keeps_deadline(&self, waiting: &Waiting<T>, ticket: Ticket) -> bool {
        let Some(deadline) = waiting.deadline else { return true };
        let now = waiting.arrived;
        let is_in_time = |before| self.pace.answered_by(before, waiting.cost, now) <= deadline;
        if is_in_time(self.cost) {
            return true;
        }
        // Counts what goes before it, and no further than until it is known to be too late.
        let mut before = 0;
        for (_, other) in self.waiting.range(..ticket) {
            before += other.cost;
            if !is_in_time(before) {
                return false;
            }
        }
        // A request that can begin at once is tried in any case: a pace that was a mistake must not last.
        is_in_time(before) || before == 0 && self.pace.next_begin(now) == now
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Of all requests that wait.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Adds a request, or refuses it at once.
    pub fn offer(&mut self, waiting: Waiting<T>) -> Offered<T> {
        let lane = self.clients.get(&waiting.client);
        let (next_begin, last_turn) = lane.map_or((0, 0), |lane| (lane.next_begin, lane.last_turn));
        let begin = next_begin.max(self.virtual_time);
        let turn = (begin + waiting.cost as u64).max(last_turn);
        let ticket = Ticket { turn, number: self.count };
        if !self.keeps_deadline(&waiting, ticket) {
            return Offered::Refused(Box::new(waiting));
        }
        let mut displaced = None;
        if !self.has_room(waiting.cost) {
            // One request makes room for one: if that is not enough, the newcomer goes.
            let last = self.waiting.last_key_value();
            let last = last.filter(|(last, other)| **last > ticket && other.cost >= waiting.cost);
            let Some((&last, _)) = last else { return Offered::Refused(Box::new(waiting)) };
            displaced = self.remove(last).map(Box::new);
        }
        self.count += 1;
        self.cost += waiting.cost;
        self.oldest = self.oldest.or(Some(waiting.arrived));
        let lane = self.clients.entry(waiting.client).or_default();
        lane.requests += 1;
        (lane.next_begin, lane.last_turn) = (turn, turn);
        self.waiting.insert(ticket, waiting);
        match displaced {
            Some(displaced) => Offered::Displaced(ticket, displaced),
            None => Offered::Queued(ticket),
        }
    }

    fn has_room(&self, cost: usize) -> bool {
        let Policy { queue_requests_max, queue_cost_max, .. } = self.policy;
        let fits = self.cost + cost <= queue_cost_max || self.is_empty();
        fits && self.waiting.len() < queue_requests_max
    }

    /// Takes a request out that nobody waits for any more. Its client gets the turn back.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let waiting = self.pop(ticket)?;
        if let Some(lane) = self.clients.get_mut(&waiting.client) {
            lane.next_begin -= waiting.cost as u64;
        }
        Some(waiting)
    }

    fn pop(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&ticket)?;
        self.cost -= waiting.cost;
        if let Some(lane) = self.clients.get_mut(&waiting.client) {
            lane.requests -= 1;
        }
        Some(waiting)
    }

    /// When the next batch should be cut; `None` while nothing waits.
    pub fn ready_at(&self) -> Option<Instant> {
        let oldest = self.oldest.filter(|_| !self.is_empty())?;
        let enough = self.policy.batch_cost_preferred.first();
        let enough = *enough.unwrap_or(&self.policy.batch_cost_max);
        Some(if self.cost >= enough { oldest } else { oldest + self.policy.window })
    }

    /// Cuts a batch from the front into `batch`; requests that came too late go into `expired`. Returns `None` if
    /// there is nothing to compute.
    pub fn take(
        &mut self,
        now: Instant,
        batch: &mut Vec<Waiting<T>>,
        expired: &mut Vec<Waiting<T>>,
    ) -> Option<UnderWay> {
        self.take_front(now, batch, expired);
        self.forget_clients();
        let cost: usize = batch.iter().map(|waiting| waiting.cost).sum();
        let mut arrivals = self.waiting.values().map(|waiting| waiting.arrived);
        // Without a window any of them will do.
        let is_any = self.policy.window.is_zero();
        self.oldest = if is_any { arrivals.next() } else { arrivals.min() };
        (cost > 0).then(|| self.pace.begin(cost, now))
    }

    /// Lanes of clients that wait for nothing and whose place has passed are forgotten.
    fn forget_clients(&mut self) {
        if self.waiting.is_empty() {
            // Nobody was kept waiting, so nobody has a share to make up for.
            self.clients.clear();
        } else if self.clients.len() > self.waiting.len() + IDLE_LANES_MAX {
            let now = self.virtual_time;
            self.clients.retain(|_, lane| lane.requests > 0 || lane.next_begin > now);
        }
    }

    fn take_front(
        &mut self,
        now: Instant,
        batch: &mut Vec<Waiting<T>>,
        expired: &mut Vec<Waiting<T>>,
    ) {
        let limit = self.batch_limit();
        let mut cost = 0;
        // The first deadline of the batch.
        let mut deadline: Option<Instant> = None;
        while let Some((&ticket, first)) = self.waiting.first_key_value() {
            let is_last = self.waiting.len() == 1;
            let needed = if is_last { Duration::ZERO } else { self.pace.expected(first.cost) };
            let is_late = first.deadline.is_some_and(|own| own <= now + needed);
            let together = now + self.pace.at_most(cost + first.cost);
            let is_full = cost + first.cost > limit
                || deadline.into_iter().chain(first.deadline).any(|end| end < together);
            if !is_late && cost > 0 && is_full {
                return;
            }
            let taken = if is_late { self.remove(ticket) } else { self.pop(ticket) };
            let Some(waiting) = taken else { return };
            if is_late {
                expired.push(waiting);
                continue;
            }
            cost += waiting.cost;
            self.virtual_time = self.virtual_time.max(ticket.turn);
            deadline = deadline.into_iter().chain(waiting.deadline).min();
            batch.push(waiting);
            if cost >= limit {
                return;
            }
        }
    }

    /// The largest preferred size that what waits can fill; otherwise the largest size of all.
    fn batch_limit(&self) -> usize {
        let preferred = self.policy.batch_cost_preferred.iter().rev();
        let fits = preferred.copied().find(|size| *size <= self.cost);
        fits.unwrap_or(self.policy.batch_cost_max).min(self.policy.batch_cost_max)
    }
}
