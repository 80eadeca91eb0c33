//! What waiting for a good place has lately brought, by ask: the auto-tuner of delays.
//!
//! An ask *holds out* while it is offered a place that all of its jobs decline. The mean wait for a
//! good place is the time spent holding out over the good places that it then got. Two traps shape the
//! count. Time in a queue for any GPUs at all says nothing about holding out, so the clock stands still
//! while nothing is on offer. And a job that gives in has not seen the end of its wait: its time counts,
//! but no place does, so giving in never makes waits look short.

use std::collections::BTreeMap;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::order::pairs;
use crate::state::Ask;

/// Each place got makes what was seen before count less by one part in so many.
const MEMORY_PLACES: f64 = 16.0;
/// Asks that are remembered: users may think of many.
const ASKS_MAX: usize = 1024;

/// Part of the books: whoever decides, what waiting brings is learned.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Waits {
    #[serde(with = "pairs")]
    by_ask: BTreeMap<Ask, Patience>,
    /// The expected wait last reported for each ask.
    #[serde(with = "pairs")]
    reported: BTreeMap<Ask, Seconds>,
    usual: UsualWait,
}

/// How one ask fared with holding out.
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

impl Waits {
    /// The ask holds out from now on, or no longer does.
    pub fn hold_out(&mut self, ask: Ask, now: Seconds, holds_out: bool) {
        match self.by_ask.get_mut(&ask) {
            Some(patience) => patience.run(now, holds_out),
            None if holds_out => {
                if self.by_ask.len() >= ASKS_MAX {
                    let idle = self.by_ask.iter().find(|(_, p)| p.since_s.is_none());
                    let idle = idle.map(|(ask, _)| *ask);
                    idle.and_then(|ask| self.by_ask.remove(&ask));
                }
                self.by_ask.entry(ask).or_default().run(now, true);
            }
            None => {}
        }
    }

    /// A job of the ask got a good place. Places that came before anybody held out do not count:
    /// the question is how long it takes when there is none.
    pub fn got_place(&mut self, ask: Ask, now: Seconds) {
        let has_held_out = |p: &&mut Patience| p.held_out_s(now) > p.when_got_s;
        let Some(patience) = self.by_ask.get_mut(&ask).filter(has_held_out) else { return };
        let fade = 1.0 - 1.0 / MEMORY_PLACES;
        patience.held_out_s = patience.held_out_s(now) * fade;
        patience.since_s = patience.since_s.map(|_| now);
        patience.when_got_s = patience.held_out_s;
        patience.places_got = patience.places_got * fade + 1.0;
    }

    /// The wait that a job of the ask expects. Before any good place was got it is the time held out so
    /// far, so a job holds out for as long as accepting would cost it, and never more than twice what
    /// would have been best.
    pub fn wait_s(&self, ask: Ask, now: Seconds) -> Seconds {
        let wait_s = |p: &Patience| p.held_out_s(now) / (p.places_got + 1.0);
        self.by_ask.get(&ask).map_or(0.0, wait_s)
    }

    /// The expected wait, if it has changed by a quarter since it was last reported.
    pub fn news_s(&mut self, ask: Ask, now: Seconds) -> Option<Seconds> {
        let wait_s = self.wait_s(ask, now);
        let reported_s = self.reported.get(&ask).copied().unwrap_or(0.0);
        let is_news = (wait_s - reported_s).abs() > 0.25 * reported_s;
        is_news.then(|| {
            self.reported.insert(ask, wait_s);
            wait_s
        })
    }

    /// A job that waited so long starts.
    pub fn started(&mut self, waited_s: Seconds) {
        self.usual.add(waited_s);
    }

    /// A turn begins: one usual wait holds for the whole of it.
    pub fn begin_turn(&mut self) {
        self.usual.at_turn_s = self.usual.mean_s;
    }

    /// How long jobs waited that started lately.
    pub fn usual_s(&self) -> Seconds {
        self.usual.at_turn_s
    }

    /// When the expected wait has grown to so much if the ask holds out from now on and gets nothing.
    pub fn grown_at_s(&self, ask: Ask, now: Seconds, wait_s: Seconds) -> Seconds {
        let patience = self.by_ask.get(&ask).copied().unwrap_or_default();
        now + (wait_s * (patience.places_got + 1.0) - patience.held_out_s(now)).max(0.0)
    }
}

/// How long jobs waited that started lately.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct UsualWait {
    starts: f64,
    mean_s: Seconds,
    /// The mean when the present turn began.
    at_turn_s: Seconds,
}

/// The mean is over about so many starts.
const STARTS_MAX: f64 = 512.0;

impl UsualWait {
    fn add(&mut self, waited_s: Seconds) {
        self.starts = (self.starts + 1.0).min(STARTS_MAX);
        self.mean_s += (waited_s - self.mean_s) / self.starts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Demand;

    #[test]
    fn the_usual_wait_follows_the_last_starts() {
        let mut waits = Waits::default();
        waits.begin_turn();
        [10.0, 20.0, 30.0].into_iter().for_each(|waited_s| waits.started(waited_s));
        assert_eq!(waits.usual_s(), 0.0, "one wait holds for the whole turn");
        waits.begin_turn();
        assert_eq!(waits.usual_s(), 20.0);
        (0..10_000).for_each(|_| waits.started(500.0));
        waits.begin_turn();
        assert!((waits.usual_s() - 500.0).abs() < 1.0, "old starts are forgotten");
    }

    fn eight() -> Ask {
        Ask { gang: Demand::from(8), pool: None }
    }

    #[test]
    fn before_any_place_was_got_the_wait_is_the_time_held_out() {
        let mut waits = Waits::default();
        assert_eq!(waits.wait_s(eight(), 50.0), 0.0);
        waits.hold_out(eight(), 100.0, true);
        assert_eq!(waits.wait_s(eight(), 160.0), 60.0);
        assert_eq!(waits.grown_at_s(eight(), 160.0, 100.0), 200.0);
    }

    #[test]
    fn the_clock_stands_still_while_nothing_is_on_offer() {
        let mut waits = Waits::default();
        waits.hold_out(eight(), 0.0, true);
        waits.hold_out(eight(), 10.0, false);
        waits.hold_out(eight(), 500.0, true);
        assert_eq!(waits.wait_s(eight(), 505.0), 15.0);
    }

    #[test]
    fn giving_in_does_not_make_waits_look_short() {
        // The feedback trap: a mean over the ends of waits would fall with each job that gives in.
        let mut waits = Waits::default();
        for n in 0..100 {
            waits.hold_out(eight(), f64::from(n) * 100.0, true);
            waits.hold_out(eight(), f64::from(n) * 100.0 + 10.0, false);
        }
        assert_eq!(waits.wait_s(eight(), 1e6), 1000.0);
    }

    #[test]
    fn the_wait_settles_at_the_mean_time_between_places() {
        let mut waits = Waits::default();
        for n in 0..200 {
            waits.hold_out(eight(), f64::from(n) * 300.0, true);
            waits.got_place(eight(), f64::from(n) * 300.0 + 100.0);
            waits.hold_out(eight(), f64::from(n) * 300.0 + 100.0, false);
        }
        let wait_s = waits.wait_s(eight(), 1e6);
        assert!((80.0..100.0).contains(&wait_s), "{wait_s}");
        // A place that comes before anybody held out says nothing.
        waits.got_place(eight(), 1e6);
        assert_eq!(waits.wait_s(eight(), 1e6), wait_s);
    }
}
