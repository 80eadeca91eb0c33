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

/// The cluster as the report draws it: the levels of its tree from the inside out, and the machines.
/// Places and machines are named by index elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "ClusterFile")]
pub struct ClusterRow {
    pub name: String,
    pub levels: Vec<LevelRow>,
    pub machines: Vec<MachineRow>,
}

/// A level of the cluster's tree and its places.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LevelRow {
    pub name: String,
    /// (name, index of the place around it on the next level). Empty at level 0, whose places are the
    /// machines.
    pub places: Vec<(String, u32)>,
}

/// A machine of the cluster: its place and its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineRow {
    pub name: String,
    /// Index of the place around it, among those of level 1.
    #[serde(alias = "rack")]
    pub parent: u32,
    pub gpus: u32,
    pub gpu_type: String,
}

impl LevelRow {
    /// The levels of a cluster of machines in racks of these names.
    pub fn racks(names: impl IntoIterator<Item = impl Into<String>>) -> Vec<Self> {
        let level = |name: &str, places| Self { name: name.into(), places };
        vec![
            level("machine", Vec::new()),
            level("rack", names.into_iter().map(|name| (name.into(), 0)).collect()),
            level("network", vec![("network".into(), 0)]),
        ]
    }
}

impl ClusterRow {
    /// A place of level 1 and the places around it, level by level.
    pub fn path(&self, place: u32) -> Vec<u32> {
        let mut path = Vec::new();
        let mut at = place;
        for level in self.levels.iter().skip(1) {
            path.push(at);
            at = level.places.get(at as usize).map_or(0, |place| place.1);
        }
        path
    }

    /// A place or machine whose place around it is not there.
    pub fn stray(&self) -> Option<&str> {
        let places = |level: usize| self.levels.get(level).map_or(0, |l| l.places.len());
        let mut machines = self.machines.iter();
        if let Some(machine) = machines.find(|m| m.parent as usize >= places(1)) {
            return Some(&machine.name);
        }
        let inner =
            self.levels.iter().enumerate().skip(1).take(self.levels.len().saturating_sub(2));
        inner
            .flat_map(|(level, row)| row.places.iter().map(move |place| (level, place)))
            .find(|(level, place)| place.1 as usize >= places(level + 1))
            .map(|(_, place)| place.0.as_str())
    }
}

/// A cluster in a file. Earlier versions knew machines, racks and the network, and listed the racks.
#[derive(Deserialize)]
struct ClusterFile {
    name: String,
    #[serde(default)]
    levels: Vec<LevelRow>,
    #[serde(default)]
    racks: Vec<String>,
    machines: Vec<MachineRow>,
}

impl From<ClusterFile> for ClusterRow {
    fn from(file: ClusterFile) -> Self {
        let levels = match file.levels.is_empty() {
            false => file.levels,
            true => LevelRow::racks(file.racks),
        };
        Self { name: file.name, levels, machines: file.machines }
    }
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
    /// That share without the time that allocated GPUs wait for the network; `None` without a model of the
    /// network and in files of earlier versions.
    #[serde(default)]
    pub useful_utilisation: Option<f64>,
    /// Time-average of the share of free GPUs that lie in partly used machines; `None` if the
    /// simulator does not place jobs on machines.
    pub fragmentation: Option<f64>,
    /// Sum over jobs of exposed communication time; `None` without a model of the network.
    pub comm_s_total: Option<Seconds>,
    /// That sum over the sum of running time.
    pub comm_share: Option<f64>,
    /// Shares of multi-GPU jobs' GPU time by the tier of their placement, from the machine outward;
    /// empty without a model of the network.
    pub tier_share: Vec<f64>,
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

/// How a job left the simulation.
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
    /// The job moves with its memory, without a restart from its checkpoint.
    Migration,
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

/// What happened to a job or a machine in one event.
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
        /// By level, in seconds: `machine_s`, `rack_s` and so on.
        #[serde(flatten)]
        timers_s: BTreeMap<String, Seconds>,
    },
    /// The load of the links of each level since the last such row, or since the first event: those of
    /// machines first. A load is a share of the link's bandwidth.
    Links {
        /// Mean over the links of the level.
        mean: Vec<f64>,
        /// The busiest link at each moment.
        busiest: Vec<f64>,
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
