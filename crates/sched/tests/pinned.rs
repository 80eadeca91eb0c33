//! Figures that must not move: whole runs of every policy, kept to the last bit.
//!
//! `tests/pinned/` has one line per run: the main figures of its summary, and a digest of every
//! job row and event. A change that means to move them rewrites the file with
//! `HITHER_PIN=write cargo nextest run -p hither-sched pinned` and says in its commit why.

use crate::common;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use common::try_run;
use hither_core::record::{Happening, RunRecord};
use hither_core::topology::{AllReduce, Topology};
use hither_sched::policy::{self, Settings, dally};
use hither_sched::profile::Library;
use hither_sched::sim::{Faults, Options, Scenario};
use hither_sched::state::Checkpoints;
use hither_sched::trace::{Demand, Generate, generate};

/// A cluster and what happens to it.
struct Setting {
    name: &'static str,
    topology: Topology,
    scenario: Scenario,
    options: Options,
}

fn workload(demand: Demand, jobs: u64, load: f64, gpus: u64, seed: u64) -> Scenario {
    let wanted = Generate {
        jobs,
        load: Some(load),
        gpus: Some(gpus as u32),
        demand,
        seed,
        ..Generate::default()
    };
    let jobs = generate(&wanted, &Library::builtin()).expect("the settings are fine");
    Scenario { jobs: jobs.into_iter().map(Arc::new).collect(), ..Scenario::default() }
}

/// Large gangs on a network that they fill.
fn congested(seed: u64) -> Setting {
    let topology = Topology::uniform(4, 4, 8);
    let scenario = workload(Demand::Heavy, 150, 0.9, topology.gpus(), seed);
    let options = Options { seed, congestion: 8.0, ..Options::default() };
    Setting { name: "congested", topology, scenario, options }
}

/// Mostly single GPUs, as in Philly.
fn quiet(seed: u64) -> Setting {
    let topology = Topology::uniform(2, 4, 8);
    let scenario = workload(Demand::Philly, 300, 1.1, topology.gpus(), seed);
    Setting { name: "quiet", topology, scenario, options: Options { seed, ..Options::default() } }
}

/// Uneven racks, two types, failing machines, jobs taken back, no checkpoint at a preemption.
fn troubled(seed: u64) -> Setting {
    let mut topology = Topology::uniform(3, 4, 8);
    topology.all_reduce = AllReduce::Ring;
    for (at, machine) in topology.machines.iter_mut().enumerate() {
        machine.gpus = [8, 4, 8, 8, 2][at % 5];
        machine.gpu_type = if at % 3 == 2 { "old".into() } else { "new".into() };
    }
    let demand: Demand = hither_sched::trace::Demand::Custom(hither_sched::trace::Weights {
        gpus: vec![1, 2, 3, 4, 8, 12, 20],
        weights: vec![4.0, 2.0, 1.0, 2.0, 2.0, 1.0, 1.0],
    });
    let mut scenario = workload(demand, 150, 0.8, topology.gpus(), seed);
    scenario.cancels = (0..20).map(|n| (f64::from(n) * 9000.0, n * 7)).collect();
    scenario.machines = vec![(30_000.0, 3, false), (60_000.0, 3, true)];
    scenario.faults = Some(Faults { seed, between_s: 200_000.0, repair_s: 4000.0 });
    let checkpoints =
        Checkpoints { interval_s: 1200.0, on_preempt: false, ..Checkpoints::default() };
    let options = Options { seed, congestion: 3.0, checkpoints, ..Options::default() };
    Setting { name: "troubled", topology, scenario, options }
}

/// Settings of dally beside its defaults.
fn variants() -> Vec<(&'static str, Settings)> {
    let with = |change: fn(&mut dally::Options)| {
        let mut settings = Settings::default();
        change(&mut settings.dally);
        settings
    };
    vec![
        ("no-upgrade", with(|d| d.upgrade = false)),
        ("overdue", with(|d| d.overdue_s = 20_000.0)),
        ("short-rounds", with(|d| (d.round_s, d.quantum_s) = (60.0, 120.0))),
    ]
}

/// FNV-1a over the rows as JSON: floats are written so that they read back as the same bits.
fn digest(record: &RunRecord) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut eat = |text: String| {
        for byte in text.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    record.jobs.iter().for_each(|row| eat(serde_json::to_string(row).expect("plain values")));
    // Reasons are words about the run, and loads of links follow from the rest.
    for row in &record.events {
        let mut row = row.clone();
        match &mut row.what {
            Happening::Decline { .. } | Happening::Links { .. } => continue,
            Happening::Start { why, .. } | Happening::Preempt { why, .. } => *why = None,
            _ => {}
        }
        eat(serde_json::to_string(&row).expect("plain values"));
    }
    hash
}

fn line(text: &mut String, label: &str, policy: &str, settings: &Settings, setting: &Setting) {
    let Setting { name, topology, scenario, options } = setting;
    let record = try_run(policy, settings, topology, scenario, options)
        .unwrap_or_else(|error| panic!("{name} {label}: {error}"));
    let s = &record.summary;
    writeln!(
        text,
        "{name} {} {label} jct {:?} p99 {:?} queue {:?} makespan {:?} use {:?} frag {:?} comm {:?} \
         tiers {:?} preempted {} failed {} ended {} events {} rows {:016x}",
        options.seed,
        s.jct_s.mean,
        s.jct_s.p99,
        s.queue_s.mean,
        s.makespan_s,
        s.gpu_utilisation,
        s.fragmentation.expect("it is modelled"),
        s.comm_s_total.expect("it is modelled"),
        s.tier_share,
        s.preemptions,
        s.failures,
        s.finished,
        s.events,
        digest(&record),
    )
    .expect("strings take all");
}

fn compare(file: &str, settings: &[Setting], policies: bool) {
    let mut text = String::new();
    for setting in settings {
        if policies {
            for entry in policy::TABLE {
                line(&mut text, entry.name, entry.name, &Settings::default(), setting);
            }
        } else {
            for (label, options) in variants() {
                line(&mut text, &format!("dally({label})"), "dally", &options, setting);
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pinned").join(file);
    if std::env::var("HITHER_PIN").is_ok_and(|word| word == "write") {
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("it can be made");
        std::fs::write(&path, &text).expect("the file can be written");
    }
    let kept = std::fs::read_to_string(&path).expect("the pinned figures are in the repository");
    for (was, is) in kept.lines().zip(text.lines()) {
        assert_eq!(is, was, "a figure moved");
    }
    assert_eq!(text.lines().count(), kept.lines().count());
}

#[test]
fn every_policy_on_a_congested_network() {
    compare("congested.txt", &[congested(1), congested(2)], true);
}

#[test]
fn every_policy_on_a_quiet_network() {
    compare("quiet.txt", &[quiet(3), quiet(4)], true);
}

#[test]
fn every_policy_in_trouble() {
    compare("troubled.txt", &[troubled(5), troubled(6)], true);
}

#[test]
fn every_variant_of_dally() {
    compare("dally.txt", &[congested(7), quiet(8), troubled(9)], false);
}
