//! How much of an average is worth taking, and how much the server corrects it.
//!
//! The theory compares drift with progress, (κA² + κX² + 2σ²) / G, up to a factor. Here that is
//! d = 2(κA² + κX² + σ²) / G, as both drifts may add up: ‖a + b‖² ≤ 2(‖a‖² + ‖b‖²). With d up to 1
//! local steps are worth what they cost. Beyond, the server is to take d − 1 times as many, without
//! end: late in training G is small, and it would spend its time on undoing what workers did. `auto`
//! therefore lets the global model go only 1/d of the way to the average, which leaves 1 − 1/d times
//! the local steps to correct. That, and the factors, are ours.

use hither_core::record::train::{Drift, Round};
use serde::{Deserialize, Serialize};

/// Measurements that a decision rests on: single ones jump.
const RECENT: usize = 5;
/// The theory leaves it open. Found by trying: with 1 some graphs stayed a point behind one
/// machine, with 2 one still did.
const FACTOR: f64 = 3.0;

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

/// What becomes of an average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correction {
    /// How far the global model goes to it, of the whole way.
    pub kept: f64,
    /// What the server then does.
    pub steps: u32,
}

impl ServerSteps {
    /// For `round`, with `local` steps of each worker, after what was measured so far.
    pub fn of(&self, round: u32, local: u32, now: Option<&Drift>, past: &[Round]) -> Correction {
        match self {
            Self::Fixed(steps) => Correction { kept: 1.0, steps: *steps },
            Self::Like(steps) => {
                let steps = steps.get(round as usize - 1).copied().unwrap_or(0);
                Correction { kept: 1.0, steps }
            }
            Self::Auto => {
                let past = past.iter().rev().filter_map(|round| round.drift.as_ref());
                wanted(now.into_iter().chain(past).take(RECENT), local)
            }
        }
    }
}

/// The more of a local step is drift, the less of it is kept and the more is corrected; at least
/// one step.
fn wanted<'a>(drifts: impl Iterator<Item = &'a Drift>, local: u32) -> Correction {
    let (mut excess, mut useful) = (0.0, 0.0);
    for drift in drifts {
        excess += 2.0 * (drift.kappa_a.powi(2) + drift.kappa_x.powi(2) + drift.bias_squared);
        useful += drift.local_squared;
    }
    let kept = if excess > useful { useful / excess } else { 1.0 };
    let steps = (FACTOR * (1.0 - kept) * f64::from(local)).round() as u32;
    Correction { kept, steps: steps.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drift(kappa_a: f64, local_squared: f64) -> Drift {
        Drift { kappa_a, kappa_x: 0.0, bias_squared: 0.0, local_squared }
    }

    #[test]
    fn with_more_drift_less_is_kept_and_more_corrected() {
        let correction = |kappa: f64| wanted([drift(kappa, 1.0)].iter(), 10);
        let all = [0.0, 0.7, 2.0, 100.0].map(correction);
        assert_eq!(all.map(|correction| correction.kept), [1.0, 1.0, 0.125, 5e-5]);
        assert_eq!(all.map(|correction| correction.steps), [1, 1, 26, 30]);
    }

    #[test]
    fn without_measurements_all_is_kept() {
        let nothing = Correction { kept: 1.0, steps: 1 };
        assert_eq!(wanted([].iter(), 10), nothing);
        assert_eq!(wanted([drift(0.0, 0.0)].iter(), 10), nothing);
        // Nobody learns anything, and still everybody drifts.
        assert_eq!(wanted([drift(1.0, 0.0)].iter(), 10), Correction { kept: 0.0, steps: 30 });
    }

    #[test]
    fn another_runs_steps_end_with_it() {
        let like = ServerSteps::Like(vec![3, 4]);
        assert_eq!([1, 2, 3].map(|round| like.of(round, 10, None, &[]).steps), [3, 4, 0]);
    }
}
