//! What the engine has to be told: the difference between what is decided and what is seen.

use std::collections::HashMap;

use hither_core::Seconds;
use hither_sched::event::DecisionId;
use hither_sched::job::JobId;
use hither_sched::state::{Phase, Start, State, Stop};

use crate::engine::{Key, Order, SeenJob, Stands, Wants};
use crate::news::{View, is_requeued};
use crate::wish::Wish;

/// How long the driver believes in what it has asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// An order without effect is given again after so long.
    pub retry_s: Seconds,
    /// A start that has not come about after so long is taken back.
    pub start_s: Seconds,
    /// A stop that has not come about after so long, and the job's grace time, is given up.
    pub stop_s: Seconds,
    /// Time between a checkpoint signal and the requeue, where the job does not say.
    pub grace_s: Seconds,
    /// A job that would not start where it was placed, so many times, is left to the engine.
    pub refusals_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { retry_s: 2.0, start_s: 30.0, stop_s: 120.0, grace_s: 30.0, refusals_max: 5 }
    }
}

/// What was asked for and has not come about. It is not saved: after a restart the driver asks
/// again.
#[derive(Debug, Default)]
pub struct Patience {
    asked: HashMap<DecisionId, Asked>,
    /// Orders that belong to no decision, and when they were last given.
    plain: HashMap<Key, Seconds>,
    /// Refused starts by job.
    refusals: HashMap<Key, u32>,
}

#[derive(Debug, Clone)]
struct Asked {
    since_s: Seconds,
    last: Option<(Order, Seconds)>,
    signalled_s: Option<Seconds>,
    gave_up: bool,
}

impl Patience {
    /// Whether the driver no longer wants the decision carried out.
    pub fn gave_up(&self, decision: DecisionId) -> bool {
        self.asked.get(&decision).is_some_and(|asked| asked.gave_up)
    }

    /// Whether the job is left to the engine.
    pub fn is_handed_over(&self, key: &str) -> bool {
        self.refusals.get(key).is_some_and(|count| *count == u32::MAX)
    }

    pub fn refused(&mut self, key: &Key, limits: &Limits) {
        let count = self.refusals.entry(key.clone()).or_default();
        *count = count.saturating_add(1);
        if *count >= limits.refusals_max {
            *count = u32::MAX;
        }
    }

    /// Forgets what is settled and jobs that are gone.
    pub fn tidy(&mut self, view_keys: impl Fn(&str) -> bool, state: &State) {
        self.asked.retain(|decision, _| state.in_flight.contains_key(decision));
        self.plain.retain(|key, _| view_keys(key));
        self.refusals.retain(|key, _| view_keys(key));
    }

    fn asked(&mut self, decision: DecisionId, now: Seconds) -> &mut Asked {
        self.asked.entry(decision).or_insert(Asked {
            since_s: now,
            last: None,
            signalled_s: None,
            gave_up: false,
        })
    }

    /// Whether to give an order that belongs to no decision.
    fn is_due(&mut self, key: &Key, now: Seconds, limits: &Limits) -> bool {
        let is_due = self.plain.get(key).is_none_or(|last_s| now >= last_s + limits.retry_s);
        if is_due {
            self.plain.insert(key.clone(), now);
        }
        is_due
    }
}

impl Asked {
    /// The order, unless it was given just now.
    fn order(&mut self, order: Order, now: Seconds, limits: &Limits) -> Option<Order> {
        let is_again = |last: &(Order, Seconds)| last.0 == order && now < last.1 + limits.retry_s;
        if self.last.as_ref().is_some_and(is_again) {
            return None;
        }
        self.last = Some((order.clone(), now));
        Some(order)
    }
}

pub fn orders(view: View<'_>, patience: &mut Patience, limits: &Limits) -> Vec<Order> {
    let now = view.now;
    let mut orders = Vec::new();
    let in_flight: Vec<JobId> = {
        let mut jobs: Vec<JobId> = view.state.in_flight.values().copied().collect();
        jobs.dedup();
        jobs
    };
    for id in in_flight {
        let job = view.state.job(id);
        let Some(seen) = view.seen.jobs.get(&job.job.name) else { continue };
        let key = &job.job.name;
        orders.extend(match &job.phase {
            Phase::Starting(start) => to_start(view, key, start, seen, patience, limits),
            Phase::Stopping(stop) => to_stop(key, stop, seen, patience, now, limits),
            _ => None,
        });
    }
    for (key, seen) in view.seen.jobs.iter().filter(|(_, seen)| seen.managed) {
        let waits = view.managed.get(key).map(|id| view.state.job(*id).is_waiting());
        let order = match (seen.stands, waits) {
            (Stands::Queued, Some(true)) if is_requeued(seen) => Order::Hold { job: key.clone() },
            (Stands::Held, None) if !seen.is_early && is_left_alone(view, patience, key, seen) => {
                seen.hand_over(key)
            }
            _ => continue,
        };
        if patience.is_due(key, now, limits) {
            orders.push(order);
        }
    }
    orders.dedup();
    orders
}

/// Whether a held job of a managed partition is not one that Hither can place.
fn is_left_alone(view: View<'_>, patience: &Patience, key: &Key, seen: &SeenJob) -> bool {
    patience.is_handed_over(key)
        || !matches!(seen.wants, Wants::Gpus { .. })
        || crate::news::job(view, key, seen).is_none_or(|job| !view.state.admits(&job))
}

fn to_start(
    view: View<'_>,
    key: &Key,
    start: &Start,
    seen: &SeenJob,
    patience: &mut Patience,
    limits: &Limits,
) -> Option<Order> {
    if start.after.iter().any(|stop| view.state.in_flight.contains_key(stop)) {
        return None;
    }
    let now = view.now;
    let nodes = view.places.nodes(&start.run.placement);
    let is_bound = {
        let mut required = seen.required.clone();
        required.sort_unstable();
        required == nodes
    };
    let asked = patience.asked(start.decision, now);
    asked.gave_up |= now > asked.since_s + limits.start_s;
    let job = key.clone();
    let order = match seen.stands {
        Stands::Held if asked.gave_up => return None, // the next look tells the scheduler
        Stands::Held if is_bound => Order::Release { job },
        Stands::Held => Order::Bind { job, nodes },
        Stands::Queued if asked.gave_up || !is_bound => {
            asked.gave_up = true;
            Order::Hold { job }
        }
        // The engine requeued it by itself and would let it wait; held and released, it starts at once.
        Stands::Queued if asked.last.is_none() && is_requeued(seen) => Order::Hold { job },
        _ => return None,
    };
    asked.order(order, now, limits)
}

fn to_stop(
    key: &Key,
    stop: &Stop,
    seen: &SeenJob,
    patience: &mut Patience,
    now: Seconds,
    limits: &Limits,
) -> Option<Order> {
    if seen.stands != Stands::Running || !seen.can_requeue {
        return None;
    }
    let wish = Wish::parse(&seen.comment);
    let grace_s = wish.grace_s.unwrap_or(limits.grace_s);
    let asked = patience.asked(stop.decision, now);
    let job = key.clone();
    if let Some(signal) = wish.signal {
        let Some(signalled_s) = asked.signalled_s else {
            asked.signalled_s = Some(now);
            return asked.order(Order::Signal { job, signal }, now, limits);
        };
        if now < signalled_s + grace_s {
            return None;
        }
    }
    if now > asked.since_s + grace_s + limits.stop_s {
        asked.gave_up = true;
        return None;
    }
    asked.order(Order::Requeue { job }, now, limits)
}
