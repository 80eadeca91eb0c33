//! From flags to runs: a plan holds the files, a cell is one setting of it, and a case is a cell that
//! can run under any policy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::bail;
use hither_core::record::{ClusterRow, Header, LevelRow, MachineRow, RunRecord};
use hither_core::topology::{Level, Link, Topology};
use hither_sched::job::{Job, Profile};
use hither_sched::network::Network;
use hither_sched::policy::{Entry, Settings};
use hither_sched::sim::{self, Faults, Options, Scenario};
use hither_sched::state::{Checkpoints, State};
use hither_sched::trace::{Format, Trace};
use hither_sched::world::{Beliefs, ERROR_MAX, Lengths};
use rustix::time::{ClockId, clock_gettime};
use toml::{Table, Value};

use crate::Common;
use crate::inputs::{ClusterArgs, Pace, TraceArgs, Workload, number};
use crate::settings::{self, PolicyArgs};

const HOUR_S: f64 = 3600.0;
/// From here on a run takes seconds: 10 to 120 µs per job, and for gandiva over a millisecond.
const JOBS_MANY: usize = 20_000;

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
    /// Seed of everything that is drawn at random [default: 0, or the generator's own]
    #[arg(long, value_name = "N", env = "HITHER_SEED")]
    #[arg(allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Divide the bandwidth of all links outside of machines by F
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = congestion)]
    #[arg(allow_negative_numbers = true)]
    pub congestion: f64,
    /// Set the offered load: GPU time of all jobs over that of the cluster while they arrive
    #[arg(long, value_name = "F", value_parser = load)]
    #[arg(allow_negative_numbers = true)]
    pub load: Option<f64>,
    /// Let jobs arrive F times as fast
    #[arg(long, value_name = "F", value_parser = load, conflicts_with = "load")]
    #[arg(allow_negative_numbers = true)]
    pub rate: Option<f64>,
    /// Seconds of running time between periodic checkpoints
    #[arg(long, value_name = "S", default_value_t = 1800.0, value_parser = |t: &str| number(t, 1.0, 1e9))]
    #[arg(allow_negative_numbers = true)]
    pub checkpoint_s: f64,
    /// Return preempted jobs to their last periodic checkpoint instead of writing one
    #[arg(long)]
    pub lose_on_preempt: bool,
    /// Let restarts take F times as long, and checkpoints F times the bytes
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = scale)]
    #[arg(allow_negative_numbers = true)]
    pub restart_scale: f64,
    /// Storage bandwidth that restarting jobs share to read checkpoints, in Gbit/s [default: no limit]
    #[arg(long, value_name = "F", value_parser = |t: &str| number(t, 1e-6, 1e12))]
    #[arg(allow_negative_numbers = true)]
    pub storage_read_gbit: Option<f64>,
    /// Storage bandwidth that preempted jobs share to write checkpoints [default: no limit]
    #[arg(long, value_name = "F", value_parser = |t: &str| number(t, 1e-6, 1e12))]
    #[arg(allow_negative_numbers = true)]
    pub storage_write_gbit: Option<f64>,
    /// Let each machine fail every H hours on average
    #[arg(long, value_name = "H", value_parser = |t: &str| number(t, 0.1, 1e9))]
    #[arg(allow_negative_numbers = true)]
    pub mtbf_h: Option<f64>,
    /// Mean time to repair a machine, in hours
    #[arg(long, value_name = "H", default_value_t = 1.0, requires = "mtbf_h")]
    #[arg(value_parser = |t: &str| number(t, 0.0001, 1e6))]
    #[arg(allow_negative_numbers = true)]
    pub repair_h: f64,
    /// Job lengths that the scheduler is told: known, unknown, or noisy:F for a log-normal error
    #[arg(long, value_name = "WORD", default_value = "unknown")]
    pub lengths: Lengths,
    /// Tell the scheduler profiles with a log-normal error of standard deviation F
    #[arg(long, value_name = "F", default_value_t = 0.0)]
    #[arg(value_parser = error, allow_negative_numbers = true)]
    pub profile_error: f64,
    /// Do not tell the scheduler of --congestion
    #[arg(long)]
    pub hide_congestion: bool,
    /// Leave out jobs that are too large for the cluster
    #[arg(long)]
    pub drop_impossible: bool,
    /// Check the scheduler's invariants after every event (slower)
    #[arg(long)]
    pub check: bool,
}

