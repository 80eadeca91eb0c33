//! How much the server corrects.

use hither_core::record::train::{Drift, Round};
use serde::{Deserialize, Serialize};

/// Measurements that a decision rests on: single ones jump.
const RECENT: usize = 5;
/// The theory asks for steps in proportion to (κ² + 2σ²)/G − 1 and leaves the factor open. This one
/// was found by trying: half as many were too few on some graphs, twice as many brought nothing.
const FACTOR: f64 = 0.5;
/// Beyond so many times the workers' steps the server would do their work and not correct it.
const SHARE_MAX: f64 = 3.0;

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
    /// For `round`, with `local` steps of each worker, after what was measured so far.
    pub fn of(&self, round: u32, local: u32, now: Option<&Drift>, past: &[Round]) -> u32 {
        match self {
            Self::Fixed(steps) => *steps,
            Self::Like(steps) => steps.get(round as usize - 1).copied().unwrap_or(0),
            Self::Auto => {
                let past = past.iter().rev().filter_map(|round| round.drift.as_ref());
                wanted(now.into_iter().chain(past).take(RECENT), local)
            }
        }
    }
}

/// The more of a local step is drift, the more steps it takes to undo it; at least one.
fn wanted<'a>(drifts: impl Iterator<Item = &'a Drift>, local: u32) -> u32 {
    let (mut excess, mut useful) = (0.0, 0.0);
    for drift in drifts {
        let kappa_squared = drift.kappa_a.powi(2) + drift.kappa_x.powi(2);
        excess += kappa_squared + 2.0 * drift.bias_squared;
        useful += drift.local_squared;
    }
    if useful <= 0.0 {
        return 1;
    }
    let share = (FACTOR * (excess / useful - 1.0)).clamp(0.0, SHARE_MAX);
    ((share * f64::from(local)).round() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drift(kappa_a: f64, local_squared: f64) -> Drift {
        Drift { kappa_a, kappa_x: 0.0, bias_squared: 0.0, local_squared }
    }

    #[test]
    fn steps_grow_with_drift_and_end_at_a_multiple_of_the_local_ones() {
        let steps = |kappa: f64| wanted([drift(kappa, 1.0)].iter(), 10);
        assert_eq!([0.0, 1.0, 2.0, 100.0].map(steps), [1, 1, 15, 30]);
    }

    #[test]
    fn nothing_measured_is_one_step() {
        assert_eq!(wanted([].iter(), 10), 1);
        assert_eq!(wanted([drift(1.0, 0.0)].iter(), 10), 1);
    }

    #[test]
    fn another_runs_steps_end_with_it() {
        let like = ServerSteps::Like(vec![3, 4]);
        assert_eq!([1, 2, 3].map(|round| like.of(round, 10, None, &[])), [3, 4, 0]);
    }
}
