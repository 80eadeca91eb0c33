//! Where policies that plan anew put the jobs that they have chosen.

use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, Placement};
use crate::event::Why;
use crate::forecast::Forecast;
use crate::job::JobId;
use crate::pass::Answer;
use crate::state::{JobState, State, Turn};

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

    /// Where a waiting job goes on the cluster, or a copy of it, if it does not decline what is free.
    pub fn find(self, state: &State, cluster: &Cluster, id: JobId) -> Option<Placement> {
        let job = state.job(id);
        let gang = job.demand();
        cluster.pools_for(job.pool).find_map(|pool| match self {
            Self::Skew if job.job.profile.skew < SKEWED => cluster.first_fit(gang, pool),
            _ if self.is_strict(&state.forecast, job) => cluster.place_at(gang, pool, job.best),
            _ => cluster.best_offer(gang, Some(pool)),
        })
    }

    /// A waiting job takes the place that [`Placing::find`] finds.
    pub fn answer(self, turn: &Turn, id: JobId) -> Answer {
        match self.find(&turn.state, &turn.state.cluster, id) {
            Some(place) => {
                let why = Why::Turn { tier: place.tier };
                Answer::Take(place, why)
            }
            None if self == Self::ByProfile => Answer::Wait,
            None => Answer::AllWait,
        }
    }
}
