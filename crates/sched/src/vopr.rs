//! Random clusters, workloads, options and faults, all from one seed, run under the outside
//! checkers in the simulator. A failing seed reproduces the failure. Half of the seeds are for the driver
//! of real clusters, whose crate runs them.

mod draw;

use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::{JobState, RunRecord};
use hither_core::seed::stream;
use hither_core::topology::{
    AllReduce, LEVELS_MAX, LEVELS_MIN, Level, Link, Machine, Place, Topology,
};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::cluster::Cluster;
use crate::job::{Demand, Job, JobId, Length, Measured, Profile, Split, Terms};
use crate::policy::{self, Settings};
use crate::sim::{self, Faults, Options, Scenario, simulate};
use crate::state::Checkpoints;
use crate::world::{Beliefs, Lengths};

pub use draw::OPTIONS;

/// What a seed stands for.
#[derive(Debug)]
pub struct Case {
    pub policy: &'static policy::Entry,
    pub settings: Settings,
    pub topology: Topology,
    pub scenario: Scenario,
    pub options: Options,
    /// Whether the case is for the driver of real clusters, on an engine that lies, or for the simulator.
    pub live: bool,
}

/// What a scenario draws beside the options of the policies: (what, from which range).
pub const DRAWN: &[(&str, &str)] = &[
    ("policy", "dally in 40 of 100, otherwise any"),
    ("driver", "the simulator, or that of real clusters on an engine that lies"),
    ("cluster", "2 to 6 levels, uneven places, machines of 1 to 8 GPUs, one or two types"),
    (
        "links",
        "cards of 1 to 100 Gbit/s, cores that fill or never do, hierarchical or ring all-reduce, \
         congestion 1, 4 or 50",
    ),
    ("jobs", "up to 49 of 1 to 32 GPUs, with a type or without, one user of four"),
    ("shapes", "3 in 10 gangs want chunks per machine, 1 in 20 may not be preempted"),
    ("profiles", "closed form or measured table, any size of gradient and overlap"),
    ("checkpoints", "every 60 to 5,000 s; with one at a preemption or without"),
    ("failures", "up to 5 of single machines, and in a third of the scenarios at random"),
    ("beliefs", "lengths known, unknown or noisy; profiles right, wrong or none"),
    ("cancelled jobs", "up to 3"),
];

impl Case {
    pub fn new(seed: u64) -> Self {
        let rng = &mut stream(seed, "vopr");
        // Every policy gets its turn; dally, whose options are many, gets the most.
        let policy = match rng.random_bool(0.4) {
            true => policy::find("dally").expect("it is in the table"),
            false => &policy::TABLE[rng.random_range(0..policy::TABLE.len())],
        };
        let topology = random_topology(rng);
        let jobs = random_jobs(rng, &topology);
        let horizon_s = jobs.last().map_or(0.0, |j| j.submit_s) + 20_000.0;
        let cancels = (0..rng.random_range(0..4usize).min(jobs.len()))
            .map(|_| (rng.random_range(0.0..horizon_s), rng.random_range(0..jobs.len()) as JobId))
            .collect();
        let mut machines = Vec::new();
        for _ in 0..rng.random_range(0..6) {
            let machine = rng.random_range(0..topology.machines.len()) as u32;
            let down_s = rng.random_range(0.0..horizon_s);
            machines.push((down_s, machine, false));
            machines.push((down_s + rng.random_range(1.0..30_000.0), machine, true));
        }
        // Whatever was down for good would leave large jobs waiting for ever.
        for machine in 0..topology.machines.len() as u32 {
            machines.push((horizon_s + 40_000.0, machine, true));
        }
        let checkpoints = Checkpoints {
            interval_s: rng.random_range(60.0..5000.0),
            on_preempt: rng.random_bool(0.7),
            read_bytes_per_s: random_bandwidth(rng),
            write_bytes_per_s: random_bandwidth(rng),
        };
        let congestion = [1.0, 1.0, 4.0, 50.0][rng.random_range(0..4)];
        Self {
            policy,
            settings: draw::settings(rng),
            topology,
            scenario: Scenario {
                jobs,
                cancels,
                machines,
                faults: random_faults(rng, seed),
                ..Scenario::default()
            },
            options: Options {
                seed,
                congestion,
                checkpoints,
                beliefs: random_beliefs(rng),
                check: true,
                record: true,
            },
            live: rng.random_bool(0.5),
        }
    }

