//! Random clusters, workloads and faults, all from one seed, run under the outside checkers. A
//! failing seed reproduces the failure.

use std::sync::Arc;

use hither_core::Seconds;
use hither_core::seed::stream;
use hither_core::topology::{AllReduce, Links, Machine, Topology};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::job::{Job, JobId, Length, Measured, Profile};
use crate::policy::{self, Settings, dally};
use crate::sim::{self, Options, Scenario, simulate};
use crate::state::Checkpoints;

/// What a seed stands for.
#[derive(Debug)]
pub struct Case {
    pub policy: &'static policy::Entry,
    pub settings: Settings,
    pub topology: Topology,
    pub scenario: Scenario,
    pub options: Options,
}

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
        };
        let congestion = [1.0, 1.0, 4.0, 50.0][rng.random_range(0..4)];
        Self {
            policy,
            settings: random_settings(rng),
            topology,
            scenario: Scenario { jobs, cancels, machines, faults: None },
            options: Options { seed, congestion, checkpoints, check: true, ..Options::default() },
        }
    }

    /// Runs the case; the checkers' word if something is wrong.
    pub fn run(&self) -> Result<(), sim::Error> {
        let built = (self.policy.build)(&self.settings);
        let record =
            simulate(self.policy.name, built, &self.topology, &self.scenario, &self.options)?;
        let over = record.summary.finished + record.summary.cancelled;
        if over != self.scenario.jobs.len() as u64 {
            let what = format!("{over} of {} jobs are over", self.scenario.jobs.len());
            let policy = self.policy.name.into();
            return Err(sim::Error::Invariant { policy, now: record.summary.makespan_s, what });
        }
        Ok(())
    }
}

fn random_topology(rng: &mut Pcg64Mcg) -> Topology {
    let types = if rng.random_bool(0.3) { vec!["a", "b"] } else { vec!["a"] };
    let racks = rng.random_range(1..5u32);
    let mut machines = Vec::new();
    for rack in 0..racks {
        for _ in 0..rng.random_range(1..5) {
            machines.push(Machine {
                name: format!("m{}", machines.len()),
                rack,
                gpus: [1, 2, 4, 4, 8][rng.random_range(0..5)],
                gpu_type: types[rng.random_range(0..types.len())].into(),
            });
        }
    }
    let all_reduce = if rng.random_bool(0.8) { AllReduce::Hierarchical } else { AllReduce::Ring };
    Topology {
        name: "vopr".into(),
        racks: (0..racks).map(|r| format!("r{r}")).collect(),
        machines,
        links: Links { nic_gbit: rng.random_range(1.0..100.0), all_reduce, ..Links::default() },
    }
}

fn random_jobs(rng: &mut Pcg64Mcg, topology: &Topology) -> Vec<Arc<Job>> {
    let together = rng.random_bool(0.2);
    let gap_s: Seconds = rng.random_range(1.0..2000.0);
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
        jobs.push(Arc::new(Job {
            name: format!("j{n}"),
            user: format!("u{}", rng.random_range(0..4)),
            gpus,
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

fn fits_one_type(topology: &Topology, gpus: u32) -> bool {
    ["a", "b"].iter().any(|kind| topology.best_tier(gpus, Some(kind)).is_some())
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
        skew: rng.random_range(0.0..1.0),
        table,
        source: String::new(),
    }
}

fn random_settings(rng: &mut Pcg64Mcg) -> Settings {
    let mut settings = Settings::default();
    let d = &mut settings.dally;
    d.score = [
        dally::Score::UsefulService,
        dally::Score::Slowdown,
        dally::Score::Sensitivity,
        dally::Score::TwoDLas,
    ][rng.random_range(0..4)];
    d.clock = [dally::Clock::SinceDeclined, dally::Clock::SinceReleased][rng.random_range(0..2)];
    d.wait_while_worth = rng.random_bool(0.5);
    d.upgrade_evicts = rng.random_bool(0.5);
    d.round_s = rng.random_range(30.0..900.0);
    d.quantum_s = rng.random_range(60.0..900.0);
    if rng.random_bool(0.4) {
        d.overdue_s = rng.random_range(100.0..20_000.0);
    }
    if rng.random_bool(0.3) {
        settings.tiresias.promote_knob = rng.random_range(1.0..10.0);
    }
    settings
}
