//! What waiting for a good place has lately brought, by demand: the auto-tuner of delays.
//!
//! A demand *holds out* while it is offered a place that all of its jobs decline. The mean wait for a
//! good place is the time spent holding out over the good places that it then got. Two traps shape the
//! count. Time in a queue for any GPUs at all says nothing about holding out, so the clock stands still
//! while nothing is on offer. And a job that gives in has not seen the end of its wait: its time counts,
//! but no place does, so giving in never makes waits look short.

use std::collections::BTreeMap;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::order::pairs;
use crate::policy::queue::Class;

/// Each place got makes what was seen before count less by one part in so many.
const MEMORY_PLACES: f64 = 16.0;
/// Demands that are remembered: users may think of many.
const DEMANDS_MAX: usize = 1024;

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Tuner {
    #[serde(with = "pairs")]
    by_demand: BTreeMap<Class, Patience>,
}

/// How one demand fared with holding out.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Patience {
    held_out_s: Seconds,
    places_got: f64,
    /// Since when it holds out; `None`: nothing is on offer, or nobody waits.
    since_s: Option<Seconds>,
    /// What the time held out was when it last got a good place.
    when_got_s: Seconds,
}

impl Patience {
    fn held_out_s(&self, now: Seconds) -> Seconds {
        self.held_out_s + self.since_s.map_or(0.0, |since_s| now - since_s)
    }

    fn run(&mut self, now: Seconds, holds_out: bool) {
        if holds_out != self.since_s.is_some() {
            self.held_out_s = self.held_out_s(now);
            self.since_s = holds_out.then_some(now);
        }
    }
}

impl Tuner {
    /// The demand holds out from now on, or no longer does.
    pub fn hold_out(&mut self, demand: Class, now: Seconds, holds_out: bool) {
        match self.by_demand.get_mut(&demand) {
            Some(patience) => patience.run(now, holds_out),
            None if holds_out => {
                if self.by_demand.len() >= DEMANDS_MAX {
                    let idle = self.by_demand.iter().find(|(_, p)| p.since_s.is_none());
                    let idle = idle.map(|(demand, _)| *demand);
                    idle.and_then(|demand| self.by_demand.remove(&demand));
                }
                self.by_demand.entry(demand).or_default().run(now, true);
            }
            None => {}
        }
    }

    /// A job of the demand got a good place. Places that came before anybody held out do not count:
    /// the question is how long it takes when there is none.
    pub fn got_place(&mut self, demand: Class, now: Seconds) {
        let has_held_out = |p: &&mut Patience| p.held_out_s(now) > p.when_got_s;
        let Some(patience) = self.by_demand.get_mut(&demand).filter(has_held_out) else { return };
        let fade = 1.0 - 1.0 / MEMORY_PLACES;
        patience.held_out_s = patience.held_out_s(now) * fade;
        patience.since_s = patience.since_s.map(|_| now);
        patience.when_got_s = patience.held_out_s;
        patience.places_got = patience.places_got * fade + 1.0;
    }

    /// The wait that a job of the demand expects. Before any good place was got it is the time held out so
    /// far, so a job holds out for as long as accepting would cost it, and never more than twice what
    /// would have been best.
    pub fn wait_s(&self, demand: Class, now: Seconds) -> Seconds {
        let wait_s = |p: &Patience| p.held_out_s(now) / (p.places_got + 1.0);
        self.by_demand.get(&demand).map_or(0.0, wait_s)
    }

    /// When the expected wait has grown to so much if the demand holds out from now on and gets nothing.
    pub fn grown_at_s(&self, demand: Class, now: Seconds, wait_s: Seconds) -> Seconds {
        let patience = self.by_demand.get(&demand).copied().unwrap_or_default();
        now + (wait_s * (patience.places_got + 1.0) - patience.held_out_s(now)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Demand;

    fn eight() -> Class {
        (Demand::from(8), None)
    }

    #[test]
    fn before_any_place_was_got_the_wait_is_the_time_held_out() {
        let mut tuner = Tuner::default();
        assert_eq!(tuner.wait_s(eight(), 50.0), 0.0);
        tuner.hold_out(eight(), 100.0, true);
        assert_eq!(tuner.wait_s(eight(), 160.0), 60.0);
        assert_eq!(tuner.grown_at_s(eight(), 160.0, 100.0), 200.0);
    }

    #[test]
    fn the_clock_stands_still_while_nothing_is_on_offer() {
        let mut tuner = Tuner::default();
        tuner.hold_out(eight(), 0.0, true);
        tuner.hold_out(eight(), 10.0, false);
        tuner.hold_out(eight(), 500.0, true);
        assert_eq!(tuner.wait_s(eight(), 505.0), 15.0);
    }

    #[test]
    fn giving_in_does_not_make_waits_look_short() {
        // The feedback trap: a mean over the ends of waits would fall with each job that gives in.
        let mut tuner = Tuner::default();
        for n in 0..100 {
            tuner.hold_out(eight(), f64::from(n) * 100.0, true);
            tuner.hold_out(eight(), f64::from(n) * 100.0 + 10.0, false);
        }
        assert_eq!(tuner.wait_s(eight(), 1e6), 1000.0);
    }

    #[test]
    fn the_wait_settles_at_the_mean_time_between_places() {
        let mut tuner = Tuner::default();
        for n in 0..200 {
            tuner.hold_out(eight(), f64::from(n) * 300.0, true);
            tuner.got_place(eight(), f64::from(n) * 300.0 + 100.0);
            tuner.hold_out(eight(), f64::from(n) * 300.0 + 100.0, false);
        }
        let wait_s = tuner.wait_s(eight(), 1e6);
        assert!((80.0..100.0).contains(&wait_s), "{wait_s}");
        // A place that comes before anybody held out says nothing.
        tuner.got_place(eight(), 1e6);
        assert_eq!(tuner.wait_s(eight(), 1e6), wait_s);
    }
}
