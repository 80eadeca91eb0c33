//! The auto-tuner of the delay timers.
//!
//! It records how long jobs of a demand waited until they got a place, and sets the timers so that
//! waiting covers what waiting has lately been good for. Two traps shape it. A wait that ends
//! because the timer ran out is not an observation of the wait but a lower bound of it: plain means
//! of such waits ratchet to zero, so they count as *censored* and a Kaplan–Meier estimate is used.
//! And demands are seldom seen: a demand with few observations borrows those of its power-of-two
//! class, then those of all.

use std::collections::{BTreeMap, VecDeque};

use hither_core::Seconds;
use hither_core::topology::Tier;
use serde::{Deserialize, Serialize};

use crate::order::pairs;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Observations kept for each demand and tier.
    pub window: usize,
    /// Fewer than this and a wider class is asked.
    pub observations_min: usize,
    /// The share of waits that the timer should cover.
    pub quantile: f64,
    /// What the timers are before anything was observed, and their bounds.
    pub initial_s: Seconds,
    pub floor_s: Seconds,
    pub ceiling_s: Seconds,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: 64,
            observations_min: 3,
            quantile: 0.9,
            initial_s: 1800.0,
            floor_s: 60.0,
            ceiling_s: 86_400.0,
        }
    }
}

/// One wait for a tier: how long, and whether it ended in getting the tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    pub waited_s: Seconds,
    pub got: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Tuner {
    #[serde(skip)]
    pub options: Options,
    #[serde(with = "pairs")]
    exact: BTreeMap<(u32, Tier), VecDeque<Wait>>,
    /// By power of two that holds the demand.
    #[serde(with = "pairs")]
    class: BTreeMap<(u32, Tier), VecDeque<Wait>>,
    #[serde(with = "pairs")]
    all: BTreeMap<Tier, VecDeque<Wait>>,
}

impl Tuner {
    pub fn new(options: &Options) -> Self {
        Self {
            options: options.clone(),
            exact: BTreeMap::new(),
            class: BTreeMap::new(),
            all: BTreeMap::new(),
        }
    }

    pub fn observe(&mut self, gpus: u32, tier: Tier, wait: Wait) {
        let window = self.options.window;
        let push = |waits: &mut VecDeque<Wait>| {
            if waits.len() == window {
                waits.pop_front();
            }
            waits.push_back(wait);
        };
        push(self.exact.entry((gpus, tier)).or_default());
        push(self.class.entry((class(gpus), tier)).or_default());
        push(self.all.entry(tier).or_default());
    }

    /// How long a job of this demand should hold out for the tier.
    pub fn timer_s(&self, gpus: u32, tier: Tier) -> Seconds {
        let enough = |w: &&VecDeque<Wait>| w.len() >= self.options.observations_min;
        let waits = (self.exact.get(&(gpus, tier)).filter(enough))
            .or_else(|| self.class.get(&(class(gpus), tier)).filter(enough))
            .or_else(|| self.all.get(&tier).filter(enough));
        let Some(waits) = waits else {
            return self.options.initial_s;
        };
        let waits: Vec<Wait> = waits.iter().copied().collect();
        let covered_s = match wait_quantile(waits, self.options.quantile) {
            Ok(s) => s,
            // The window does not reach so far: hold out longer and learn.
            Err(longest_s) => 2.0 * longest_s,
        };
        covered_s.clamp(self.options.floor_s, self.options.ceiling_s)
    }
}

fn class(gpus: u32) -> u32 {
    gpus.next_power_of_two()
}

/// The Kaplan–Meier estimate of a quantile of the wait, or the longest wait if too many were cut
/// off before it.
pub fn wait_quantile(mut waits: Vec<Wait>, quantile: f64) -> Result<Seconds, Seconds> {
    // At equal times those that got the tier count before those that gave up.
    waits.sort_by(|a, b| a.waited_s.total_cmp(&b.waited_s).then(b.got.cmp(&a.got)));
    let mut still_waiting = 1.0;
    let n = waits.len();
    for (i, wait) in waits.iter().enumerate() {
        if wait.got {
            still_waiting *= 1.0 - 1.0 / (n - i) as f64;
            if 1.0 - still_waiting >= quantile - 1e-12 {
                return Ok(wait.waited_s);
            }
        }
    }
    Err(waits.last().map_or(0.0, |w| w.waited_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(rows: &[(f64, bool)]) -> Vec<Wait> {
        rows.iter().map(|&(waited_s, got)| Wait { waited_s, got }).collect()
    }

    #[test]
    fn without_censoring_it_is_the_plain_quantile() {
        let all = waits(&[(1.0, true), (2.0, true), (3.0, true), (4.0, true)]);
        assert_eq!(wait_quantile(all.clone(), 0.5), Ok(2.0));
        assert_eq!(wait_quantile(all, 1.0), Ok(4.0));
    }

    #[test]
    fn censored_waits_push_the_estimate_up() {
        // Of those at risk at 5, one of two gets it: survival 1 · 3/4 · 1/2.
        let mixed = waits(&[(1.0, true), (2.0, false), (5.0, true), (9.0, false)]);
        assert_eq!(wait_quantile(mixed.clone(), 0.6), Ok(5.0));
        assert_eq!(wait_quantile(mixed, 0.9), Err(9.0));
    }

    #[test]
    fn a_timer_that_always_runs_out_grows_to_the_ceiling() {
        // The feedback trap: a plain mean of these waits would never rise above the timer.
        let options = Options::default();
        let mut tuner = Tuner::new(&options);
        for _ in 0..200 {
            let waited_s = tuner.timer_s(8, Tier::MACHINE);
            tuner.observe(8, Tier::MACHINE, Wait { waited_s, got: false });
        }
        assert_eq!(tuner.timer_s(8, Tier::MACHINE), options.ceiling_s);
    }

    #[test]
    fn few_observations_borrow_from_the_class() {
        let mut tuner = Tuner::new(&Options::default());
        for _ in 0..3 {
            tuner.observe(8, Tier::MACHINE, Wait { waited_s: 500.0, got: true });
        }
        assert_eq!(tuner.timer_s(7, Tier::MACHINE), 500.0);
        assert_eq!(tuner.timer_s(2, Tier::MACHINE), 500.0);
        assert_eq!(tuner.timer_s(2, Tier(1)), Options::default().initial_s);
    }
}