    /// Runs the case in the simulator; the checkers' word if something is wrong.
    pub fn run(&self) -> Result<(), sim::Error> {
        let built = self.policy.build(&self.settings);
        let record =
            simulate(self.policy.name, built, &self.topology, &self.scenario, &self.options)?;
        self.check_rows(&record).map_err(|what| {
            let (policy, now) = (self.policy.name.into(), record.summary.makespan_s);
            sim::Error::Invariant { policy, now, what }
        })
    }

    /// All jobs are over, and none ran for less time than it computes.
    fn check_rows(&self, record: &RunRecord) -> Result<(), String> {
        let (summary, jobs) = (&record.summary, &self.scenario.jobs);
        let over = summary.finished + summary.cancelled;
        if over != jobs.len() as u64 {
            return Err(format!("{over} of {} jobs are over", jobs.len()));
        }
        for row in record.jobs.iter().filter(|row| row.state == JobState::Finished) {
            let job = &jobs[row.job as usize];
            // Measured iterations may be shorter than the computing that the profile states.
            let (Length::Iterations(n), true) = (job.length, job.profile.table.is_empty()) else {
                continue;
            };
            let (ran_s, least_s) = (row.run_s, n * job.profile.compute_s);
            if ran_s < least_s * (1.0 - 1e-9) {
                return Err(format!("job {} ran {ran_s} s and computes {least_s} s", row.name));
            }
        }
        Ok(())
    }
}

fn random_beliefs(rng: &mut Pcg64Mcg) -> Beliefs {
    // Unknown lengths are the default of every command.
    let lengths = match rng.random_range(0..4) {
        0 => Lengths::Known,
        1 => Lengths::Noisy(rng.random_range(0.0..3.0)),
        _ => Lengths::Unknown,
    };
    let profile_error = if rng.random_bool(0.2) { rng.random_range(0.0..2.0) } else { 0.0 };
    let profiles = rng.random_bool(0.9);
    let congestion = rng.random_bool(0.8);
    Beliefs { lengths, profile_error, profiles, congestion }
}

/// Machines that fail every hours, and are back before the checkpoints of long jobs are lost.
fn random_faults(rng: &mut Pcg64Mcg, seed: u64) -> Option<Faults> {
    let between_s = rng.random_range(50_000.0..500_000.0);
    let repair_s = rng.random_range(10.0..5000.0);
    rng.random_bool(0.3).then_some(Faults { seed, between_s, repair_s })
}

/// A tree of two to six levels, three more often than others, with uneven places.
fn random_topology(rng: &mut Pcg64Mcg) -> Topology {
    let types = if rng.random_bool(0.3) { vec!["a", "b"] } else { vec!["a"] };
    let depth = if rng.random_bool(0.5) { 3 } else { rng.random_range(LEVELS_MIN..=LEVELS_MAX) };
    // Deep trees have narrow places, so that all clusters have a few machines.
    let parts_max = if depth > 4 { 2 } else { 4 };
    let mut levels = Level::common(depth);
    let mut around = 1;
    for level in levels.iter_mut().skip(1).rev() {
        let first = level.name == "network";
        let parts = |rng: &mut Pcg64Mcg| if first { 1 } else { rng.random_range(1..=parts_max) };
        let parents = (0..around).flat_map(|at| vec![at; parts(rng)]);
        let place = |(n, parent)| Place { name: format!("{}{n}", level.name), parent };
        level.places = parents.enumerate().map(place).collect();
        around = level.places.len() as u32;
        // Now and then a level states its own core.
        level.core = match rng.random_range(0..6) {
            0 => None,
            1 => Some(Link::Gbit(rng.random_range(10.0..1000.0))),
            _ => level.core,
        };
    }
    levels[1].link = Link::Gbit(rng.random_range(1.0..100.0));
    let mut machines = Vec::new();
    for parent in 0..around {
        for _ in 0..rng.random_range(1..=parts_max) {
            machines.push(Machine {
                name: format!("m{}", machines.len()),
                parent,
                gpus: [1, 2, 4, 4, 8][rng.random_range(0..5)],
                gpu_type: types[rng.random_range(0..types.len())].into(),
            });
        }
    }
    let all_reduce = if rng.random_bool(0.8) { AllReduce::Hierarchical } else { AllReduce::Ring };
    Topology { name: "vopr".into(), levels, machines, all_reduce }
}

