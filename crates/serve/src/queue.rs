//! The queue of one model, and how batches are cut from it. No I/O, no clock, no threads: callers
//! say what time it is.
//!
//! Requests are kept in one order that is fair between clients (start-time fair queueing). Each
//! request has a *turn*: the number of samples that its client had waiting before it, counted from
//! where the queue stood when it came. Batches are taken from the front, so a client with a thousand
//! requests and one with a single request are served alike. When the queue is full, the request at the
//! back goes, which is the last one of the client that waits for most; a client alone is refused.
//!
//! A request with a deadline that cannot be kept at the present pace is refused when it comes. If the pace
//! falls meanwhile, it is refused when its batch is cut. Otherwise a server with too much to do would spend its
//! time on answers that come too late.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::infer::ClientId;
use crate::pace::{Pace, UnderWay};

/// When a batch is cut, and how much may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Samples per batch.
    pub batch_samples_max: usize,
    /// Sizes that are worth cutting a batch at, in rising order; empty for any size.
    pub batch_samples_preferred: Vec<usize>,
    /// How long an incomplete batch waits for more requests. Zero still batches: requests gather
    /// while the batch before them runs.
    pub window: Duration,
    /// Requests that may wait.
    pub queue_requests_max: usize,
    /// Samples that may wait.
    pub queue_samples_max: usize,
}

/// A request that waits.
#[derive(Debug)]
pub struct Waiting<T> {
    pub client: ClientId,
    pub samples: usize,
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
    clients: HashMap<ClientId, Lane>,
    samples: usize,
    /// The first arrival of those that wait, or earlier if that one was withdrawn.
    oldest: Option<Instant>,
    /// The turn that was served last.
    now_serving: u64,
    /// Requests that ever came, which orders those of the same turn.
    count: u64,
    pace: Pace,
}

/// What a client has in the queue.
#[derive(Debug, Default)]
struct Lane {
    requests: usize,
    /// The turn of its next request.
    next_turn: u64,
}

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
            samples: 0,
            oldest: None,
            now_serving: 0,
            count: 0,
            pace: Pace::new(threads),
        }
    }

    /// Learns from a batch that has been computed.
    pub fn learn(&mut self, batch: &UnderWay, now: Instant) {
        self.pace.learn(batch, now);
    }

    /// Whether a request will be answered in time, by what runs and by the samples that go before it.
    fn keeps_deadline(&self, waiting: &Waiting<T>, ticket: Ticket) -> bool {
        let Some(deadline) = waiting.deadline else { return true };
        let now = waiting.arrived;
        let before: usize = self.waiting.range(..ticket).map(|(_, other)| other.samples).sum();
        // A request that can begin at once is tried in any case: a pace that was a mistake must not last.
        let is_next = before == 0 && self.pace.next_begin(now) == now;
        is_next || self.pace.answered_by(before, waiting.samples, now) <= deadline
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Adds a request, or refuses it at once.
    pub fn offer(&mut self, waiting: Waiting<T>) -> Offered<T> {
        let lane = self.clients.get(&waiting.client);
        let turn = lane.map_or(self.now_serving, |lane| lane.next_turn.max(self.now_serving));
        let ticket = Ticket { turn, number: self.count };
        if !self.keeps_deadline(&waiting, ticket) {
            return Offered::Refused(Box::new(waiting));
        }
        let mut displaced = None;
        if !self.has_room(waiting.samples) {
            // One request makes room for one: if that is not enough, the newcomer goes.
            let last = self.waiting.last_key_value();
            let last =
                last.filter(|(last, other)| **last > ticket && other.samples >= waiting.samples);
            let Some((&last, _)) = last else { return Offered::Refused(Box::new(waiting)) };
            displaced = self.remove(last).map(Box::new);
        }
        self.count += 1;
        self.samples += waiting.samples;
        self.oldest = self.oldest.or(Some(waiting.arrived));
        let lane = self.clients.entry(waiting.client).or_default();
        lane.requests += 1;
        lane.next_turn = turn + waiting.samples as u64;
        self.waiting.insert(ticket, waiting);
        match displaced {
            Some(displaced) => Offered::Displaced(ticket, displaced),
            None => Offered::Queued(ticket),
        }
    }

    fn has_room(&self, samples: usize) -> bool {
        let Policy { queue_requests_max, queue_samples_max, .. } = self.policy;
        self.waiting.len() < queue_requests_max && self.samples + samples <= queue_samples_max
    }

    /// Takes a request out that nobody waits for any more.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&ticket)?;
        self.samples -= waiting.samples;
        if let Some(lane) = self.clients.get_mut(&waiting.client) {
            lane.requests -= 1;
            if lane.requests == 0 {
                self.clients.remove(&waiting.client);
            }
        }
        Some(waiting)
    }

    /// When the next batch should be cut; `None` while nothing waits.
    pub fn ready_at(&self) -> Option<Instant> {
        let oldest = self.oldest.filter(|_| !self.is_empty())?;
        let enough = self.policy.batch_samples_preferred.first();
        let enough = *enough.unwrap_or(&self.policy.batch_samples_max);
        Some(if self.samples >= enough { oldest } else { oldest + self.policy.window })
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
        let mut arrivals = self.waiting.values().map(|waiting| waiting.arrived);
        // Without a window any of them will do.
        let is_any = self.policy.window.is_zero();
        self.oldest = if is_any { arrivals.next() } else { arrivals.min() };
        let samples = batch.iter().map(|waiting| waiting.samples).sum();
        (samples > 0).then(|| self.pace.begin(samples, now))
    }

    fn take_front(
        &mut self,
        now: Instant,
        batch: &mut Vec<Waiting<T>>,
        expired: &mut Vec<Waiting<T>>,
    ) {
        let limit = self.batch_limit();
        let mut samples = 0;
        // The first deadline of the batch.
        let mut deadline: Option<Instant> = None;
        while let Some((&ticket, first)) = self.waiting.first_key_value() {
            let is_last = self.waiting.len() == 1;
            let needed = if is_last { Duration::ZERO } else { self.pace.expected(first.samples) };
            let is_late = first.deadline.is_some_and(|own| own <= now + needed);
            let together = now + self.pace.at_most(samples + first.samples);
            let is_full = samples + first.samples > limit
                || deadline.into_iter().chain(first.deadline).any(|end| end < together);
            if !is_late && samples > 0 && is_full {
                return;
            }
            self.now_serving = ticket.turn;
            let Some(waiting) = self.remove(ticket) else { return };
            if is_late {
                expired.push(waiting);
                continue;
            }
            samples += waiting.samples;
            deadline = deadline.into_iter().chain(waiting.deadline).min();
            batch.push(waiting);
            if samples >= limit {
                return;
            }
        }
    }

    /// The largest preferred size that what waits can fill; otherwise the largest size of all.
    fn batch_limit(&self) -> usize {
        let preferred = self.policy.batch_samples_preferred.iter().rev();
        let fits = preferred.copied().find(|size| *size <= self.samples);
        fits.unwrap_or(self.policy.batch_samples_max).min(self.policy.batch_samples_max)
    }
}
