//! What the scheduler believes and what is true are two things.

use crate::common;

use std::sync::Arc;

use common::*;
use hither_core::record::{EventRow, RunRecord};
use hither_core::topology::Topology;
use hither_sched::job::{Job, Length};
use hither_sched::policy::{self, Settings};
use hither_sched::sim::{Options, Scenario};
use hither_sched::world::{Beliefs, Lengths};

fn six() -> Topology {
    topology(&[(0, 2), (0, 2), (1, 2), (1, 2), (2, 1), (2, 4)])
}

fn jobs() -> Vec<Job> {
    let one = |n: u32| {
        let gpus = [1, 2, 1, 4, 3][n as usize % 5];
        let gigabytes = f64::from(n % 4) * 0.3;
        let iterations = f64::from(100 + n * n * 37 % 3000);
        let submit_s = f64::from(n / 2) * 61.0;
        Job { user: format!("u{}", n % 3), ..talking_job(submit_s, gpus, iterations, gigabytes) }
    };
    let mut jobs: Vec<Job> = (0..60).map(one).collect();
    for (n, job) in jobs.iter_mut().enumerate() {
        job.name = n.to_string();
    }
    jobs
}

fn told(policy: &str, jobs: Vec<Job>, beliefs: Beliefs) -> RunRecord {
    let options = Options { beliefs, ..Options::default() };
    let mut settings = Settings::default();
    (settings.dally.round_s, settings.dally.quantum_s) = (60.0, 120.0);
    try_run(policy, &settings, &six(), &scenario(jobs), &options)
        .unwrap_or_else(|error| panic!("{policy} {beliefs:?}: {error}"))
}

fn unknown() -> Beliefs {
    Beliefs { lengths: Lengths::Unknown, ..Beliefs::default() }
}

fn is_clairvoyant(policy: &policy::Entry) -> bool {
    policy.build(&Settings::default()).is_clairvoyant()
}

#[test]
fn every_policy_works_whatever_it_is_told() {
    let noisy = Beliefs { lengths: Lengths::Noisy(2.0), ..Beliefs::default() };
    let wrong = Beliefs { profile_error: 1.5, ..Beliefs::default() };
    let nothing = Beliefs { profiles: false, ..unknown() };
    let no_profile = Beliefs { profiles: false, ..Beliefs::default() };
    for entry in policy::TABLE {
        let truth = told(entry.name, jobs(), Beliefs::default());
        for beliefs in [unknown(), noisy, wrong, nothing, no_profile] {
            let record = told(entry.name, jobs(), beliefs);
            assert_eq!(record.summary.finished, 60, "{} {beliefs:?}", entry.name);
            // What is true does not depend on what is believed.
            for (row, true_row) in record.jobs.iter().zip(&truth.jobs) {
                assert_eq!(row.ideal_s, true_row.ideal_s);
                let rounding = 1e-9 * row.ideal_s;
                assert!(row.run_s >= row.ideal_s - rounding, "{} ran too fast", row.name);
            }
            if is_clairvoyant(entry) {
                assert_eq!(record.jobs, truth.jobs, "{}", entry.name);
                assert!(record.summary.clairvoyant, "{}", entry.name);
            }
        }
    }
}

#[test]
fn only_shortest_first_is_clairvoyant() {
    let names: Vec<&str> =
        policy::TABLE.iter().filter(|e| is_clairvoyant(e)).map(|e| e.name).collect();
    assert_eq!(names, ["srtf", "srtf-strict", "srsf"]);
}

/// The events before the moment.
fn until(record: &RunRecord, moment_s: f64) -> Vec<EventRow> {
    record.events.iter().take_while(|e| e.t < moment_s).cloned().collect()
}

