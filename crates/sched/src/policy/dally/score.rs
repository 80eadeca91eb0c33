//! Who has the better claim to GPUs. The paper's formula is not published; these are ours to choose
//! from. A lower claim value goes first.

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::forecast::Forecast;
use crate::state::{Claim, JobState};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Score {
    /// GPUs × time held, as in Tiresias.
    #[serde(rename = "2d-las")]
    TwoDLas,
    /// GPUs × the time that the job still needs, as forecast: for clusters whose users tell lengths, even
    /// wrong ones. What others needed says too little for it.
    Left,
}

impl Score {
    pub fn claim(self, job: &JobState, forecast: &Forecast, now: Seconds) -> Claim {
        let gpus = f64::from(job.gpus());
        Claim::by(match self {
            Score::TwoDLas => gpus * job.held_at(now),
            Score::Left => gpus * forecast.left_s(job, now),
        })
    }
}
