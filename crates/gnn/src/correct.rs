//! How much the server corrects.

use hither_core::record::train::Drift;
use serde::{Deserialize, Serialize};

/// Steps of the server after each averaging.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerSteps {
    Fixed(u32),
    /// As many as the measured drift asks for.
    Auto,
    /// As another run took, round by round: to compare at equal work of the server.
    Like(Vec<u32>),
}

impl ServerSteps {
    /// For this round, after `local` steps, with the drift last measured.
    pub fn of(&self, round: u32, local: u32, drift: Option<&Drift>) -> u32 {
        match self {
            Self::Fixed(steps) => *steps,
            Self::Like(steps) => steps.get(round as usize - 1).copied().unwrap_or(0),
            Self::Auto => drift.map_or(1, |drift| wanted(drift, local)),
        }
    }
}

/// The theory's number of steps grows with how much of a local step is drift.
fn wanted(drift: &Drift, local: u32) -> u32 {
    let kappa_squared = drift.kappa_a.powi(2) + drift.kappa_x.powi(2);
    let excess = kappa_squared + 2.0 * drift.bias_squared;
    let share = excess / (excess + drift.local_squared);
    let steps = (share * f64::from(local)).ceil();
    (steps as u32).clamp(1, local.max(1))
}
