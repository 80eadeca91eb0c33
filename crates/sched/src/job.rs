//! What is submitted: a rigid gang of GPUs, a profile of what an iteration costs, and a length.

use std::sync::Arc;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

/// Index of a job in its workload; drivers number jobs in order of arrival.
pub type JobId = u32;

/// A job as it was submitted. It runs on all of its GPUs or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its id in the trace or on the cluster.
    pub name: String,
    pub user: String,
    pub gpus: u32,
    #[serde(default)]
    pub terms: Terms,
    /// None: any type will do, but never a mixture of types.
    pub gpu_type: Option<String>,
    pub submit_s: Seconds,
    pub length: Length,
    pub profile: Arc<Profile>,
}

impl Job {
    pub fn demand(&self) -> Demand {
        Demand { gpus: self.gpus, split: self.terms.split }
    }

    /// What is wrong with the job, whatever the cluster; `None`: nothing.
    pub fn flaw(&self) -> Option<&'static str> {
        let profile = &*self.profile;
        let Profile { backward_share, overlap, .. } = *profile;
        let amounts = [
            profile.compute_s,
            profile.gradient_bytes,
            profile.restart_s,
            profile.restart_gpu_s,
            profile.checkpoint_bytes,
        ];
        let split = self.terms.split;
        let is_amount = |value: f64| value.is_finite() && value >= 0.0;
        let is_share = |value: f64| (0.0..=1.0).contains(&value);
        let length_is_fine = match self.length {
            Length::Iterations(value) | Length::Seconds(value) => is_amount(value),
            Length::Unknown => true,
        };
        if self.gpus == 0 {
            Some("it wants no GPUs")
        } else if split.chunks_max == 0 || !self.gpus.is_multiple_of(split.chunk) {
            Some("its GPUs are not whole chunks")
        } else if !length_is_fine {
            Some("its length is not a number of at least 0")
        } else if !self.submit_s.is_finite() {
            Some("its time of submission is not a number")
        } else if !amounts.into_iter().all(is_amount) {
            Some("a figure of its profile is not a number of at least 0")
        } else if !(is_share(backward_share) && is_share(overlap)) {
            Some("a share of its profile is not between 0 and 1")
        } else if !self.profile.table.iter().all(|row| is_amount(row.step_s)) {
            Some("a measured step of its profile is not a number of at least 0")
        } else {
            None
        }
    }
}

/// What the user of a job insists on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    pub split: Split,
    /// Whether the job may be stopped and started again.
    pub preemptible: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self { split: Split::ANY, preemptible: true }
    }
}

/// CPUs and memory of a machine, or of a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Host {
    pub cpus: u32,
    pub memory_mb: u32,
}

impl Host {
    pub const NONE: Self = Self { cpus: 0, memory_mb: 0 };
    /// A machine of which only the GPUs are known: the rest never runs out.
    pub const UNKNOWN: Self = Self { cpus: u32::MAX, memory_mb: u32::MAX };

    pub fn plus(self, other: Self) -> Self {
        Self {
            cpus: self.cpus.saturating_add(other.cpus),
            memory_mb: self.memory_mb.saturating_add(other.memory_mb),
        }
    }

    pub fn minus(self, other: Self) -> Self {
        Self {
            cpus: self.cpus.saturating_sub(other.cpus),
            memory_mb: self.memory_mb.saturating_sub(other.memory_mb),
        }
    }

    pub fn times(self, count: u32) -> Self {
        Self {
            cpus: self.cpus.saturating_mul(count),
            memory_mb: self.memory_mb.saturating_mul(count),
        }
    }

    pub fn fits(self, free: Self) -> bool {
        self.cpus <= free.cpus && self.memory_mb <= free.memory_mb
    }

    /// How many parts of this size it holds.
    fn parts_of(self, part: Self) -> u32 {
        let fit = |has: u32, wants: u32| has.checked_div(wants).unwrap_or(u32::MAX);
        fit(self.cpus, part.cpus).min(fit(self.memory_mb, part.memory_mb))
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::NONE
    }
}

/// How a gang may be split over machines: each of them holds whole chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Split {
    /// GPUs that stay together on one machine.
    pub chunk: u32,
    /// Chunks that one machine holds at most.
    pub chunks_max: u32,
    /// What each chunk needs beside its GPUs.
    #[serde(default)]
    pub host: Host,
}

