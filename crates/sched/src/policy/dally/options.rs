//! Every point that the paper leaves open, by name.

use std::collections::BTreeMap;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use super::score::Score;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// How a job decides whether to take a place or to wait for a better one.
    pub timers: Timers,
    /// How long a job holds out for one place of the lowest level, and for one of each level above it, where
    /// `timers` is "fixed" or nobody knows what a worse place would cost it.
    pub machine_s: Seconds,
    pub rack_s: Seconds,
    /// Other fixed timers for levels of the cluster, by name.
    pub level_s: BTreeMap<String, Seconds>,
    pub score: Score,
    pub preempt: bool,
    pub upgrade: bool,
    /// How often preemption and upgrades are considered.
    pub round_s: Seconds,
    /// A running job is safe for so long after its start.
    pub quantum_s: Seconds,
    /// A victim's claim must be worse by this factor: damping against jobs taking turns.
    pub damping: f64,
    /// An upgrade must save this many times what it costs.
    pub upgrade_gain: f64,
    /// A job that has waited so long, and eight times as long as jobs lately did, goes before all younger
    /// ones, at any tier.
    pub overdue_s: Seconds,
    /// Weigh a place by what links carry now and what the tier has usually cost, or by idle links alone.
    pub anticipate: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timers {
    /// It takes a place if it would lose less there than waiting for a better one takes.
    Auto,
    /// The same, as if it would lose as much as its fixed timer, whatever the place.
    Fixed,
}

/// The options that say how long jobs wait, whatever they would lose.
pub const TIMERS: &[&str] = &["dally.timers", "dally.machine_s", "dally.rack_s", "dally.level_s"];

impl Options {
    /// Jobs hold out for so long for a place of any level.
    pub fn wait_for(&mut self, timer_s: Seconds) {
        (self.timers, self.machine_s, self.rack_s) = (Timers::Fixed, timer_s, timer_s);
        self.level_s.clear();
    }

    /// How long a job holds out for one place of a level, if what a worse one costs does not count.
    pub fn fixed_s(&self, level: usize, name: &str) -> Seconds {
        let unnamed_s = if level == 0 { self.machine_s } else { self.rack_s };
        self.level_s.get(name).copied().unwrap_or(unnamed_s)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timers: Timers::Auto,
            machine_s: 12.0 * 3600.0,
            rack_s: 24.0 * 3600.0,
            level_s: BTreeMap::new(),
            score: Score::TwoDLas,
            preempt: true,
            upgrade: true,
            round_s: 300.0,
            quantum_s: 600.0,
            damping: 2.0,
            upgrade_gain: 2.0,
            overdue_s: 30.0 * 86_400.0,
            anticipate: true,
        }
    }
}
