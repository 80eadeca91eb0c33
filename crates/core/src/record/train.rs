//! What a training run writes: a header, one row per round, and a summary.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Seconds;

/// What was trained, on what, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the program that wrote the record.
    pub hither: String,
    pub dataset: String,
    pub nodes: u64,
    pub edges: u64,
    pub features: u64,
    pub classes: u64,
    /// Name of the score, such as accuracy or recall@20.
    pub metric: String,
    pub mode: String,
    pub model: String,
    pub parameters: u64,
    pub parts: u32,
    /// Partitioning method, and the share of edges that it cut.
    pub partition: String,
    pub cut_share: f64,
    pub rounds: u32,
    pub seed: u64,
}

/// One round. Bytes are what would cross a network, summed over all workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub round: u32,
    /// Steps of each worker.
    pub local_steps: u32,
    /// Share of the way from the old global model to the workers' average that was taken, 0 to 1.
    pub kept: f64,
    pub server_steps: u32,
    /// Training nodes of each of the server's steps; `None`: all, on the whole graph.
    pub server_batch: Option<usize>,
    /// Mean loss over the round's local steps, or the server's if there were none.
    pub loss: f64,
    /// Scores on the whole graph with all neighbours; `None` in rounds without evaluation.
    pub valid: Option<f64>,
    pub test: Option<f64>,
    /// Further scores, such as `test_ndcg@20`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub further: BTreeMap<String, f64>,
    #[serde(flatten)]
    pub bytes: Bytes,
    /// Share by which the server's steps lowered the loss of held-back training nodes, below 0 if they
    /// raised it; `None` in rounds that did not compare.
    pub gain: Option<f64>,
    pub work: Works,
    pub path: CriticalPath,
    #[serde(flatten)]
    pub time: Times,
}

/// Traffic of a round, by direction, seen from the workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Models to workers.
    pub model_down_bytes: u64,
    /// Models from workers.
    pub model_up_bytes: u64,
    /// Features of nodes that other workers hold.
    pub features_down_bytes: u64,
    /// Ids of the nodes whose features were requested.
    pub requests_up_bytes: u64,
}

impl Bytes {
    pub fn total(&self) -> u64 {
        self.model_down_bytes
            + self.model_up_bytes
            + self.features_down_bytes
            + self.requests_up_bytes
    }

    pub fn add(&mut self, other: &Self) {
        self.model_down_bytes += other.model_down_bytes;
        self.model_up_bytes += other.model_up_bytes;
        self.features_down_bytes += other.features_down_bytes;
        self.requests_up_bytes += other.requests_up_bytes;
    }
}

/// Multiply–adds, counted from the shapes of batches and layers, never timed. The two kinds run at
/// very different speeds, so they are kept apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Sums over rows, of neighbours or of the entries of sparse features, and optimiser steps: as
    /// fast as memory.
    pub sums: u64,
    /// Dense products: as fast as arithmetic.
    pub products: u64,
}

impl Work {
    pub fn sums(count: usize, dim: usize) -> Self {
        Self { sums: count as u64 * dim as u64, products: 0 }
    }

    pub fn products(rows: usize, inputs: usize, outputs: usize) -> Self {
        Self { sums: 0, products: rows as u64 * inputs as u64 * outputs as u64 }
    }

    pub fn total(&self) -> u64 {
        self.sums + self.products
    }
}

impl std::ops::Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { sums: self.sums + other.sums, products: self.products + other.products }
    }
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Work {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), std::ops::Add::add)
    }
}

/// Work of a round, by who does it and what for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Works {
    /// Local steps of all workers together.
    pub workers: Work,
    /// Local steps of the worker that takes longest.
    pub slowest: Work,
    /// The server's steps.
    pub server: Work,
    /// Comparing losses to decide what is kept.
    pub judge: Work,
    /// Scoring on the whole graph; it is in no critical path, because nobody waits for scores.
    pub evaluate: Work,
}

impl Works {
    pub fn add(&mut self, other: &Self) {
        self.workers += other.workers;
        self.slowest += other.slowest;
        self.server += other.server;
        self.judge += other.judge;
        self.evaluate += other.evaluate;
    }

