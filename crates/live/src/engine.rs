//! The wall between the driver and a real cluster. An engine tells what it sees and takes orders;
//! it keeps no books and decides nothing. Slurm is one; whatever can hold, place, requeue and
//! report jobs can be another.

use std::collections::BTreeMap;

use hither_core::Seconds;
use hither_core::topology::Topology;
use hither_sched::cluster::Status;
use hither_sched::event::End;
use hither_sched::job::{Host, Split};

use crate::wish::Wish;

/// A job's id in the engine's own words: `123`, or `123_4` for a task of an array.
pub type Key = String;

/// What the cluster looks like at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    pub jobs: BTreeMap<Key, SeenJob>,
    /// Nodes of the managed partitions that Hither can place jobs on.
    pub nodes: BTreeMap<String, SeenNode>,
    /// Limits of users, accounts and classes of service that the engine enforces.
    pub limits: Vec<Limit>,
    /// What people should know about the look itself, such as words that were not understood.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SeenJob {
    pub name: String,
    pub user: String,
    /// Who pays for it; empty: the engine keeps no accounts.
    pub account: String,
    /// Its class of service; empty: there are none.
    pub qos: String,
    /// Whether the job is in a managed partition.
    pub managed: bool,
    pub stands: Stands,
    pub wants: Wants,
    /// What the user and the job itself tell Hither.
    pub wish: Wish,
    /// Why it does not run, in the engine's words.
    pub reason: String,
    /// What that means.
    pub obstacle: Obstacle,
    /// Nodes that it is bound to; empty: any.
    pub required: Vec<String>,
    /// What it holds, by node.
    pub holds: Vec<Held>,
    pub restarts: u32,
    /// Whether the engine may stop it and start it again.
    pub can_requeue: bool,
    /// Unix time.
    pub submitted_s: Seconds,
    /// Unix time of the current run's start.
    pub started_s: Option<Seconds>,
    /// The longest that it may run.
    pub limit_s: Option<Seconds>,
}

/// What a job holds on one node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    pub node: String,
    pub gpus: u32,
    pub host: Host,
}

/// Why a job that waits does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Obstacle {
    /// Nothing is said, or that others go first.
    #[default]
    None,
    /// Its user or an administrator holds it.
    Hold,
    /// A dependency or a begin time.
    Early,
    /// It may run for longer than the nodes are free: others have reserved them for later.
    Reserved,
    /// A limit of the job's user, account, array or licences. `counts` says what it limits, among whom.
    Limit(Scope, Counts),
    /// The cluster starts no jobs at present.
    Cluster,
    /// It does not fit where it is bound to.
    Place,
    /// It can never run as it was submitted.
    Never,
}

/// The jobs that share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Qos,
    QosUser,
    Account,
    AccountUser,
    Array,
    /// Nobody knows: the job alone.
    Job,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counts {
    Gpus,
    Jobs,
    /// Something that Hither does not count.
    Other,
}

/// At most so many GPUs or jobs at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    pub scope: Scope,
    /// Whose: see [`Scope::key`]. For users of a QOS the QOS alone: each of them has the limit.
    pub of: String,
    pub counts: Counts,
    pub max: u32,
}

impl Scope {
    /// What jobs that share a limit of this scope have in common.
    pub fn key(self, job: &Key, seen: &SeenJob) -> String {
        let SeenJob { user, account, qos, .. } = seen;
        match self {
            Scope::Qos => qos.clone(),
            Scope::QosUser => format!("{qos} {user}"),
            Scope::Account => account.clone(),
            Scope::AccountUser => format!("{account} {user}"),
            Scope::Array => job.split('_').next().unwrap_or(job).to_owned(),
            Scope::Job => job.clone(),
        }
    }
}

/// Where a job stands in the engine's own records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// GPUs that it asks for; 0: none, or in a way that Hither does not understand.
    pub fn gpus(&self) -> u32 {
        match &self.wants {
            Wants::Gpus { count, .. } => *count,
            _ => 0,
        }
    }

    /// GPUs that it holds; 0 where the engine does not tell, as of a job that is just ending.
    pub fn gpus_held(&self) -> u32 {
        self.holds.iter().map(|held| held.gpus).sum()
    }

    /// Whether it counts against limits.
    pub fn is_active(&self) -> bool {
        matches!(self.stands, Stands::Running | Stands::Leaving)
    }

    /// The nodes that its user asked for at least.
    pub fn fewest_nodes(&self) -> u32 {
        match &self.wants {
            Wants::Gpus { count, split, .. } => {
                (count / split.chunk.max(1)).div_ceil(split.chunks_max.max(1))
            }
            _ => 1,
        }
    }

    /// The order that leaves the job to the engine. Nodes that a user asked for stay: only jobs
    /// that Hither can place are ever bound by it.
    pub fn hand_over(&self, job: &Key) -> Order {
        let is_bound = !self.required.is_empty() && self.gpus() > 0;
        let unbind = is_bound.then(|| self.fewest_nodes());
        Order::HandOver { job: job.clone(), unbind }
    }
}

/// The GPUs that a job asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub host: Host,
    pub status: Status,
    /// The engine's word for its state.
    pub state: String,
}

/// What the driver wants done. Every order may be given again: it says what should be, not what
/// should change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Bind a held job to these nodes. `fewest`: the nodes that its user asked for at least.
    Bind { job: Key, nodes: Vec<String>, fewest: u32 },
    /// Let the engine start a job where it is bound to.
    Release { job: Key },
    /// Let the engine start a job wherever it likes. `unbind: Some(n)`: clear the nodes that Hither bound it
    /// to; its user asked for at least n nodes.
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

/// What an engine cannot do. The words are the engine's own: `hint` says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster may well answer later.
    #[error("{0}")]
    Passing(String),
    /// Something that was configured is not there. A scheduler that starts says so and ends; one that runs waits
    /// for it to come back.
    #[error("{0}")]
    Missing(String),
    /// Trying again is in vain.
    #[error("{0}")]
    Final(String),
    #[error("the cluster's topology cannot be used: {0}")]
    Topology(#[from] hither_sched::read::Error),
}

impl Error {
    /// Whether the cluster may well answer later.
    pub fn passes(&self) -> bool {
        matches!(self, Error::Passing(_))
    }
}

pub trait Engine {
    /// What the engine is called.
    fn name(&self) -> &'static str;

    /// The machines and the network between them, and what the reader had to assume.
    fn topology(&mut self) -> Result<(Topology, Vec<String>), Error>;

    fn observe(&mut self) -> Result<Seen, Error>;

    /// Passes the orders on. What becomes of them is seen by the next `observe`; complaints are for
    /// people.
    fn act(&mut self, orders: &[Order]) -> Result<Vec<Complaint>, Error>;
}
