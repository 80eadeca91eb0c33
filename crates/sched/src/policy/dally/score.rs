//! Who has the better claim to GPUs. The paper's formula is not published; these are ours to choose
//! from. A lower claim value goes first.

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::forecast::Forecast;
use crate::state::JobState;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Score {
    /// GPUs × useful computing time so far: time lost to the network is not charged, so jobs that
    /// the network slows keep their priority. On a free network this is 2D-LAS.
    UsefulService,
    /// Useful computing time over time held: the most slowed first.
    Slowdown,
    /// Iteration time at the best tier over that at the worst: the most sensitive first.
    Sensitivity,
    /// GPUs × time held, as in Tiresias.
    #[serde(rename = "2d-las")]
    TwoDLas,
    /// GPUs × the time that the job still needs, as forecast: for clusters whose users tell lengths, even
    /// wrong ones. What others needed says too little for it.
    Left,
}

impl Score {
    pub fn claim(self, job: &JobState, forecast: &Forecast, now: Seconds) -> f64 {
        let gpus = f64::from(job.gpus());
        match self {
            Score::UsefulService => gpus * job.useful_at(now),
            Score::Slowdown => job.useful_at(now) / job.held_at(now).max(1.0),
            Score::Sensitivity => 1.0 / forecast.sensitivity(job),
            Score::TwoDLas => gpus * job.held_at(now),
            Score::Left => gpus * forecast.left_s(job, now),
        }
    }
}
