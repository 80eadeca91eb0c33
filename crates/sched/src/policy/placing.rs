//! Where policies that plan anew put the jobs that they have chosen.

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Placement, PoolId};
use crate::forecast::Forecast;
use crate::state::JobState;

/// How close together a policy keeps the GPUs of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placing {
    /// Models with a skewed tensor as close together as the free GPUs allow, the others on the first
    /// GPUs that are free. This is Tiresias' rule.
    Skew,
    /// All jobs as close together as the free GPUs allow.
    #[default]
    Close,
    /// All jobs in one place of the lowest tier that could ever hold them, or not at all.
    Strict,
    /// Jobs that a wider tier would slow, by their profile, as `strict`; the others as `close`.
    ByProfile,
}

/// Largest tensor's share of the gradient from which a model counts as skewed.
const SKEWED: f64 = 0.5;
/// How much longer an iteration takes at the widest tier for a job that counts as slowed.
const SLOWED: f64 = 1.05;

impl Placing {
    /// Whether it may turn down free GPUs, so that counting them does not tell who can start.
    pub fn may_decline(self) -> bool {
        matches!(self, Self::Strict | Self::ByProfile)
    }

    /// Whether the job takes its best tier or nothing.
    pub fn is_strict(self, forecast: &Forecast, job: &JobState) -> bool {
        match self {
            Self::Skew | Self::Close => false,
            Self::Strict => true,
            Self::ByProfile => forecast.sensitivity(job) >= SLOWED,
        }
    }

    /// Where the job goes on free GPUs of the pool.
    pub fn place(
        self,
        forecast: &Forecast,
        cluster: &Cluster,
        job: &JobState,
        pool: PoolId,
    ) -> Option<Placement> {
        let gang = job.demand();
        if self == Self::Skew && job.job.profile.skew < SKEWED {
            cluster.first_fit(gang, pool)
        } else if self.is_strict(forecast, job) {
            cluster.place_at(gang, pool, job.best)
        } else {
            cluster.best_offer(gang, Some(pool))
        }
    }
}
