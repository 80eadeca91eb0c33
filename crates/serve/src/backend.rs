//! What computes a model's scores. The server holds it as `dyn Backend` and knows nothing else of models.

use std::time::Duration;

pub use hither_dlrm::run::{Threads, Worker};

use crate::inputs::{Features, Signature};
use crate::memory::Share;

pub trait Backend: Send + Sync {
    /// The tensors that the model takes and returns.
    fn signature(&self) -> &Signature;

    /// Scores all samples of some requests as one batch; `scores` is [samples of all requests, outputs].
    /// A request that fails has its reason in `results` and changes nothing in the others. Runs on this
    /// thread with `worker`; idle ones of `threads` may help.
    fn run(
        &self,
        batch: &[&Features],
        scores: &mut [f32],
        results: &mut [Result<(), Failure>],
        worker: &mut Worker,
        threads: &Threads,
    ) -> Done;

    /// Bytes of tables that are to be copied into memory once the model serves.
    fn copy_bytes(&self) -> u64;

    /// Copies them, while requests run.
    fn copy(&self, memory: Share) -> Result<(), String>;

    /// The last step before tables are in place, with copies or without: trying how rows are read fastest.
    fn tune(&self) -> Result<(), String>;
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Ids for which the nearest row was taken.
    pub clamped: u64,
    /// Time in the bottom layers, the tables, and the interaction with the top layers, summed over threads.
    pub stages: [Duration; 3],
}

/// Why a request has no scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request is wrong.
    Request(String),
    /// The backend failed, and may work again.
    Backend(String),
    /// The device is gone: no request will succeed until the model is loaded anew.
    Lost(String),
}