    /// The server's share of the multiply–adds of a run, judging included; 0 if there are none.
    pub fn server_share(&self) -> f64 {
        let server = (self.server + self.judge).total() as f64;
        let all = server + self.workers.total() as f64;
        if all > 0.0 { server / all } else { 0.0 }
    }
}

/// The machine and the link that turn counts into seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Multiply–adds per second in sums and in products.
    pub sums_per_s: f64,
    pub products_per_s: f64,
    pub link_bytes_per_s: f64,
}

impl Machine {
    pub fn seconds(&self, work: Work) -> Seconds {
        work.sums as f64 / self.sums_per_s + work.products as f64 / self.products_per_s
    }

    pub fn transfer_s(&self, bytes: u64) -> Seconds {
        bytes as f64 / self.link_bytes_per_s
    }
}

/// The time of a round if every worker and the server had a machine of its own: computed from
/// counted work and bytes, so that equal runs agree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CriticalPath {
    /// The worker that takes longest, with the features that it fetches.
    pub workers_s: Seconds,
    /// Models to all workers and back, through the server's one link.
    pub transfer_s: Seconds,
    /// What the server does while nobody else works.
    pub server_s: Seconds,
}

impl CriticalPath {
    pub fn total(&self) -> Seconds {
        self.workers_s + self.transfer_s + self.server_s
    }

    pub fn add(&mut self, other: &Self) {
        self.workers_s += other.workers_s;
        self.transfer_s += other.transfer_s;
        self.server_s += other.server_s;
    }
}

/// Wall-clock times: the only figures that differ between equal runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Local steps of all workers, on this machine's threads or in other processes.
    pub local_s: Seconds,
    /// The part of `local_s` in which neither a worker nor the server computed: messages between
    /// processes that nothing hides.
    pub exposed_s: Seconds,
    pub server_s: Seconds,
    pub evaluate_s: Seconds,
}

impl Times {
    pub fn add(&mut self, other: &Self) {
        self.local_s += other.local_s;
        self.exposed_s += other.exposed_s;
        self.server_s += other.server_s;
        self.evaluate_s += other.evaluate_s;
    }

    pub fn total(&self) -> Seconds {
        self.local_s + self.server_s + self.evaluate_s
    }
}

/// Figures of the model with the best validation score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub mode: String,
    pub seed: u64,
    pub rounds: u32,
    pub best_round: u32,
    /// `None` without validation nodes or links; the last round then counts as the best.
    pub valid: Option<f64>,
    pub test: f64,
    pub server_steps: u64,
    /// Traffic of the whole run.
    pub bytes: Bytes,
    pub work: Works,
    pub path: CriticalPath,
    pub time: Times,
    /// What was done once, before the first round; in no other figure but `bytes`.
    #[serde(default)]
    pub setup: Setup,
    /// Test nodes by class. Empty if a node can have several labels, or if the run kept no files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassScore>,
}

/// What a run does once, before its first round.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Measured time of partitioning, probes included; 0 if the dataset came in parts.
    pub partition_s: Seconds,
    /// Copies of remote nodes that are sent to workers.
    pub bytes: u64,
    /// Work of the probes that chose the partition.
    pub probe: Work,
    /// Computed: the probes on one machine, and the copies through its link.
    pub path_s: Seconds,
    /// The partitions that were tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probed: Vec<Probed>,
}

/// How far workers on some parts pull from where the whole graph does: squared lengths of gradients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    pub partition: String,
    /// What cut edges do to the workers' mean.
    pub cut: f64,
    /// How differently the parts pull.
    pub uneven: f64,
}

/// The test nodes of one class, classified by the model with the best validation score.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassScore {
    pub name: String,
    /// Test nodes with this label.
    pub nodes: u64,
    /// Those of them that were given this class.
    pub correct: u64,
    /// Test nodes that were given this class, whatever their label.
    pub predicted: u64,
}

/// Everything that one run wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    pub header: Header,
    pub rounds: Vec<Round>,
    pub summary: Summary,
}
