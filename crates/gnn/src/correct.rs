//! How much of an average is worth taking, and how many steps the server corrects it by.
//!
//! The theory asks the server for (κA² + κX² + 2σ²) / G − 1 times the local steps, up to a factor:
//! drift against progress. Late in training G falls and drift does not; a server that followed it
//! would take steps without end, only to undo what the workers just did. `auto` therefore goes
//! towards the average only as far as the loss of the whole graph falls, and corrects by the theory's
//! steps for the share of the way that it did not go, each local step by no more than `MOST`. What is
//! kept and the bound are ours, not the theory's.

use hither_core::record::train::{Drift, Round};
use serde::{Deserialize, Serialize};

/// Measurements that a decision rests on: single ones jump.
const RECENT: usize = 5;
/// Upper bound on server steps per local step that is not kept. Found by trying.
pub const MOST: f64 = 5.0;
/// Training nodes of the whole graph whose loss is compared.
pub const JUDGES: usize = 512;

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

/// What a round says of its local steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// How much of their average was worth taking.
    pub kept: f64,
    pub drift: Option<Drift>,
}

impl ServerSteps {
    /// For `round`, with `local` steps of each worker, after what was found now and before.
    pub fn of(&self, round: u32, local: u32, now: Option<Found>, past: &[Round]) -> u32 {
        match self {
            Self::Fixed(steps) => *steps,
            Self::Like(steps) => steps.get(round as usize - 1).copied().unwrap_or(0),
            Self::Auto => {
                let past =
                    past.iter().rev().map(|round| Found { kept: round.kept, drift: round.drift });
                let found: Vec<Found> = now.into_iter().chain(past).collect();
                wanted(&found, local)
            }
        }
    }
}

/// The more of a local step is drift, and the less of it was kept, the more is corrected; at least
/// one step. The newest is first.
fn wanted(found: &[Found], local: u32) -> u32 {
    let (mut drifted, mut learnt) = (0.0, 0.0);
    for drift in found.iter().filter_map(|found| found.drift).take(RECENT) {
        drifted += drift.kappa_a.powi(2) + drift.kappa_x.powi(2) + 2.0 * drift.bias_squared;
        learnt += drift.local_squared;
    }
    let excess = if drifted > learnt { (drifted / learnt - 1.0).min(MOST) } else { 0.0 };
    let recent = &found[..found.len().min(RECENT)];
    let kept = recent.iter().map(|found| found.kept).sum::<f64>() / recent.len().max(1) as f64;
    let steps = (excess * (1.0 - kept) * f64::from(local)).round() as u32;
    steps.max(1)
}

/// Where, from 0 to 1, a parabola through the losses at 0, ½ and 1 is lowest.
pub fn lowest([start, half, end]: [f64; 3]) -> f64 {
    let curvature = start - 2.0 * half + end;
    if curvature > 0.0 && curvature.is_finite() {
        ((3.0 * start - 4.0 * half + end) / (4.0 * curvature)).clamp(0.0, 1.0)
    } else if end <= start {
        1.0
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kept: f64, kappa_a: f64, local_squared: f64) -> Found {
        let drift = Drift { kappa_a, kappa_x: 0.0, bias_squared: 0.0, local_squared };
        Found { kept, drift: Some(drift) }
    }

    #[test]
    fn with_more_drift_more_is_corrected() {
        let steps = |kappa: f64| wanted(&[found(0.0, kappa, 1.0)], 10);
        assert_eq!([0.0, 1.0, 1.5, 100.0].map(steps), [1, 1, 13, 50]);
    }

    #[test]
    fn what_is_kept_is_not_corrected() {
        let steps = |kept: f64| wanted(&[found(kept, 2.0, 1.0)], 10);
        assert_eq!([0.0, 0.5, 1.0].map(steps), [30, 15, 1]);
        // Rounds without a measurement count for what they kept.
        let unmeasured = Found { kept: 1.0, drift: None };
        assert_eq!(wanted(&[unmeasured, found(0.0, 2.0, 1.0)], 10), 15);
    }

    #[test]
    fn without_progress_drift_is_all_there_is() {
        assert_eq!(wanted(&[], 10), 1);
        assert_eq!(wanted(&[found(0.0, 0.0, 0.0)], 10), 1);
        assert_eq!(wanted(&[found(0.0, 1.0, 0.0)], 10), 50);
    }

    #[test]
    fn another_runs_steps_end_with_it() {
        let like = ServerSteps::Like(vec![3, 4]);
        assert_eq!([1, 2, 3].map(|round| like.of(round, 10, None, &[])), [3, 4, 0]);
    }

    #[test]
    fn the_lowest_point_is_the_parabolas() {
        for at in [0.0, 0.25, 0.7, 1.0] {
            let loss = |t: f64| 3.0 + 2.0 * (t - at).powi(2);
            assert!((lowest([0.0, 0.5, 1.0].map(loss)) - at).abs() < 1e-12);
        }
        // Beyond the average, or back beyond the start, nobody goes.
        assert_eq!(lowest([3.0, 2.0, 1.5]), 1.0);
        assert_eq!(lowest([1.0, 2.0, 3.5]), 0.0);
        // Nothing lost is worth taking; of a hill, the lower side.
        assert_eq!(lowest([1.0, 1.0, 1.0]), 1.0);
        assert_eq!(lowest([1.0, 3.0, 2.0]), 0.0);
        // An average that lost its way is not gone to.
        assert_eq!(lowest([1.0, 2.0, f64::INFINITY]), 0.0);
        assert_eq!(lowest([1.0, f64::NAN, f64::NAN]), 0.0);
    }
}
