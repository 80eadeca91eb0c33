//! Builders for small clusters, jobs and runs whose figures can be worked out by hand.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;

use hither_core::Seconds;
use hither_core::record::{Happening, JobRow, Reason, RunRecord};
use hither_core::topology::{AllReduce, Level, Link, Machine, Place, Topology};
use hither_sched::cluster::{Cluster, Placement, Slot};
use hither_sched::job::{Job, Length, Profile, Terms};
use hither_sched::policy::{self, Settings};
use hither_sched::sim::{Error, Options, Scenario, simulate};
use proptest::prelude::*;

/// Every start but the first costs this much in the jobs built here.
pub const RESTART_S: Seconds = 10.0;

/// A gigabyte, and in a second the bandwidth of every network card built here.
pub const GB: f64 = 1e9;

/// Machines given as (rack, GPUs), in order of index, all of one type. No latency, and no cost
/// inside a machine; cards of 1 GB/s, uplinks of 0.5 GB/s, a core that never fills.
pub fn topology(machines: &[(u32, u32)]) -> Topology {
    let typed: Vec<_> = machines.iter().map(|&(rack, gpus)| (rack, gpus, "a")).collect();
    typed_topology(&typed)
}

pub fn typed_topology(machines: &[(u32, u32, &str)]) -> Topology {
    let racks = machines.iter().map(|m| m.0 + 1).max().unwrap_or(0);
    let machine = |(at, &(rack, gpus, kind)): (usize, &(u32, u32, &str))| Machine {
        name: format!("m{at}"),
        parent: rack,
        gpus,
        gpu_type: kind.into(),
    };
    let mut levels = Level::common(3);
    levels.iter_mut().for_each(|level| level.latency_us = 0.0);
    levels[0].link = Link::Gbit(f64::INFINITY);
    levels[1].link = Link::Gbit(8.0);
    (levels[2].link, levels[2].core) = (Link::Gbit(4.0), Some(Link::Gbit(8e6)));
    levels[1].places = (0..racks).map(|r| Place { name: format!("r{r}"), parent: 0 }).collect();
    levels[2].places = vec![Place { name: "network".into(), parent: 0 }];
    Topology {
        name: "by hand".into(),
        levels,
        machines: machines.iter().enumerate().map(machine).collect(),
        all_reduce: AllReduce::Hierarchical,
    }
}

/// One second of computing an iteration and `gigabytes` of gradients, none of which hide.
pub fn profile(gigabytes: f64) -> Profile {
    Profile {
        name: "by hand".into(),
        compute_s: 1.0,
        gradient_bytes: gigabytes * GB,
        backward_share: 0.5,
        overlap: 0.0,
        restart_s: RESTART_S,
        restart_gpu_s: 0.0,
        checkpoint_bytes: 0.0,
        skew: 0.0,
        table: Vec::new(),
        source: String::new(),
    }
}

/// A job of one second an iteration wherever it runs.
pub fn job(submit_s: Seconds, gpus: u32, iterations: f64) -> Job {
    talking_job(submit_s, gpus, iterations, 0.0)
}

/// A job that also sums `gigabytes` of gradients in every iteration.
pub fn talking_job(submit_s: Seconds, gpus: u32, iterations: f64, gigabytes: f64) -> Job {
    Job {
        name: format!("at {submit_s}"),
        user: "u".into(),
        gpus,
        terms: Terms::default(),
        gpu_type: None,
        submit_s,
        length: Length::Iterations(iterations),
        profile: Arc::new(profile(gigabytes)),
    }
}

pub fn scenario(jobs: Vec<Job>) -> Scenario {
    Scenario { jobs: jobs.into_iter().map(Arc::new).collect(), ..Scenario::default() }
}

/// The run of a scenario under the checkers, with all events.
pub fn try_run(
    policy: &str,
    settings: &Settings,
    topology: &Topology,
    scenario: &Scenario,
    options: &Options,
) -> Result<RunRecord, Error> {
    let built = policy::find(policy).expect("a policy of this name").build(settings);
    let options = Options { record: true, check: true, ..options.clone() };
    simulate(policy, built, topology, scenario, &options)
}

pub fn run(policy: &str, topology: &Topology, jobs: Vec<Job>) -> RunRecord {
    run_with(policy, &Settings::default(), topology, jobs)
}

pub fn run_with(
    policy: &str,
    settings: &Settings,
    topology: &Topology,
    jobs: Vec<Job>,
) -> RunRecord {
    let run = try_run(policy, settings, topology, &scenario(jobs), &Options::default());
    run.expect("the run keeps all invariants")
}

pub fn finishes(record: &RunRecord) -> Vec<Seconds> {
    record.jobs.iter().map(|j| j.finish_s).collect()
}

pub fn first_starts(record: &RunRecord) -> Vec<Seconds> {
    record.jobs.iter().map(|j: &JobRow| j.start_s.expect("it ran")).collect()
}

/// (when, tier) of every start of the job.
pub fn starts(record: &RunRecord, id: u32) -> Vec<(Seconds, u8)> {
    let start = |e: &hither_core::record::EventRow| match e.what {
        Happening::Start { job, tier, .. } if job == id => Some((e.t, tier)),
        _ => None,
    };
    record.events.iter().filter_map(start).collect()
}

/// (when, job, why) of every preemption.
pub fn preemptions(record: &RunRecord) -> Vec<(Seconds, u32, Reason)> {
    let preempt = |e: &hither_core::record::EventRow| match e.what {
        Happening::Preempt { job, reason, .. } => Some((e.t, job, reason)),
        _ => None,
    };
    record.events.iter().filter_map(preempt).collect()
}

/// A placement of (machine, GPUs) pairs.
pub fn placed(cluster: &Cluster, slots: &[(u32, u32)]) -> Placement {
    let slots: Vec<Slot> = slots.iter().map(|&(machine, gpus)| Slot { machine, gpus }).collect();
    Placement { tier: cluster.tier_of(&slots), slots }
}

/// A regular tree of two to six levels with any links: stated or oversubscribed, with cores or without.
pub fn any_tree() -> impl Strategy<Value = Topology> {
    let link = |fast: f64| {
        prop_oneof![(1.0..fast).prop_map(Link::Gbit), (1.0..4.0f64).prop_map(Link::Oversubscribed),]
    };
    let level = (link(50.0), prop::option::of(link(100.0)), 0.0..50.0f64);
    let sizes = (2..=6usize).prop_flat_map(|depth| {
        let widest: u32 = if depth > 4 { 2 } else { 3 };
        prop::collection::vec(1..=widest, depth)
    });
    (sizes, prop::collection::vec(level, 6)).prop_map(|(sizes, drawn)| {
        let mut topology = Topology::regular(&sizes);
        for (level, (link, core, latency_us)) in topology.levels.iter_mut().zip(drawn).skip(1) {
            (level.link, level.core, level.latency_us) = (link, core, latency_us);
        }
        topology
    })
}

/// Some of these machines, with one to four GPUs on each.
pub fn some_slots(machines: usize) -> impl Strategy<Value = Vec<(u32, u32)>> {
    let most = machines.min(12);
    prop::collection::btree_map(0..machines as u32, 1..5u32, 1..=most)
        .prop_map(|slots| slots.into_iter().collect())
}

/// Equal to rounding.
#[track_caller]
pub fn assert_close(got: f64, want: f64) {
    let near = (got - want).abs() <= 1e-9 * want.abs().max(1e-3);
    assert!(near, "got {got}, want {want}");
}