impl ScenarioArgs {
    fn beliefs(&self) -> Beliefs {
        let (lengths, profile_error) = (self.lengths, self.profile_error);
        let congestion = !self.hide_congestion;
        Beliefs { lengths, profile_error, congestion, ..Beliefs::default() }
    }
}

pub fn congestion(text: &str) -> Result<f64, String> {
    number(text, 0.001, 1000.0)
}

pub fn load(text: &str) -> Result<f64, String> {
    number(text, 1e-6, 1e6)
}

pub fn error(text: &str) -> Result<f64, String> {
    number(text, 0.0, ERROR_MAX)
}

pub fn scale(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1e6)
}

/// Everything that is read from files, once.
pub struct Plan {
    pub topology: Topology,
    /// Decisions of the cluster's reader: GPUs assumed, switches joined.
    cluster_notes: Vec<String>,
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
    /// At most one of load and rate is given.
    pub scenario: ScenarioArgs,
    /// Options of the policies.
    pub settings: Table,
}

/// A cell, ready to run under any policy.
pub struct SimulationCase<'a> {
    pub header: Header,
    topology: &'a Topology,
    scenario: Scenario,
    options: Options,
    settings: Settings,
    /// Decisions of the readers, and unusual settings of the scenario.
    pub notes: Vec<String>,
}

impl Plan {
    pub fn new(args: &PlanArgs) -> anyhow::Result<Self> {
        // Wrong options are reported before a long trace is read.
        args.policies.checked()?;
        let (topology, cluster_notes) = match args.cluster.read()? {
            Some(cluster) => (cluster.topology, cluster.notes),
            None => (Topology::uniform(8, 8, 8), Vec::new()),
        };
        let workload = Workload::open(&args.trace)?;
        let profiles_told = !args.trace.reading.hides_profiles();
        let plan = Self::with(&args.policies, &args.scenario, topology, workload)?;
        Ok(Self { cluster_notes, profiles_told, ..plan })
    }

