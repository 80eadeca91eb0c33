//! The profile of a training run for the scheduler: a job whose iterations are rounds.

use std::collections::BTreeMap;

use hither_core::Seconds;
use hither_core::record::train::{RunRecord, Times};
use hither_gnn::mode::Mode;
use hither_sched::job::{Measured, Profile};
use serde::Serialize;

/// Smallest compute time that the scheduler accepts.
const COMPUTE_MIN_S: f64 = 1e-9;

/// One rank of a job, in ranks.json: figures from the start, or resumption, of the run.
#[derive(Debug, Default, Serialize)]
pub struct RankReport {
    pub rank: usize,
    /// Numbers of its parts; none: the server.
    pub parts: Vec<usize>,
    pub host: String,
    /// The switches above the host and the host, as far as Slurm says.
    pub place: String,
    /// The graph, features and labels that it works on. They are mapped, not copied.
    pub data_bytes: u64,
    /// The most memory that was in use, with the pages of mapped files; `null` if the rank did not say.
    pub peak_bytes: Option<u64>,
    pub busy_s: Seconds,
    pub received_bytes: u64,
    pub sent_bytes: u64,
}

/// What the job of a run is called: modes differ in what they send. Traces are CSV, so names must not hold
/// commas.
pub fn job_name(layers: &str, dataset: &str, mode: &str) -> String {
    format!("{}@{dataset}:{mode}", layers.replace(',', "-"))
}

/// The job that a run was. Over several ranks its times and the placement are measured; else they are
/// scaled to one thread per worker and one for the server, which shared `threads` on this machine.
pub fn profile(record: &RunRecord, threads: usize, ranks: Option<&[RankReport]>) -> Profile {
    let RunRecord { header, rounds, summary } = record;
    let workers = f64::from(header.parts.max(1));
    let mean = |sum: f64| sum / rounds.len().max(1) as f64;
    let Times { local_s, exposed_s, server_s, .. } = summary.time;
    let (worker_s, server_s) = match ranks {
        Some(_) => (mean(local_s - exposed_s), mean(server_s)),
        None => (mean(local_s) * threads as f64 / workers, mean(server_s) * threads as f64),
    };
    let round_s = match header.mode.parse() {
        // The server corrects while the workers learn.
        Ok(Mode::LlcgStale) => worker_s.max(server_s),
        // The workers wait for the server.
        _ => worker_s + server_s,
    };
    let bytes = rounds.iter().map(|round| &round.bytes);
    let down_bytes: u64 = bytes.map(|b| b.model_down_bytes + b.features_down_bytes).sum();
    let steps: u64 = rounds.iter().map(|round| u64::from(round.local_steps)).sum();
    Profile {
        name: job_name(&header.model, &header.dataset, &header.mode),
        compute_s: round_s.max(COMPUTE_MIN_S),
        gradient_bytes: mean(down_bytes as f64) / workers,
        backward_share: Profile::default_backward_share(),
        // A model is sent after its last step, so no compute overlaps with it.
        overlap: 0.0,
        restart_s: Profile::default_restart_s(),
        restart_gpu_s: 0.0,
        checkpoint_bytes: 0.0,
        skew: 0.0,
        table: ranks.map(|ranks| measured(ranks, round_s + mean(exposed_s))).into_iter().collect(),
        source: format!(
            "hither train: mode {}, {} parts; an iteration is a round of {:.1} local steps and {:.1} \
             server steps; {}, and the server takes {server_s:.3} s of the round",
            header.mode,
            header.parts,
            mean(steps as f64),
            mean(summary.server_steps as f64),
            match ranks {
                Some(ranks) => format!("measured over {} ranks", ranks.len()),
                None => "workers and server have one thread each".into(),
            }
        ),
    }
}

/// The time of a round with the ranks where they were.
fn measured(ranks: &[RankReport], step_s: Seconds) -> Measured {
    let mut by_host = BTreeMap::<&str, u32>::new();
    for rank in ranks {
        *by_host.entry(&rank.host).or_default() += 1;
    }
    let mut placement: Vec<u32> = by_host.into_values().collect();
    placement.sort_unstable_by(|a, b| b.cmp(a));
    Measured { placement, step_s }
}

#[cfg(test)]
mod tests {
    use hither_core::record::train::{Bytes, CriticalPath, Header, Round, Setup, Summary, Works};

    use super::*;

    /// Two rounds, each with 1 s of local steps and 2 s of server steps.
    fn record(mode: Mode) -> RunRecord {
        let time = Times { local_s: 1.0, exposed_s: 0.25, server_s: 2.0, evaluate_s: 0.5 };
        let bytes = Bytes { model_down_bytes: 400, model_up_bytes: 400, ..Bytes::default() };
        let round = |round: u32| Round {
            round,
            local_steps: 10,
            kept: 1.0,
            server_steps: 3,
            server_batch: Some(256),
            loss: 1.0,
            valid: None,
            test: None,
            further: Default::default(),
            bytes,
            gain: None,
            work: Works::default(),
            path: CriticalPath::default(),
            time,
        };
        let header = Header {
            hither: String::new(),
            dataset: "graph".into(),
            nodes: 1,
            edges: 1,
            features: 1,
            classes: 1,
            metric: "accuracy".into(),
            mode: mode.name().into(),
            model: "sage,sage".into(),
            parameters: 1,
            parts: 4,
            partition: "metis".into(),
            cut_share: 0.1,
            rounds: 2,
            seed: 0,
        };
        let total = Times { local_s: 2.0, exposed_s: 0.5, server_s: 4.0, evaluate_s: 1.0 };
        let summary = Summary {
            mode: mode.name().into(),
            seed: 0,
            rounds: 2,
            best_round: 1,
            valid: Some(0.5),
            test: 0.5,
            server_steps: 6,
            bytes,
            work: Works::default(),
            path: CriticalPath::default(),
            time: total,
            setup: Setup::default(),
            classes: vec![],
        };
        RunRecord { header, rounds: vec![round(1), round(2)], summary }
    }

    #[test]
    fn the_server_counts_unless_it_works_beside_the_workers() {
        // On 2 threads: 4 workers took 2 thread-seconds, half a second each; the server took 4.
        assert_eq!(profile(&record(Mode::Llcg), 2, None).compute_s, 0.5 + 4.0);
        assert_eq!(profile(&record(Mode::LlcgStale), 2, None).compute_s, 4.0);
        assert_eq!(profile(&record(Mode::Llcg), 2, None).gradient_bytes, 100.0);
    }

    #[test]
    fn over_ranks_all_is_as_measured() {
        let rank = |host: &str| RankReport { host: host.into(), ..RankReport::default() };
        let ranks = ["b", "a", "b", "c", "b"].map(rank);
        let profile = profile(&record(Mode::Llcg), 2, Some(&ranks));
        assert_eq!(profile.compute_s, 0.75 + 2.0);
        assert_eq!(profile.table, [Measured { placement: vec![3, 1, 1], step_s: 3.0 }]);
    }
}
