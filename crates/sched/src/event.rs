//! What the world tells the scheduler, and what the scheduler tells the world.

use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::Reason;

use crate::cluster::{MachineId, Placement};
use crate::job::{Job, JobId};

#[derive(Debug, Clone)]
pub enum Event {
    /// Jobs submitted at the same moment. They get the next ids, in this order.
    Arrive(Vec<Arc<Job>>),
    /// A running job has done its last iteration.
    Finish(JobId),
    /// The user took the job back, waiting or running.
    Cancel(JobId),
    /// A timer that the policy set has run out.
    Timer(Timer),
    /// The machine is gone; its jobs are requeued from their last checkpoint.
    MachineDown(MachineId),
    MachineUp(MachineId),
}

/// A policy's alarm. Setting it again replaces the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// One job's delay timer, queue jump or lease.
    Job(JobId),
    /// The policy's periodic work.
    Round,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Start {
        job: JobId,
        placement: Arc<Placement>,
    },
    Preempt {
        job: JobId,
        reason: Reason,
    },
    SetTimer {
        timer: Timer,
        at_s: Seconds,
    },
    /// The auto-tuner changed the delay timers of a demand; for the record only.
    Tuned {
        gpus: u32,
        machine_s: Seconds,
        rack_s: Seconds,
    },
}
