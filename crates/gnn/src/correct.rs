//! How many steps the server takes, and how much of an average is worth taking.
//!
//! The theory asks the server for (κA² + κX² + 2σ²) / G − 1 times the local steps, up to a factor:
//! drift against progress. Late in training G falls and drift does not; a server that followed it
//! would take steps without end, only to undo what the workers just did. `auto` therefore stops at
//! `MOST` times the local steps, and looks whether there is something to undo: it goes towards the
//! average only as far as the loss of the whole graph falls. Both are ours, not the theory's.

use hither_core::record::train::{Drift, Round};
use serde::{Deserialize, Serialize};

/// Measurements that a decision rests on: single ones jump.
const RECENT: usize = 5;
/// Steps of the server at most, to one of a worker. Found by trying.
const MOST: f64 = 3.0;
/// Training nodes of the whole graph whose loss is compared.
pub const JUDGES: usize = 256;

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

/// The more of a local step is drift, the more is corrected; at least one step.
fn wanted<'a>(drifts: impl Iterator<Item = &'a Drift>, local: u32) -> u32 {
    let (mut drifted, mut learnt) = (0.0, 0.0);
    for drift in drifts {
        drifted += drift.kappa_a.powi(2) + drift.kappa_x.powi(2) + 2.0 * drift.bias_squared;
        learnt += drift.local_squared;
    }
    let excess = if drifted > learnt { (drifted / learnt - 1.0).min(MOST) } else { 0.0 };
    let steps = (excess * f64::from(local)).round() as u32;
    steps.max(1)
}

/// Where, from 0 to 1, a parabola through the losses at 0, ½ and 1 is lowest.
pub fn lowest([start, half, end]: [f64; 3]) -> f64 {
    let curvature = start - 2.0 * half + end;
    if curvature > 0.0 {
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

    fn drift(kappa_a: f64, local_squared: f64) -> Drift {
        Drift { kappa_a, kappa_x: 0.0, bias_squared: 0.0, local_squared }
    }

    #[test]
    fn with_more_drift_more_is_corrected() {
        let steps = |kappa: f64| wanted([drift(kappa, 1.0)].iter(), 10);
        assert_eq!([0.0, 1.0, 1.5, 100.0].map(steps), [1, 1, 13, 30]);
    }

    #[test]
    fn without_progress_drift_is_all_there_is() {
        assert_eq!(wanted([].iter(), 10), 1);
        assert_eq!(wanted([drift(0.0, 0.0)].iter(), 10), 1);
        assert_eq!(wanted([drift(1.0, 0.0)].iter(), 10), 30);
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
    }
}
