//! What the world tells the scheduler, and what the scheduler asks of the world.
//!
//! The world is slow and may refuse: a [`Decision`] is a wish until an [`Event`] settles it. Three
//! rules bind a driver. It carries a decision out only once all that the decision waits for are
//! settled; a refused decision takes those that wait for it along; and the stop of a job that
//! ended by itself counts as carried out.

use std::fmt;
use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::Reason;
use hither_core::topology::Tier;
use serde::{Deserialize, Serialize};

use crate::cluster::{MachineId, Placement, Status};
use crate::job::{Host, Job, JobId, Split};

/// Numbers decisions in the order in which they were made; never used twice.
pub type DecisionId = u64;

/// News. Those about something that is over, or told twice, change nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Jobs submitted at the same moment. They get the next ids, in this order.
    Submitted(Vec<Arc<Job>>),
    /// A timer that the policy set has run out.
    Timer(Timer),
    /// A start was carried out: the job has its GPUs.
    Started(DecisionId),
    /// A stop was carried out: the GPUs are free. `kept` iterations are in the job's checkpoint;
    /// `None`: not known, the scheduler's estimate stands.
    Stopped { decision: DecisionId, kept: Option<f64> },
    /// The world will not carry the decision out.
    Refused(DecisionId),
    /// A job that the scheduler believes to wait runs on these GPUs: it was found so when the
    /// scheduler was started.
    Found { job: JobId, placement: Arc<Placement> },
    /// A job that the scheduler believes to run has lost its GPUs, not by its doing: it waits again,
    /// from its last checkpoint.
    Lost { job: JobId },
    /// The job is over, waiting or running, and its GPUs are free.
    Ended { job: JobId, how: End },
    /// A running job has done so many iterations by now and does `rate` per second from now on.
    Progress { job: JobId, done: f64, rate: f64 },
    /// Others hold so many GPUs of the machine.
    Foreign { machine: MachineId, gpus: u32 },
    /// The machine's state. The jobs of a machine that is gone have lost their GPUs: they wait
    /// again, from their last checkpoint.
    Machine { machine: MachineId, status: Status },
    /// The machine has so many GPUs from now on.
    Resized { machine: MachineId, gpus: u32 },
    /// The machine's CPUs and memory, and how much of them others hold.
    Host { machine: MachineId, host: Host, foreign: Host },
    /// Gangs that are split so may not start on the machine for now: it has just refused one. Or they may again.
    Closed { machine: MachineId, split: Split, is_closed: bool },
    /// A waiting job may not start, whatever is free: somebody holds it, or a limit does.
    Parked { job: JobId },
    /// A parked job may start.
    Unparked { job: JobId },
    /// The job can no longer be stopped by us.
    Pinned { job: JobId },
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// It has done all its iterations.
    Finished,
    /// It crashed and is not to be tried again.
    Failed,
    /// Its user took it back.
    Cancelled,
}

/// A policy's alarm. Setting it again replaces the earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    /// One job's delay timer, queue jump or lease.
    Job(JobId),
    /// The policy's periodic work.
    Round,
}

/// One thing that the scheduler wants done, or has to say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    pub id: DecisionId,
    pub action: Action,
    /// The stops that must be carried out first: their GPUs are promised to this start.
    pub after: Vec<DecisionId>,
    pub why: Why,
}

/// Starts and stops are settled by an event that names their decision; the others need no answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Action {
    Start {
        job: JobId,
        placement: Arc<Placement>,
    },
    /// The job gives its GPUs back and waits again.
    Stop {
        job: JobId,
        reason: Reason,
    },
    /// The job could have GPUs now and holds out for better ones.
    Decline {
        job: JobId,
    },
    SetTimer {
        timer: Timer,
        at_s: Seconds,
    },
    /// The job lost its GPUs; for the record only.
    Failed {
        job: JobId,
    },
    /// The auto-tuner changed the delay timers of a demand; for the record only.
    Tuned {
        gpus: u32,
        /// By level below the widest.
        timers_s: Vec<Seconds>,
    },
}