    /// A plan whose cluster and jobs are known.
    pub fn with(
        policies: &PolicyArgs,
        scenario: &ScenarioArgs,
        topology: Topology,
        workload: Workload,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            settings: policies.checked()?,
            policies: policies.entries()?,
            topology,
            cluster_notes: Vec::new(),
            workload,
            args: scenario.clone(),
            profiles_told: true,
        })
    }

    /// The same settings, if the cluster has all levels that they name.
    fn level_timers(&self, settings: Settings) -> anyhow::Result<Settings> {
        if let Some(name) = settings.unknown_level(&self.topology.levels) {
            let levels = self.topology.levels.iter().map(|level| level.name.as_str());
            let levels = levels.collect::<Vec<_>>().join(", ");
            bail!("dally.level_s.{name}: the cluster has no such level; its levels are {levels}");
        }
        Ok(settings)
    }

    /// The cell that the flags alone describe.
    pub fn cell(&self) -> Cell {
        Cell { scenario: self.args.clone(), settings: self.settings.clone() }
    }

    pub fn case(&self, cell: &Cell, record: bool) -> anyhow::Result<SimulationCase<'_>> {
        let args = &cell.scenario;
        let pace = match (args.load, args.rate) {
            (Some(load), _) => Pace::Load { load, gpus: self.topology.gpus() },
            (None, Some(rate)) => Pace::Rate(rate),
            (None, None) => Pace::AsRecorded,
        };
        let mut read = self.workload.jobs(args.seed, pace)?;
        self.fit_types(&mut read);
        let seed = match &self.workload {
            Workload::Generator { settings, .. } => args.seed.unwrap_or(settings.seed),
            Workload::Trace { .. } | Workload::Live { .. } => args.seed.unwrap_or(0),
        };
        let bytes_per_s = |gbit: Option<f64>| gbit.map_or(f64::INFINITY, |gbit| gbit * 1e9 / 8.0);
        let checkpoints = Checkpoints {
            interval_s: args.checkpoint_s,
            on_preempt: !args.lose_on_preempt,
            read_bytes_per_s: bytes_per_s(args.storage_read_gbit),
            write_bytes_per_s: bytes_per_s(args.storage_write_gbit),
        };
        let beliefs = Beliefs { profiles: self.profiles_told, ..args.beliefs() };
        let congestion = args.congestion;
        // Programs are not trusted.
        let check = args.check || self.policies.iter().any(|entry| entry.is_outside());
        let options = Options { seed, congestion, checkpoints, record, beliefs, check };
        let mut notes = read.notes;
        let mut jobs = read.jobs;
        let given = jobs.len();
        if args.drop_impossible {
            let network = Network::new(&self.topology, congestion);
            let state = State::new(&self.topology, network, checkpoints);
            jobs.retain(|job| state.admits(job));
        }
        let dropped = given - jobs.len();
        if jobs.is_empty() {
            bail!("none of the {given} jobs fits the cluster; give a larger --cluster");
        }
        if dropped > 0 {
            notes.push(format!("{dropped} of {given} jobs left out: they can never fit"));
        }
        let faults = args.mtbf_h.map(|hours| {
            let (between_s, repair_s) = (hours * HOUR_S, args.repair_h * HOUR_S);
            Faults { seed, between_s, repair_s }
        });
        notes.extend(self.cluster_notes.iter().cloned());
        notes.extend(self.notes(args));
        let mut name = self.workload.name();
        match pace {
            Pace::AsRecorded => {}
            Pace::Load { load, .. } => name.push_str(&format!(", load {load}")),
            Pace::Rate(rate) => name.push_str(&format!(", rate × {rate}")),
        }
        let (running, machines) = match &self.workload {
            Workload::Live { start, .. } => (start.running.clone(), start.machines.clone()),
            _ => Default::default(),
        };
        if args.restart_scale != 1.0 {
            scale_restarts(&mut jobs, args.restart_scale);
        }
        let jobs = jobs.into_iter().map(Arc::new).collect();
        let settings = self.level_timers(settings::settings(&cell.settings)?)?;
        let recorded = self.recorded(args, &settings)?;
        Ok(SimulationCase {
            header: header(name, seed, congestion, &self.topology, recorded),
            topology: &self.topology,
            scenario: Scenario { jobs, running, machines, faults, ..Scenario::default() },
            options,
            settings,
            notes,
        })
    }

    /// All settings that the figures depend on, those left at their defaults included. The seed,
    /// the congestion and the cluster have places of their own in the header.
    fn recorded(
        &self,
        args: &ScenarioArgs,
        settings: &Settings,
    ) -> anyhow::Result<BTreeMap<String, String>> {
        let lengths = match args.lengths {
            Lengths::Known => "known".to_owned(),
            Lengths::Unknown => "unknown".to_owned(),
            Lengths::Noisy(sigma) => format!("noisy:{sigma}"),
        };
        let mut all = BTreeMap::from([
            ("checkpoint_s".to_owned(), args.checkpoint_s.to_string()),
            ("lengths".to_owned(), lengths),
            ("profile_error".to_owned(), args.profile_error.to_string()),
            ("lose_on_preempt".to_owned(), args.lose_on_preempt.to_string()),
            ("profiles_told".to_owned(), self.profiles_told.to_string()),
        ]);
        if args.hide_congestion {
            all.insert("hide_congestion".into(), "true".into());
        }
        if args.restart_scale != 1.0 {
            all.insert("restart_scale".into(), args.restart_scale.to_string());
        }
        for (key, gbit) in [
            ("storage_read_gbit", args.storage_read_gbit),
            ("storage_write_gbit", args.storage_write_gbit),
        ] {
            all.extend(gbit.map(|gbit| (key.to_owned(), gbit.to_string())));
        }
        if let Some(hours) = args.mtbf_h {
            all.insert("mtbf_h".into(), hours.to_string());
            all.insert("repair_h".into(), args.repair_h.to_string());
        }
        settings::flatten("", &Value::try_from(settings)?, &mut |key, value| {
            let table = key.split('.').next().unwrap_or_default();
            if self.policies.iter().any(|entry| entry.table == table) {
                all.insert(key.to_owned(), value.to_owned());
            }
        });
        let all_reduce = format!("{:?}", self.topology.all_reduce).to_lowercase();
        all.insert("network.all_reduce".into(), all_reduce);
        for Level { name, link, core, latency_us, .. } in &self.topology.levels {
            let mut put = |prefix: &str, link: &Link| {
                let (key, value) = match link {
                    Link::Gbit(gbit) => ("gbit", gbit),
                    Link::Oversubscribed(factor) => ("oversubscription", factor),
                };
                all.insert(format!("{name}.{prefix}{key}"), value.to_string());
            };
            put("", link);
            core.iter().for_each(|core| put("core_", core));
            all.insert(format!("{name}.latency_us"), latency_us.to_string());
        }
        Ok(all)
    }

    /// A site's jobs ask for the site's types of GPU: where the cluster has none of them, any type
    /// will do.
    fn fit_types(&self, trace: &mut Trace) {
        let wanted: BTreeSet<&str> =
            trace.jobs.iter().filter_map(|job| job.gpu_type.as_deref()).collect();
        let is_known =
            |gpu_type: &str| self.topology.machines.iter().any(|m| m.gpu_type == gpu_type);
        if trace.format != Format::Sacct || wanted.is_empty() || wanted.iter().any(|t| is_known(t))
        {
            return;
        }
        let names = wanted.into_iter().collect::<Vec<_>>().join(", ");
        trace.notes.push(format!("types of GPU are ignored: the cluster has none of {names}"));
        trace.jobs.iter_mut().for_each(|job| job.gpu_type = None);
    }

    /// Unusual settings of the scenario, for the reader of the figures.
    fn notes(&self, args: &ScenarioArgs) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(hours) = args.mtbf_h {
            notes.push(format!(
                "each machine fails every {hours} h on average and is repaired within {} h; \
                 checkpoints every {} s",
                args.repair_h, args.checkpoint_s
            ));
        }
        match args.lengths {
            Lengths::Known => {
                notes.push("every policy is told the true length of every job".into())
            }
            Lengths::Unknown => {}
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
        if args.hide_congestion {
            notes.push("the scheduler is not told of the congestion".into());
        }
        if args.restart_scale != 1.0 {
            notes.push(format!("restarts cost {} times as much", args.restart_scale));
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

/// Lets restarts of all jobs cost so many times as much. Jobs of one model go on sharing its profile.
fn scale_restarts(jobs: &mut [Job], times: f64) {
    let mut scaled: Vec<(Arc<Profile>, Arc<Profile>)> = Vec::new();
    for job in jobs {
        let known = scaled.iter().find(|(before, _)| Arc::ptr_eq(before, &job.profile));
        let after = match known {
            Some((_, after)) => after.clone(),
            None => {
                let after = Arc::new(job.profile.with_restarts(times));
                scaled.push((job.profile.clone(), after.clone()));
                after
            }
        };
        job.profile = after;
    }
}

pub fn header(
    trace: String,
    seed: u64,
    congestion: f64,
    topology: &Topology,
    settings: BTreeMap<String, String>,
) -> Header {
    let hither = env!("CARGO_PKG_VERSION").into();
    Header { hither, trace, seed, congestion, cluster: cluster_row(topology), settings }
}

/// The cluster as results record it.
pub fn cluster_row(topology: &Topology) -> ClusterRow {
    let machines = topology.machines.iter().map(|m| MachineRow {
        name: m.name.clone(),
        parent: m.parent,
        gpus: m.gpus,
        gpu_type: m.gpu_type.clone(),
    });
    let level = |level: &Level| LevelRow {
        name: level.name.clone(),
        places: level.places.iter().map(|place| (place.name.clone(), place.parent)).collect(),
    };
    ClusterRow {
        name: topology.name.clone(),
        levels: topology.levels.iter().map(level).collect(),
        machines: machines.collect(),
    }
}

impl SimulationCase<'_> {
    /// How many jobs there are to run.
    pub fn jobs(&self) -> usize {
        self.scenario.jobs.len()
    }

    /// Tells what to expect of a long trace, before the first run.
    pub fn say_if_long(&self, common: &Common) {
        if self.jobs() >= JOBS_MANY {
            common.say("a long trace: allow seconds per simulation, and minutes for gandiva");
        }
    }

    pub fn run(&self, entry: &Entry) -> Result<RunRecord, sim::Error> {
        let begin_s = cpu_s();
        let policy = entry.build(&self.settings);
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
