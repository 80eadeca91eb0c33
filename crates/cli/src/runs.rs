//! What is asked for, made ready to run: one plan, one or many cells, each under every policy.

use std::sync::Arc;

use anyhow::bail;
use hither_core::record::{ClusterRow, Header, MachineRow, RunRecord};
use hither_core::topology::Topology;
use hither_sched::network::Network;
use hither_sched::policy::{Entry, Settings};
use hither_sched::sim::{self, Faults, Options, Scenario};
use hither_sched::state::{Checkpoints, State};
use hither_sched::world::{Beliefs, ERROR_MAX, Lengths};
use rustix::time::{ClockId, clock_gettime};
use toml::Table;

use crate::inputs::{ClusterArgs, TraceArgs, Workload, number};
use crate::settings::{self, PolicyArgs};

const HOUR_S: f64 = 3600.0;

#[derive(Debug, Clone, clap::Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub trace: TraceArgs,
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub policies: PolicyArgs,
    #[command(flatten)]
    pub scenario: ScenarioArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct ScenarioArgs {
    /// Seed of everything that is drawn [default: 0, or the generator's own]
    #[arg(long, value_name = "N", env = "HITHER_SEED")]
    #[arg(allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Divides the bandwidth of all links outside the machines
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = congestion)]
    #[arg(allow_negative_numbers = true)]
    pub congestion: f64,
    /// Let jobs arrive F times as fast (a generator with a load of its own: at that load)
    #[arg(long, value_name = "F", value_parser = load)]
    #[arg(allow_negative_numbers = true)]
    pub load: Option<f64>,
    /// Running time between periodic checkpoints, seconds
    #[arg(long, value_name = "S", default_value_t = 1800.0, value_parser = |t: &str| number(t, 1.0, 1e9))]
    #[arg(allow_negative_numbers = true)]
    pub checkpoint_s: f64,
    /// A preempted job falls back to its last periodic checkpoint instead of writing one
    #[arg(long)]
    pub lose_on_preempt: bool,
    /// Let machines fail at random, each every H hours on average
    #[arg(long, value_name = "H", value_parser = |t: &str| number(t, 0.1, 1e9))]
    #[arg(allow_negative_numbers = true)]
    pub mtbf_h: Option<f64>,
    /// Mean time of a repair, hours
    #[arg(long, value_name = "H", default_value_t = 1.0, requires = "mtbf_h")]
    #[arg(value_parser = |t: &str| number(t, 0.0001, 1e6))]
    #[arg(allow_negative_numbers = true)]
    pub repair_h: f64,
    /// What the scheduler is told of job lengths: known, unknown, or noisy:F for a log-normal error
    #[arg(long, value_name = "WORD", default_value = "known")]
    pub lengths: Lengths,
    /// Tell the scheduler profiles with a log-normal error of this standard deviation
    #[arg(long, value_name = "F", default_value_t = 0.0)]
    #[arg(value_parser = |t: &str| number(t, 0.0, ERROR_MAX), allow_negative_numbers = true)]
    pub profile_error: f64,
    /// Leave out jobs that the cluster can never hold
    #[arg(long)]
    pub drop_impossible: bool,
    /// Let outside checkers look at the state after every event (slower)
    #[arg(long)]
    pub check: bool,
}

impl ScenarioArgs {
    fn beliefs(&self) -> Beliefs {
        let (lengths, profile_error) = (self.lengths, self.profile_error);
        Beliefs { lengths, profile_error, ..Beliefs::default() }
    }
}

pub fn congestion(text: &str) -> Result<f64, String> {
    number(text, 0.001, 1000.0)
}

pub fn load(text: &str) -> Result<f64, String> {
    number(text, 1e-6, 1e6)
}

/// Everything that is read from files, once.
pub struct Plan {
    pub topology: Topology,
    pub workload: Workload,
    pub policies: Vec<&'static Entry>,
    pub settings: Table,
    pub args: ScenarioArgs,
    /// Whether the scheduler is told any profile.
    profiles_told: bool,
}

/// One setting of a plan: what a sweep varies.
#[derive(Debug, Clone)]
pub struct Cell {
    pub seed: Option<u64>,
    pub congestion: f64,
    pub load: Option<f64>,
    pub settings: Table,
}

/// A cell, ready to run under any policy.
pub struct Case<'a> {
    pub header: Header,
    topology: &'a Topology,
    scenario: Scenario,
    options: Options,
    settings: Settings,
    notes: Vec<String>,
    pub dropped: usize,
}

impl Plan {
    pub fn new(args: &PlanArgs) -> anyhow::Result<Self> {
        let settings = args.policies.table()?;
        // Wrong options are told before a long trace is read.
        settings::settings(&settings)?;
        Ok(Self {
            policies: args.policies.entries()?,
            topology: args.cluster.read()?.unwrap_or_else(|| Topology::uniform(8, 8, 8)),
            workload: Workload::open(&args.trace)?,
            settings,
            args: args.scenario.clone(),
            profiles_told: !args.trace.hides_profiles(),
        })
    }