/// The reason for a decision: data, made into a sentence only when somebody asks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Why {
    /// It has not been considered yet.
    Submitted,
    /// Its turn in the policy's order, and GPUs are free.
    Turn { tier: Tier },
    /// It waited for a better tier and takes what there is.
    Relented { tier: Tier, wanted: Tier, waited_s: Seconds },
    /// It has waited so long that it goes before all others, at any tier.
    Overdue { tier: Tier, waited_s: Seconds },
    /// It takes a place that others leave for it.
    RoomMade { tier: Tier, victims: u32 },
    /// It moves to a better place, which saves so much time.
    Saves { tier: Tier, saved_s: Seconds },
    /// It moves together, onto fewer machines.
    FewerMachines { machines: u32 },
    /// It moves to a fuller machine, so that its own falls empty.
    LeavesEmpty,
    /// It was found to run there.
    Found,
    /// It makes room for a job with a better claim.
    RoomFor { job: JobId },
    /// It makes room for jobs that rank before it.
    Outranked,
    /// It has had its turn on GPUs that it shares.
    SliceOver,
    /// It declines a place of this tier for now. `lost_s`: seconds that the job and its neighbours would lose
    /// there; `None` without a profile. `wait_s`: the expected wait for a better place; 0 without experience.
    Weighs { tier: Tier, lost_s: Option<Seconds>, wait_s: Seconds },
    /// It takes a place of this tier: what it loses there is not worth the wait for a better one.
    Settles { tier: Tier, lost_s: Option<Seconds>, wait_s: Seconds },
    /// One of its machines is gone.
    MachineGone,
    /// The world took its GPUs away.
    TakenAway,
    /// The world refused to carry the last decision out.
    Refused,
    /// It may not start now, for a reason outside of the scheduler.
    Barred,
    /// The policy wants to look again.
    Alarm,
    /// Recent waits were shorter or longer than the timers.
    Learned,
}

impl Why {
    /// The reason as a sentence, on a cluster with levels of these names.
    pub fn told<'a>(&'a self, levels: &'a [String]) -> impl fmt::Display + 'a {
        Told { why: self, levels }
    }
}

struct Told<'a> {
    why: &'a Why,
    levels: &'a [String],
}

/// A loss in words.
struct Lost(Option<Seconds>);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(lost_s) => write!(f, "it would lose {lost_s:.0} s there"),
            None => write!(f, "what it would lose there is not known yet"),
        }
    }
}

/// An expected wait in words. Zero is no experience, not a place at once.
struct Wait(Seconds);

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 > 0.0 {
            true => write!(f, "a better place is expected in {:.0} s", self.0),
            false => write!(f, "how long a better place takes is not known yet"),
        }
    }
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |tier: Tier| match self.levels.get(tier.level()) {
            Some(name) if tier.level() + 1 < self.levels.len() => format!("one {name}"),
            Some(name) => format!("the whole {name}"),
            None => format!("tier {}", tier.0),
        };
        match *self.why {
            Why::Submitted => write!(f, "has not been offered a place yet"),
            Why::Turn { tier } => write!(f, "it is its turn, and {} has room", place(tier)),
            Why::Relented { tier, wanted, waited_s } => {
                let (place, wanted) = (place(tier), place(wanted));
                write!(f, "takes {place} after {waited_s:.0} s of waiting for {wanted}")
            }
            Why::Overdue { tier, waited_s } => {
                write!(f, "has waited {waited_s:.0} s: goes first and takes {}", place(tier))
            }
            Why::RoomMade { tier, victims } => {
                let jobs = if victims == 1 { "job" } else { "jobs" };
                write!(f, "takes {}, where {victims} {jobs} made room", place(tier))
            }
            Why::Saves { tier, saved_s } => {
                write!(f, "moves to {}: saves {saved_s:.0} s", place(tier))
            }
            Why::FewerMachines { machines } => write!(f, "moves together onto {machines} machines"),
            Why::LeavesEmpty => write!(f, "moves to a fuller machine: its own falls empty"),
            Why::Found => write!(f, "it ran there already"),
            Why::RoomFor { job } => write!(f, "makes room for job {job}, whose claim is better"),
            Why::Outranked => write!(f, "makes room for jobs that rank before it"),
            Why::SliceOver => write!(f, "its time slice is over"),
            Why::Weighs { tier, lost_s, wait_s } => {
                write!(f, "declines {}: {}; {}", place(tier), Lost(lost_s), Wait(wait_s))
            }
            Why::Settles { tier, lost_s, wait_s } => {
                write!(f, "takes {}: {}; {}", place(tier), Lost(lost_s), Wait(wait_s))
            }
            Why::MachineGone => write!(f, "one of its machines is gone"),
            Why::TakenAway => write!(f, "the cluster took its GPUs away"),
            Why::Refused => write!(f, "the cluster refused the last decision"),
            Why::Barred => write!(f, "may not start now"),
            Why::Alarm => write!(f, "to look again then"),
            Why::Learned => write!(f, "recent waits say so"),
        }
    }
}
