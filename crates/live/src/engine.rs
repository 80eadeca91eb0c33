//! The wall between the driver and a real cluster. An engine tells what it sees and takes orders;
//! it keeps no books and decides nothing. Slurm is one; whatever can hold, place, requeue and
//! report jobs can be another.

use std::collections::BTreeMap;

use hither_core::Seconds;
use hither_core::topology::Topology;
use hither_sched::cluster::Status;
use hither_sched::event::End;
use hither_sched::job::Split;
use serde::{Deserialize, Serialize};

/// A job's id in the engine's own words: `123`, or `123_4` for a task of an array.
pub type Key = String;

/// What the cluster looks like at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    pub jobs: BTreeMap<Key, SeenJob>,
    /// Nodes of the managed partitions.
    pub nodes: BTreeMap<String, SeenNode>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeenJob {
    pub name: String,
    pub user: String,
    /// Whether the job is in a managed partition.
    pub managed: bool,
    pub stands: Stands,
    pub wants: Wants,
    /// The user's words about the job, such as its model.
    pub comment: String,
    /// Why it does not run, in the engine's words.
    pub reason: String,
    /// Nodes that it is bound to; empty: any.
    pub required: Vec<String>,
    /// GPUs that it holds, by node.
    pub holds: Vec<(String, u32)>,
    pub restarts: u32,
    /// Whether the engine may stop it and start it again.
    pub can_requeue: bool,
    /// Whether it may not start yet, whatever is free: a dependency or a begin time.
    pub is_early: bool,
    /// Unix time.
    pub submitted_s: Seconds,
    /// Unix time of the current run's start.
    pub started_s: Option<Seconds>,
    /// The longest that it may run.
    pub limit_s: Option<Seconds>,
}

/// Where a job stands in the engine's own records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stands {
    /// It waits, and the engine does not start it by itself.
    Held,
    /// It waits, and the engine starts it as soon as it can.
    Queued,
    /// It holds its GPUs and runs, or is suspended on them.
    Running,
    /// It is being ended or requeued and still holds its GPUs.
    Leaving,
    Over(End),
}

impl SeenJob {
    /// The order that leaves the job to the engine. Nodes that a user asked for stay: only jobs
    /// that Hither can place are ever bound by it.
    pub fn hand_over(&self, job: &Key) -> Order {
        let unbind = match &self.wants {
            Wants::Gpus { count, split, .. } if !self.required.is_empty() => {
                Some((count / split.chunk).div_ceil(split.chunks_max))
            }
            _ => None,
        };
        Order::HandOver { job: job.clone(), unbind }
    }
}

/// The GPUs that a job asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wants {
    Nothing,
    /// So many GPUs together.
    Gpus {
        count: u32,
        gpu_type: Option<String>,
        split: Split,
    },
    /// Something that Hither cannot choose places for; the words say what.
    Other(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct SeenNode {
    pub gpus: u32,
    pub gpu_type: String,
    pub status: Status,
    /// The engine's word for its state.
    pub state: String,
}

/// What the driver wants done. Every order may be given again: it says what should be, not what
/// should change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Bind a held job to these nodes.
    Bind { job: Key, nodes: Vec<String> },
    /// Let the engine start a job where it is bound to.
    Release { job: Key },
    /// Let the engine start a job wherever it likes. `unbind`: where it was bound to no longer holds,
    /// and so many nodes are the fewest that it asked for.
    HandOver { job: Key, unbind: Option<u32> },
    /// Keep a waiting job from starting.
    Hold { job: Key },
    /// Tell a running job to write a checkpoint.
    Signal { job: Key, signal: String },
    /// End the job's run; it waits again, held.
    Requeue { job: Key },
}

impl Order {
    pub fn job(&self) -> &Key {
        match self {
            Order::Bind { job, .. }
            | Order::Release { job }
            | Order::HandOver { job, .. }
            | Order::Hold { job }
            | Order::Signal { job, .. }
            | Order::Requeue { job } => job,
        }
    }
}

/// The engine's word on an order that it did not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// `None`: it names no job.
    pub job: Option<Key>,
    pub message: String,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot run {command}: {error}; install Slurm's client commands (Debian: slurm-client), or \
         name their folder with --slurm-bin"
    )]
    Absent { command: String, error: std::io::Error },
    #[error("Slurm does not answer {command}: {message}; check `scontrol ping`")]
    Unreachable { command: String, message: String },
    #[error(
        "Slurm denies {command} to this user: {message}; run as SlurmUser, root or an operator"
    )]
    Denied { command: String, message: String },
    #[error("Slurm {found} is not supported; 20.11 or later is needed")]
    Version { found: String },
    #[error("{command} printed something unexpected: {line:?}")]
    Output { command: String, line: String },
    #[error("partition {name} does not exist; the partitions are {known}")]
    NoPartition { name: String, known: String },
    #[error(
        "a scheduler on host {host} decides for partition {partition}, last seen {silent_s:.0} s ago; \
         stop it there; if it is gone, its claim ends within a minute"
    )]
    Claimed { partition: String, host: String, silent_s: Seconds },
    #[error("cannot claim partition {partition} again: {message}")]
    Unclaimed { partition: String, message: String },
    #[error("partition {0} has no node with GPUs; check Gres in slurm.conf and gres.conf")]
    NoGpus(String),
    #[error("the cluster's topology cannot be used: {0}")]
    Topology(#[from] hither_sched::read::Error),
}

impl Error {
    /// Whether the cluster may well answer later.
    pub fn passes(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Unclaimed { .. } | Error::Output { .. })
    }
}

pub trait Engine {
    /// The machines and the network between them, and what the reader had to assume.
    fn topology(&mut self) -> Result<(Topology, Vec<String>), Error>;

    fn observe(&mut self) -> Result<Seen, Error>;

    /// Passes the orders on. What becomes of them is seen by the next `observe`; complaints are for
    /// people.
    fn act(&mut self, orders: &[Order]) -> Result<Vec<Complaint>, Error>;
}
