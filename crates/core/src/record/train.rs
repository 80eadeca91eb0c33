//! What a training run writes: a header, one row per round, and a summary.

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
    /// Name of the score: accuracy, roc-auc or f1-micro.
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
    /// Mean loss over the round's local steps, or the server's if there were none.
    pub loss: f64,
    /// Scores on the whole graph with all neighbours; `None` in rounds without evaluation.
    pub valid: Option<f64>,
    pub test: Option<f64>,
    #[serde(flatten)]
    pub bytes: Bytes,
    /// `None` in rounds that measured no drift.
    pub drift: Option<Drift>,
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

/// How far the workers' gradients at the global model differ from those of the whole graph.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// κA: gradient error caused by cut edges; the largest over workers.
    pub kappa_a: f64,
    /// κX: gradient error caused by parts with other data than the whole; the largest over workers.
    pub kappa_x: f64,
    /// σ²: squared gradient error caused by sampling neighbours; mean over workers.
    pub bias_squared: f64,
    /// Mean squared norm of the local gradients.
    pub local_squared: f64,
}

/// Wall-clock times: the only figures that differ between equal runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Local steps of all workers, on this machine's threads.
    pub local_s: Seconds,
    pub server_s: Seconds,
    /// Time spent measuring drift.
    pub probe_s: Seconds,
    pub evaluate_s: Seconds,
}

impl Times {
    pub fn add(&mut self, other: &Self) {
        self.local_s += other.local_s;
        self.server_s += other.server_s;
        self.probe_s += other.probe_s;
        self.evaluate_s += other.evaluate_s;
    }

    pub fn total(&self) -> Seconds {
        self.local_s + self.server_s + self.probe_s + self.evaluate_s
    }
}

/// Figures of the model with the best validation score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub mode: String,
    pub seed: u64,
    pub rounds: u32,
    pub best_round: u32,
    pub valid: f64,
    pub test: f64,
    pub server_steps: u64,
    /// Traffic of the whole run.
    pub bytes: Bytes,
    pub time: Times,
}

/// Everything that one run wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    pub header: Header,
    pub rounds: Vec<Round>,
    pub summary: Summary,
}