fn random_jobs(rng: &mut Pcg64Mcg, topology: &Topology) -> Vec<Arc<Job>> {
    let together = rng.random_bool(0.2);
    let gap_s: Seconds = rng.random_range(1.0..2000.0);
    let cluster = Cluster::new(topology);
    let mut submit_s = 0.0;
    let mut jobs = Vec::new();
    for n in 0..rng.random_range(1..50) {
        let gpu_type = match rng.random_bool(0.3) {
            true => Some(
                topology.machines[rng.random_range(0..topology.machines.len())].gpu_type.clone(),
            ),
            false => None,
        };
        let gpus = 1u32 << rng.random_range(0..6);
        let gpus = if rng.random_bool(0.2) { rng.random_range(1..20) } else { gpus };
        if topology.best_tier(gpus, gpu_type.as_deref()).is_none() {
            continue;
        }
        if gpu_type.is_none() && !fits_one_type(topology, gpus) {
            continue;
        }
        let mut terms = random_terms(rng, gpus);
        let pool = gpu_type.as_deref().and_then(|name| cluster.pool_named(name));
        if cluster.best_tier(Demand { gpus, split: terms.split }, pool).is_none() {
            terms.split = Split::ANY;
        }
        jobs.push(Arc::new(Job {
            name: format!("j{n}"),
            user: format!("u{}", rng.random_range(0..4)),
            gpus,
            terms,
            gpu_type,
            submit_s,
            length: match rng.random_bool(0.5) {
                true => Length::Iterations(rng.random_range(1.0..20_000.0)),
                false => Length::Seconds(10f64.powf(rng.random_range(0.0..4.5))),
            },
            profile: Arc::new(random_profile(rng)),
        }));
        if !together && rng.random_bool(0.8) {
            submit_s += rng.random_range(0.0..2.0) * gap_s;
        }
    }
    jobs
}

/// Most gangs take any GPUs; some want so many on each machine, or chunks of so many.
fn random_terms(rng: &mut Pcg64Mcg, gpus: u32) -> Terms {
    let divisors: Vec<u32> = (1..=gpus).filter(|d| gpus.is_multiple_of(*d)).collect();
    let chunk = divisors[rng.random_range(0..divisors.len())];
    let split = match rng.random_range(0..10) {
        0 => Split::even(chunk),
        1 => Split { chunk, ..Split::ANY },
        2 => Split { chunk, chunks_max: rng.random_range(1..4), ..Split::ANY },
        _ => Split::ANY,
    };
    Terms { split, preemptible: rng.random_bool(0.95) }
}

fn fits_one_type(topology: &Topology, gpus: u32) -> bool {
    ["a", "b"].iter().any(|kind| topology.best_tier(gpus, Some(kind)).is_some())
}

/// Of the storage, in bytes per second; often without a limit.
fn random_bandwidth(rng: &mut Pcg64Mcg) -> f64 {
    match rng.random_bool(0.5) {
        true => f64::INFINITY,
        false => 10f64.powf(rng.random_range(8.0..11.0)),
    }
}

fn random_profile(rng: &mut Pcg64Mcg) -> Profile {
    let compute_s = rng.random_range(0.01..1.0);
    let table = match rng.random_bool(0.15) {
        true => [&[1u32][..], &[2], &[4], &[2, 2], &[4, 4]]
            .iter()
            .map(|p| Measured {
                placement: p.to_vec(),
                step_s: compute_s * rng.random_range(0.9..3.0),
            })
            .collect(),
        false => Vec::new(),
    };
    Profile {
        name: "random".into(),
        compute_s,
        gradient_bytes: 10f64.powf(rng.random_range(5.0..9.5)),
        backward_share: rng.random_range(0.0..1.0),
        overlap: rng.random_range(0.0..1.0),
        restart_s: rng.random_range(0.0..120.0),
        restart_gpu_s: if rng.random_bool(0.2) { rng.random_range(0.0..2.0) } else { 0.0 },
        checkpoint_bytes: 10f64.powf(rng.random_range(5.0..12.0)),
        skew: rng.random_range(0.0..1.0),
        table,
        source: String::new(),
    }
}
