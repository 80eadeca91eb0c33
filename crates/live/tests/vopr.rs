//! Random clusters, jobs and faults under the real driver, on an engine that lies.

use hither_live::vopr::{Bug, run};
use hither_sched::vopr::Case;

fn live_cases(seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Case)> {
    seeds.map(|seed| (seed, Case::new(seed))).filter(|(_, case)| case.live)
}

fn all_end(seeds: std::ops::Range<u64>) {
    for (seed, case) in live_cases(seeds) {
        if let Err((now, what)) = run(&case, None) {
            panic!("after {now:.0} s: {what}\nto reproduce: hither vopr --first {seed} --seeds 1");
        }
    }
}

#[test]
fn every_job_ends_whatever_the_engine_does_1() {
    all_end(0..500);
}

#[test]
fn every_job_ends_whatever_the_engine_does_2() {
    all_end(500..1000);
}

#[test]
fn every_job_ends_whatever_the_engine_does_3() {
    all_end(1000..1500);
}

#[test]
fn every_job_ends_whatever_the_engine_does_4() {
    all_end(1500..2000);
}

#[track_caller]
fn found(bug: Bug, words: &str) {
    let complaints = live_cases(0..200).filter_map(|(_, case)| run(&case, Some(bug)).err());
    let said = complaints.filter(|(_, what)| what.contains(words)).take(3).count();
    assert_eq!(said, 3, "{bug:?}");
}

#[test]
fn a_driver_that_releases_what_is_held_is_found() {
    found(Bug::ReleasesHeld, "is held, and was released");
}

#[test]
fn a_driver_that_stops_anybody_is_found() {
    found(Bug::StopsAnybody, "may not be stopped, and was");
}

#[test]
fn a_driver_that_forgets_a_job_is_found() {
    found(Bug::ForgetsJob, "jobs are not over");
}
