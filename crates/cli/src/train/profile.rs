//! The profile of a training run for the scheduler: a job whose iterations are rounds.

use hither_core::record::train::RunRecord;
use hither_gnn::mode::{Corrects, Mode};
use hither_sched::job::Profile;

/// Smallest compute time that the scheduler accepts.
const COMPUTE_MIN_S: f64 = 1e-9;

/// `threads` is the number of threads that the workers shared on this machine.
pub fn profile(mode: Mode, record: &RunRecord, threads: usize) -> Profile {
    let RunRecord { header, rounds, summary } = record;
    let workers = f64::from(header.parts.max(1));
    let mean = |sum: f64| sum / rounds.len().max(1) as f64;
    // Scaled to one thread per worker and one for the server.
    let worker_s = mean(summary.time.local_s) * threads as f64 / workers;
    let server_s = mean(summary.time.server_s) * threads as f64;
    // Workers wait for the server unless it corrects meanwhile.
    let is_hidden = mode.does().corrects == Corrects::Meanwhile;
    let compute_s = if is_hidden { worker_s.max(server_s) } else { worker_s + server_s };
    let bytes = rounds.iter().map(|round| &round.bytes);
    let down_bytes: u64 = bytes.map(|b| b.model_down_bytes + b.features_down_bytes).sum();
    let steps: u64 = rounds.iter().map(|round| u64::from(round.local_steps)).sum();
    Profile {
        // Traces are CSV, so names must not hold commas.
        name: format!("{}@{}", header.model.replace(',', "-"), header.dataset),
        compute_s: compute_s.max(COMPUTE_MIN_S),
        gradient_bytes: mean(down_bytes as f64) / workers,
        backward_share: Profile::default_backward_share(),
        // A model is sent after its last step, so no compute overlaps with it.
        overlap: 0.0,
        restart_s: Profile::default_restart_s(),
        skew: 0.0,
        table: vec![],
        source: format!(
            "hither train: mode {}, {} parts; an iteration is a round of {:.1} local steps, on one \
             thread per worker, and of the server's {:.1} steps, {server_s:.3} s on one thread",
            mode.name(),
            header.parts,
            mean(steps as f64),
            mean(summary.server_steps as f64),
        ),
    }
}
