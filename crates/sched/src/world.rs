//! The truth of a simulation: how long jobs really are and how far they have really come. The
//! scheduler is told of each job only what [`Beliefs`] let it know.

use std::str::FromStr;
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_core::seed::stream;
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::forecast::Estimate;
use crate::job::{Job, JobId, Length, Profile};
use crate::network::Network;
use crate::state::{Checkpoints, Pace};

/// What the scheduler is told of jobs. Policies that are clairvoyant by definition are told the
/// truth whatever these say.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Beliefs {
    pub lengths: Lengths,
    /// Profiles are wrong by a factor whose logarithm has this standard deviation.
    pub profile_error: f64,
    /// Whether it is told any profile at all.
    pub profiles: bool,
    /// Whether it is told of background traffic.
    pub congestion: bool,
}

/// What the scheduler is told of how long jobs are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lengths {
    Known,
    Unknown,
    /// Wrong by a factor whose logarithm has this standard deviation.
    Noisy(f64),
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let noisy = |text: &str| {
            text.strip_prefix("noisy:")?.parse().ok().filter(|f| (0.0..=ERROR_MAX).contains(f))
        };
        match text {
            "known" => Ok(Self::Known),
            "unknown" => Ok(Self::Unknown),
            _ => noisy(text).map(Self::Noisy).ok_or_else(|| {
                format!("expected known, unknown or noisy:F with F from 0 to {ERROR_MAX}")
            }),
        }
    }
}

/// The largest error: one standard deviation is a factor of about 20,000.
pub const ERROR_MAX: f64 = 10.0;

impl Default for Beliefs {
    fn default() -> Self {
        Self { lengths: Lengths::Known, profile_error: 0.0, profiles: true, congestion: true }
    }
}

impl Beliefs {
    /// Whether the scheduler is told nothing but the truth.
    pub fn are_true(&self) -> bool {
        *self == Self::default()
    }

    /// The job as the scheduler is told of it. `iterations` is its true length. The errors depend on
    /// the seed and the job's name alone, so that every policy is told the same.
    fn told_of(&self, job: &Job, iterations: f64, seed: u64) -> Job {
        let rng = &mut stream(seed, &format!("beliefs about job {}", job.name));
        let mut factor = |sigma: f64| -> f64 {
            let draw: f64 = StandardNormal.sample(rng);
            (sigma * draw).exp()
        };
        let length = match self.lengths {
            Lengths::Known => Length::Iterations(iterations),
            Lengths::Unknown => Length::Unknown,
            Lengths::Noisy(sigma) => Length::Iterations(iterations * factor(sigma)),
        };
        let profile = match self.profiles {
            true if self.profile_error == 0.0 => job.profile.clone(),
            true => {
                let mut profile = Profile::clone(&job.profile);
                let slower = factor(self.profile_error);
                profile.compute_s *= slower;
                profile.table.iter_mut().for_each(|row| row.step_s *= slower);
                profile.gradient_bytes *= factor(self.profile_error);
                Arc::new(profile)
            }
            false => Arc::new(Profile::unknown(&job.profile)),
        };
        Job { length, profile, ..job.clone() }
    }
}

/// What is true of one job.
#[derive(Debug, Clone)]
pub struct Truth {
    pub job: Arc<Job>,
    pub iterations: f64,
    /// Iteration time at the best and at the widest tier on an idle network.
    pub iteration_s: [Seconds; 2],
    /// Iterations that survive a stop.
    pub done: f64,
    pub pace: Option<Pace>,
}

impl Truth {
    /// What the whole job takes at its best place on an idle network.
    pub fn ideal_s(&self) -> Seconds {
        self.iterations * self.iteration_s[0]
    }

    pub fn done_at(&self, now: Seconds) -> f64 {
        self.pace.map_or(self.done, |pace| pace.done_at(now, self.iterations))
    }
}

/// The truth about all jobs of a simulation.
#[derive(Debug)]
pub struct World {
    /// The truth of each job, by its id.
    pub jobs: Vec<Truth>,
    beliefs: Beliefs,
    seed: u64,
    checkpoints: Checkpoints,
}

impl World {
    pub fn new(beliefs: Beliefs, seed: u64, checkpoints: Checkpoints) -> Self {
        Self { jobs: Vec::new(), beliefs, seed, checkpoints }
    }

    /// The next job is there. Returns what the scheduler is told of it.
    pub fn submit(&mut self, job: &Arc<Job>, cluster: &Cluster, network: &Network) -> Arc<Job> {
        let estimate = Estimate::new(job, cluster, network).expect("it was admitted");
        let [best, .., widest] = estimate.iteration_s.expect("traces have profiles");
        let iterations = estimate.iterations;
        let iteration_s = [best, widest];
        self.jobs.push(Truth { job: job.clone(), iterations, iteration_s, done: 0.0, pace: None });
        match self.beliefs.are_true() {
            true => job.clone(),
            false => Arc::new(self.beliefs.told_of(job, iterations, self.seed)),
        }
    }

    pub fn job(&self, id: JobId) -> &Truth {
        &self.jobs[id as usize]
    }

    /// The job begins its iterations at this moment, when it has restarted.
    pub fn start(&mut self, id: JobId, begin_s: Seconds) {
        let truth = &mut self.jobs[id as usize];
        truth.pace = Some(Pace::new(begin_s, truth.done));
    }

    /// The job goes at this rate from now on. Returns when it has done its last iteration.
    pub fn set_rate(&mut self, id: JobId, now: Seconds, rate: f64) -> Seconds {
        let truth = &mut self.jobs[id as usize];
        let done = truth.done_at(now);
        let pace = truth.pace.as_mut().expect("it runs");
        pace.change(now, done, rate, self.checkpoints.interval_s, truth.iterations);
        pace.since_s + (truth.iterations - pace.done) / rate
    }

    /// The job stops. Returns the iterations that it keeps.
    pub fn stop(&mut self, id: JobId, now: Seconds, reason: Reason) -> f64 {
        let truth = &mut self.jobs[id as usize];
        if let Some(pace) = truth.pace.take() {
            truth.done = match self.checkpoints.keeps_all(reason) {
                true => pace.done_at(now, truth.iterations),
                false => pace.checkpointed_at(now, self.checkpoints.interval_s, truth.iterations),
            };
        }
        truth.done
    }
}