impl Split {
    /// Any number of GPUs on any machine.
    pub const ANY: Self = Self { chunk: 1, chunks_max: u32::MAX, host: Host::NONE };

    /// The same number of GPUs on every machine.
    pub const fn even(gpus_per_machine: u32) -> Self {
        Self { chunk: gpus_per_machine, chunks_max: 1, host: Host::NONE }
    }

    /// The same split of gangs that need nothing but GPUs.
    pub const fn shape(self) -> Self {
        Self { host: Host::NONE, ..self }
    }

    /// What a machine with so many of the gang's GPUs gives to it beside them.
    pub fn host_of(self, gpus: u32) -> Host {
        self.host.times(gpus / self.chunk.max(1))
    }

    /// Chunks that a machine holds which has so much free.
    pub fn chunks_on(self, gpus: u32, host: Host) -> u32 {
        self.chunks_in(gpus).min(host.parts_of(self.host))
    }

    /// Chunks that a machine with so many free GPUs holds.
    pub fn chunks_in(self, gpus: u32) -> u32 {
        (gpus / self.chunk.max(1)).min(self.chunks_max)
    }
}

impl Default for Split {
    fn default() -> Self {
        Self::ANY
    }
}

/// What decides where a gang of a GPU type fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Demand {
    pub gpus: u32,
    pub split: Split,
}

impl Demand {
    pub fn chunks(self) -> u32 {
        self.gpus / self.split.chunk.max(1)
    }

    /// Whether a machine with so many free GPUs holds the whole gang.
    pub fn fits_in(self, gpus: u32) -> bool {
        self.split.chunks_in(gpus) >= self.chunks()
    }
}

impl From<u32> for Demand {
    fn from(gpus: u32) -> Self {
        Self { gpus, split: Split::ANY }
    }
}

/// How much work a job is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    Iterations(f64),
    /// Running time at the job's best tier on an idle network, as traces record it.
    Seconds(Seconds),
    /// Nobody knows.
    Unknown,
}

/// What one iteration of a model costs. It is data: users write their own, training writes one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub name: String,
    /// Forward and backward pass of one iteration, without any communication. Zero: nobody knows
    /// what this model costs.
    pub compute_s: Seconds,
    /// Bytes that every worker contributes to the all-reduce of an iteration.
    #[serde(default)]
    pub gradient_bytes: f64,
    /// The part of `compute_s` that is the backward pass.
    #[serde(default = "Profile::default_backward_share")]
    pub backward_share: f64,
    /// The part of the backward pass behind which communication can hide, 0 to 1.
    #[serde(default = "Profile::default_overlap")]
    pub overlap: f64,
    /// Starting up and warming up, paid on every start but the first.
    #[serde(default = "Profile::default_restart_s")]
    pub restart_s: Seconds,
    /// What every GPU of the gang adds to that.
    #[serde(default)]
    pub restart_gpu_s: Seconds,
    /// Bytes of a checkpoint of the whole job, which the storage writes and reads.
    #[serde(default)]
    pub checkpoint_bytes: f64,
    /// The largest tensor's share of the gradient: Tiresias consolidates models with a large one.
    #[serde(default)]
    pub skew: f64,
    /// Measured iteration times; where present they take the place of the closed form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub table: Vec<Measured>,
    /// Where the figures come from.
    #[serde(default)]
    pub source: String,
}

/// One measured placement of a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// GPUs taken on each machine, largest first.
    pub placement: Vec<u32>,
    pub step_s: Seconds,
}

impl Profile {
    /// A model of which the name and the cost of a restart are all that is known.
    pub fn unknown(other: &Profile) -> Self {
        Self { compute_s: 0.0, gradient_bytes: 0.0, skew: 0.0, table: Vec::new(), ..other.clone() }
    }

    pub fn is_known(&self) -> bool {
        self.compute_s > 0.0
    }

    /// The same with restarts and checkpoints of so many times the cost.
    pub fn with_restarts(&self, times: f64) -> Self {
        Self {
            restart_s: self.restart_s * times,
            restart_gpu_s: self.restart_gpu_s * times,
            checkpoint_bytes: self.checkpoint_bytes * times,
            ..self.clone()
        }
    }

    pub const fn default_backward_share() -> f64 {
        2.0 / 3.0
    }
    pub const fn default_overlap() -> f64 {
        0.5
    }
    /// The mean that Tiresias' authors measured on their test bed.
    pub const fn default_restart_s() -> Seconds {
        62.0
    }
}
