//! What a run writes: one header, and for each policy a summary, one row per job and one row per
//! event. Files, tables and the report are made from these rows and from nothing else.

pub mod train;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Seconds;
use crate::summary::Quantiles;

/// What ran, on what, with which seed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the program that wrote the record.
    pub hither: String,
    /// The trace's file name, or a generator's description.
    pub trace: String,
    pub seed: u64,
    /// Factor by which background traffic slows every shared link.
    pub congestion: f64,
    pub cluster: ClusterRow,
    /// Everything else that the figures depend on: options of the scenario, the network and the
    /// policies, by the name of the option. Files of earlier versions have none.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// The cluster as the report draws it. Racks and machines are named by index elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterRow {
    pub name: String,
    pub racks: Vec<String>,
    pub machines: Vec<MachineRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineRow {
    pub name: String,
    /// Index into [`ClusterRow::racks`].
    pub rack: u32,
    pub gpus: u32,
    pub gpu_type: String,
}

/// The figures of one policy's run, as `--json` prints them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub policy: String,
    /// Whether the policy is given the true length of every job by definition, as no real cluster
    /// can: a bound, not a rival.
    #[serde(default)]
    pub clairvoyant: bool,
    pub seed: u64,
    /// Jobs in the trace.
    pub jobs: u64,
    /// Jobs that ran to their end; the others were cancelled or could never fit.
    pub finished: u64,
    pub cancelled: u64,
    /// Submission to end, over finished jobs.
    pub jct_s: Quantiles,
    /// Time without GPUs between submission and end, over finished jobs.
    pub queue_s: Quantiles,
    /// First submission to last end.
    pub makespan_s: Seconds,
    /// Share of the GPU time up to the makespan that was allocated to jobs.
    pub gpu_utilisation: f64,
    /// Time-average of the share of free GPUs that lie in partly used machines; `None` if the
    /// simulator does not place jobs on machines.
    pub fragmentation: Option<f64>,
    /// Sum over jobs of exposed communication time; `None` without a model of the network.
    pub comm_s_total: Option<Seconds>,
    /// That sum over the sum of running time.
    pub comm_share: Option<f64>,
    /// Shares of multi-GPU jobs' GPU time spent inside a machine, inside a rack, across racks.
    pub tier_share: [f64; 3],
    pub preemptions: u64,
    /// Restarts forced by failing machines.
    pub failures: u64,
    pub events: u64,
    /// CPU seconds that the simulation took; the only figure that differs between equal runs.
    pub sim_cpu_s: f64,
    /// Remarks on the figures, such as extrapolated profiles.
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    Finished,
    Cancelled,
}

/// One job's outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRow {
    /// Index of the job in the run; events refer to it.
    pub job: u32,
    /// The job's id in the trace.
    pub name: String,
    pub user: String,
    pub model: String,
    pub gpus: u32,
    pub submit_s: Seconds,
    /// First start; `None` if the job never ran.
    pub start_s: Option<Seconds>,
    pub finish_s: Seconds,
    /// Time holding GPUs, restarts included.
    pub run_s: Seconds,
    /// Time submitted without GPUs.
    pub queue_s: Seconds,
    /// Exposed communication time; `None` without a model of the network.
    pub comm_s: Option<Seconds>,
    /// Running time on an idle network at the job's best tier without restarts: the ideal.
    pub ideal_s: Seconds,
    /// Worst tier of the last placement.
    pub tier: u8,
    pub preemptions: u32,
    pub failures: u32,
    pub state: JobState,
    /// Last placement: (machine index, GPUs taken there).
    pub machines: Vec<(u32, u32)>,
}

impl JobRow {
    pub fn jct_s(&self) -> Seconds {
        self.finish_s - self.submit_s
    }
}

/// Why a running job lost its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A job with a better claim needs the GPUs.
    Priority,
    /// The job itself moves to a better place.
    Upgrade,
    /// The job shares its GPUs in turns with others.
    TimeSlice,
    /// One of its machines went down.
    Failure,
}

/// One line of events.jsonl.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRow {
    pub t: Seconds,
    #[serde(flatten)]
    pub what: Happening,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Happening {
    Arrive {
        job: u32,
        gpus: u32,
    },
    Start {
        job: u32,
        tier: u8,
        machines: Vec<(u32, u32)>,
        /// The policy's reason, as a sentence; files of earlier versions have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// The job could have had GPUs and holds out for better ones.
    Decline {
        job: u32,
        why: String,
    },
    Preempt {
        job: u32,
        reason: Reason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    Finish {
        job: u32,
    },
    Cancel {
        job: u32,
    },
    MachineDown {
        machine: u32,
    },
    MachineUp {
        machine: u32,
    },
    /// The auto-tuner changed the delay timers of a demand.
    Timers {
        gpus: u32,
        machine_s: Seconds,
        rack_s: Seconds,
    },
}

/// Everything that the run of one policy wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    pub summary: Summary,
    pub jobs: Vec<JobRow>,
    /// In time order; GPU use over time follows from these.
    pub events: Vec<EventRow>,
}