    /// The cell that the flags alone describe.
    pub fn cell(&self) -> Cell {
        let ScenarioArgs { seed, congestion, load, .. } = self.args;
        Cell { seed, congestion, load, settings: self.settings.clone() }
    }

    pub fn case(&self, cell: &Cell, record: bool) -> anyhow::Result<Case<'_>> {
        let args = &self.args;
        let read = self.workload.jobs(cell.seed, cell.load)?;
        let seed = match &self.workload {
            Workload::Generator { settings, .. } => cell.seed.unwrap_or(settings.seed),
            Workload::Trace { .. } => cell.seed.unwrap_or(0),
        };
        let checkpoints =
            Checkpoints { interval_s: args.checkpoint_s, on_preempt: !args.lose_on_preempt };
        let beliefs = Beliefs { profiles: self.profiles_told, ..args.beliefs() };
        let congestion = cell.congestion;
        let options = Options { seed, congestion, checkpoints, record, beliefs, check: args.check };
        let mut notes = read.notes;
        let mut jobs = read.jobs;
        let given = jobs.len();
        if args.drop_impossible {
            let network = Network::new(&self.topology, cell.congestion);
            let state = State::new(&self.topology, network, checkpoints);
            jobs.retain(|job| state.admits(job));
        }
        let dropped = given - jobs.len();
        if jobs.is_empty() {
            bail!("none of the {given} jobs fits the cluster; hint: give a larger --cluster");
        }
        if dropped > 0 {
            notes.push(format!("{dropped} of {given} jobs left out: they can never fit"));
        }
        let faults = args.mtbf_h.map(|hours| {
            let (between_s, repair_s) = (hours * HOUR_S, args.repair_h * HOUR_S);
            Faults { seed, between_s, repair_s }
        });
        notes.extend(self.notes());
        let mut name = self.workload.name();
        if let Some(load) = cell.load {
            name.push_str(&format!(", load × {load}"));
        }
        let jobs = jobs.into_iter().map(Arc::new).collect();
        Ok(Case {
            header: header(name, seed, cell.congestion, &self.topology),
            topology: &self.topology,
            scenario: Scenario { jobs, faults, ..Scenario::default() },
            options,
            settings: settings::settings(&cell.settings)?,
            notes,
            dropped,
        })
    }

    /// What in the scenario differs from the ordinary, for the reader of the figures.
    fn notes(&self) -> Vec<String> {
        let args = &self.args;
        let mut notes = Vec::new();
        if let Some(hours) = args.mtbf_h {
            notes.push(format!(
                "each machine fails every {hours} h on average and is repaired within {} h; \
                 checkpoints every {} s",
                args.repair_h, args.checkpoint_s
            ));
        }
        match args.lengths {
            Lengths::Known => {}
            Lengths::Unknown => notes.push("the scheduler is told no job lengths".into()),
            Lengths::Noisy(sigma) => {
                notes.push(format!("the scheduler is told lengths with an error of e^±{sigma}"));
            }
        }
        if args.profile_error > 0.0 {
            let sigma = args.profile_error;
            notes.push(format!("the scheduler is told profiles with an error of e^±{sigma}"));
        }
        if !self.profiles_told {
            notes.push("the scheduler is told no profiles".into());
        }
        if args.lose_on_preempt {
            notes.push(format!(
                "preempted jobs fall back to their last checkpoint, written every {} s",
                args.checkpoint_s
            ));
        }
        notes
    }
}

pub fn header(trace: String, seed: u64, congestion: f64, topology: &Topology) -> Header {
    let machines = topology.machines.iter().map(|m| MachineRow {
        name: m.name.clone(),
        rack: m.rack,
        gpus: m.gpus,
        gpu_type: m.gpu_type.clone(),
    });
    let cluster = ClusterRow {
        name: topology.name.clone(),
        racks: topology.racks.clone(),
        machines: machines.collect(),
    };
    Header { hither: env!("CARGO_PKG_VERSION").into(), trace, seed, congestion, cluster }
}

impl Case<'_> {
    pub fn run(&self, entry: &Entry) -> Result<RunRecord, sim::Error> {
        let begin_s = cpu_s();
        let policy = (entry.build)(&self.settings);
        let mut record =
            sim::simulate(entry.name, policy, self.topology, &self.scenario, &self.options)?;
        record.summary.sim_cpu_s = cpu_s() - begin_s;
        record.summary.notes.splice(0..0, self.notes.iter().cloned());
        Ok(record)
    }
}

/// CPU time of this thread: a simulation runs on one, whatever else the machine does.
pub fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
