//! Results of several runs with different seeds: means and standard deviations.

use hither_core::record::train::{Header, RunRecord, Summary, Works};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub mean: f64,
    /// Sample standard deviation (n − 1); None for a single run.
    pub std: Option<f64>,
}

impl Spread {
    pub fn from_values(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self { mean, std: (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt()) }
    }
}

/// Results over the runs of one mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub mode: String,
    /// Test score of the models with the best validation score.
    pub test: Spread,
    /// `None` without validation nodes or links.
    pub valid: Option<Spread>,
    pub best_round: Spread,
    /// Bytes per round to the workers and from them, all workers together.
    pub down_bytes_per_round: f64,
    pub up_bytes_per_round: f64,
    /// Bytes in both directions, of all rounds and of the setup before the first.
    pub total_bytes: f64,
    pub server_steps: f64,
    /// Multiply–adds of all steps, judging included, and the server's share of them.
    pub work: f64,
    pub server_share: f64,
    /// The critical path of a run, computed from counted work and bytes.
    pub path_s: f64,
    pub time_s: f64,
    /// Before the first round: measured time of partitioning, and computed time of probes and copies.
    pub partition_s: f64,
    pub setup_path_s: f64,
}

/// A finished run, without its rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinishedRun {
    pub header: Header,
    pub summary: Summary,
}

/// The output of `--json` for one mode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    #[serde(flatten)]
    pub figures: Figures,
    pub runs: Vec<FinishedRun>,
}

impl Outcome {
    pub fn from_runs(runs: &[RunRecord]) -> Self {
        let finished = |run: &RunRecord| FinishedRun {
            header: run.header.clone(),
            summary: run.summary.clone(),
        };
        Self { figures: Figures::from_runs(runs), runs: runs.iter().map(finished).collect() }
    }
}

impl Figures {
    fn from_runs(runs: &[RunRecord]) -> Self {
        let over = |of: &dyn Fn(&RunRecord) -> f64| Spread::from_values(runs.iter().map(of));
        let a_round = |of: &dyn Fn(&RunRecord) -> u64| {
            over(&|run| of(run) as f64 / run.rounds.len().max(1) as f64).mean
        };
        let valid: Option<Vec<f64>> = runs.iter().map(|run| run.summary.valid).collect();
        Self {
            mode: runs.first().map_or_else(String::new, |run| run.summary.mode.clone()),
            test: over(&|run| run.summary.test),
            valid: valid.map(|valid| Spread::from_values(valid.into_iter())),
            best_round: over(&|run| run.summary.best_round.into()),
            down_bytes_per_round: a_round(&|run| {
                let rounds = run.rounds.iter();
                rounds.map(|r| r.bytes.model_down_bytes + r.bytes.features_down_bytes).sum()
            }),
            up_bytes_per_round: a_round(&|run| {
                let rounds = run.rounds.iter();
                rounds.map(|r| r.bytes.model_up_bytes + r.bytes.requests_up_bytes).sum()
            }),
            total_bytes: over(&|run| run.summary.bytes.total() as f64).mean,
            server_steps: over(&|run| run.summary.server_steps as f64).mean,
            work: over(&|run| {
                let Works { workers, server, judge, .. } = run.summary.work;
                (workers + server + judge).total() as f64
            })
            .mean,
            server_share: over(&|run| run.summary.work.server_share()).mean,
            path_s: over(&|run| run.summary.path.total()).mean,
            time_s: over(&|run| run.summary.time.total()).mean,
            partition_s: over(&|run| run.summary.setup.partition_s).mean,
            setup_path_s: over(&|run| run.summary.setup.path_s).mean,
        }
    }
}
