//! How the server talks to its workers: one order out, one answer back from each.
//!
//! [`Workers`] is all that the trainer knows of where workers run. [`Threads`] has them in this
//! process, [`Processes`] in others, each of which has some of them in threads. Only the messages of
//! [`wire`] are sent: what a run is asked for, orders and answers. Parts are on both sides from the start.

pub mod mpi;
mod pauses;
#[cfg(feature = "mpi")]
mod pending;
mod processes;
mod threads;
pub mod wire;
mod worker;

pub use processes::{Channel, Framed, Home, Processes, serve};
pub use threads::Threads;
pub use worker::Worker;

use std::ops::Range;
use std::path::Path;

use hither_core::Seconds;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::local::Learnt;
use crate::model::Weights;
use crate::update::Change;

/// What every worker is told in a round.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// From 1.
    pub round: u32,
    /// Steps to take.
    pub steps: u32,
    /// The global model, from which the steps begin.
    pub start: &'a Weights,
}

/// What a worker gives back.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The number of its part.
    pub part: usize,
    /// The model has no parameters if `change` has them.
    pub learnt: Learnt,
    /// The change of the parameters since the order, if that is sent in place of the parameters.
    pub change: Option<Change>,
}

/// What the server knows of a part before the first round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFacts {
    /// Training nodes: the weight of the part's model in the average.
    pub train_nodes: usize,
    /// Its graph, features and labels.
    pub bytes: u64,
}

/// Where a process of workers runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessFacts {
    pub host: String,
    /// The switches above the host, from the top, and the host: `spine.rack1.node7`; the host alone if
    /// nothing else is known.
    pub place: String,
    /// The instruction set of its kernels, which decides the last bits of products.
    pub isa: String,
}

/// What a process of workers exchanged with others of its kind: features, and requests for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerTraffic {
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Time in which its workers waited for features, summed over them.
    pub waited_s: Seconds,
}

/// What was measured of one process of workers, from the first round to now.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessReport {
    pub facts: ProcessFacts,
    pub parts: Range<usize>,
    /// Time in which its workers computed.
    pub busy_s: Seconds,
    /// All messages from the server to it and back.
    pub down_bytes: u64,
    pub up_bytes: u64,
    pub peers: PeerTraffic,
    /// The most memory that it has had; `None` if it did not say.
    pub peak_bytes: Option<u64>,
}

/// All workers of a run, seen from the server.
pub trait Workers: Send {
    /// One entry per worker, in the order of the parts.
    fn parts(&self) -> &[PartFacts];

    /// Gives the order to every worker, does `meanwhile` on the server's side, and returns the
    /// answers in the order of the parts.
    fn round(
        &mut self,
        order: &Order,
        meanwhile: &mut (dyn FnMut() + Send),
    ) -> Result<Vec<Answer>, Error>;

    /// Has every worker write its state to its own file in `folder`. `run` names the run, `round` the last
    /// finished round.
    fn save(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error>;

    /// Has every worker read the state that it wrote after `round`.
    fn restore(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error>;

    /// The time of the last round in which neither the slowest process nor the server computed.
    fn exposed_s(&self) -> Seconds {
        0.0
    }

    /// One entry per process, if workers run in others.
    fn report(&mut self) -> Result<Vec<ProcessReport>, Error> {
        Ok(vec![])
    }
}