#[test]
fn without_lengths_no_policy_sees_how_long_a_running_job_will_take() {
    // The first job gets ten times as long. Nothing may differ until the moment at which it ends in
    // the short run.
    let longer = || {
        let mut jobs = jobs();
        let Length::Iterations(n) = jobs[3].length else { unreachable!("as built") };
        jobs[3].length = Length::Iterations(10.0 * n);
        jobs
    };
    for entry in policy::TABLE {
        let short = told(entry.name, jobs(), unknown());
        let long = told(entry.name, longer(), unknown());
        let end_s = short.jobs[3].finish_s;
        assert!(end_s > 0.0 && long.jobs[3].finish_s > end_s);
        let same = until(&short, end_s) == until(&long, end_s);
        assert!(same || is_clairvoyant(entry), "{} looks into the future", entry.name);
    }
}

#[test]
fn with_lengths_dally_uses_them() {
    // A pair that finds a rack on offer and a machine taken: short jobs take the rack after one round, as
    // they have little to lose; without lengths it expects an hour's work and holds out as long.
    let start = |beliefs| {
        let mut all = vec![job(0.0, 1, 1e5), job(0.0, 1, 1e5)];
        all.push(talking_job(1.0, 2, 10.0, 1.0));
        let options = Options { beliefs, ..Options::default() };
        let two = topology(&[(0, 2), (0, 2)]);
        let mut jobs = scenario(all);
        // One single on either machine.
        jobs.jobs.insert(1, Arc::new(job(0.0, 1, 0.5)));
        jobs.jobs.insert(3, Arc::new(job(0.0, 1, 0.5)));
        let run = try_run("dally-no-preempt", &Settings::default(), &two, &jobs, &options);
        starts(&run.expect("it keeps all invariants"), 4)[0]
    };
    assert_eq!(start(Beliefs::default()), (301.0, 1));
    assert_eq!(start(unknown()).1, 1);
    assert!(start(unknown()).0 > 1000.0);
}

#[test]
fn congestion_that_nobody_declared_is_learned() {
    // Pairs that talk: a rack costs half of their time with a tenth of the bandwidth, and hardly anything
    // without. One after the other finds a single GPU free on either machine.
    let longest_wait_s = |anticipate: bool| {
        let mut all = vec![job(0.0, 1, 1e7), job(0.0, 1, 0.5), job(0.0, 1, 1e7), job(0.0, 1, 0.5)];
        let pairs = (0..12).map(|n| talking_job(1e5 * f64::from(n) + 1.0, 2, 10_000.0, 0.1));
        all.extend(pairs);
        let beliefs = Beliefs { congestion: false, ..unknown() };
        let options = Options { beliefs, congestion: 10.0, ..Options::default() };
        let mut settings = Settings::default();
        settings.dally.anticipate = anticipate;
        let two = topology(&[(0, 2), (0, 2)]);
        let run = try_run("dally-no-preempt", &settings, &two, &scenario(all), &options);
        let run = run.expect("it keeps all invariants");
        let wait_s = |n: u32| starts(&run, n + 4)[0].0 - (1e5 * f64::from(n) + 1.0);
        (0..12).map(wait_s).fold(0.0, f64::max)
    };
    let (idle_s, learned_s) = (longest_wait_s(false), longest_wait_s(true));
    assert!(learned_s > 2.0 * idle_s, "it holds out longer: {learned_s} s against {idle_s} s");
}

#[test]
fn the_errors_depend_on_the_seed_and_the_job_alone() {
    let noisy = Beliefs { lengths: Lengths::Noisy(1.0), ..Beliefs::default() };
    let run = |seed| {
        let options = Options { beliefs: noisy, seed, ..Options::default() };
        let settings = Settings::default();
        let jobs: Scenario = scenario(jobs());
        try_run("themis", &settings, &six(), &jobs, &options).expect("it ends").jobs
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn words_for_lengths() {
    assert_eq!("known".parse(), Ok(Lengths::Known));
    assert_eq!("unknown".parse(), Ok(Lengths::Unknown));
    assert_eq!("noisy:0.5".parse(), Ok(Lengths::Noisy(0.5)));
    for wrong in ["noisy", "noisy:", "noisy:-1", "noisy:nan", "noisy:99", "guess"] {
        assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
    }
}
