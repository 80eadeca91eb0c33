//! The simulator on scenarios small enough to be worked out by hand, and against a plain
//! reference.

use crate::common;

use std::sync::Arc;

use common::*;
use hither_core::record::{EventRow, Happening, JobState, Reason};
use hither_core::topology::Topology;
use hither_sched::job::{Job, Length, Measured, Profile};
use hither_sched::policy::{self, Settings};
use hither_sched::sim::{Error, Faults, Options, Scenario};
use hither_sched::state::Checkpoints;
use proptest::prelude::*;

fn checkpoints(interval_s: f64, on_preempt: bool) -> Options {
    let checkpoints = Checkpoints { interval_s, on_preempt, ..Checkpoints::default() };
    Options { checkpoints, ..Options::default() }
}

fn ends(policy: &str, topology: &Topology, scenario: &Scenario, options: &Options) -> Vec<f64> {
    let run = try_run(policy, &Settings::default(), topology, scenario, options);
    finishes(&run.expect("the run keeps all invariants"))
}

/// Two jobs that cross racks on machines of their own: 3 s an iteration alone, 4 s together (the
/// paces of contention.rs).
fn neighbours() -> (Topology, Vec<Job>) {
    let topology = topology(&[(0, 1), (1, 1), (0, 1), (1, 1)]);
    (topology, vec![talking_job(0.0, 2, 100.0, 1.0), talking_job(0.0, 2, 40.0, 1.0)])
}

#[test]
fn a_job_alone_ends_after_its_iterations() {
    let record = run("fifo", &topology(&[(0, 4)]), vec![job(7.0, 4, 250.0)]);
    assert_eq!(finishes(&record), [257.0]);
    // On two machines an iteration takes 1 s and 2·1/2 · 0.5 GB over 1 GB/s.
    let two = topology(&[(0, 1), (0, 1)]);
    let record = run("fifo", &two, vec![talking_job(7.0, 2, 100.0, 0.5)]);
    assert_eq!(finishes(&record), [157.0]);
    assert_close(record.jobs[0].comm_s.expect("it is modelled"), 50.0);
}

#[test]
fn a_length_in_seconds_is_the_time_at_the_best_tier_without_congestion() {
    let two = topology(&[(0, 1), (0, 1)]);
    let mut timed = talking_job(0.0, 2, 0.0, 0.5);
    timed.length = Length::Seconds(300.0);
    let one = scenario(vec![timed]);
    assert_eq!(ends("fifo", &two, &one, &Options::default()), [300.0]);
    // 200 iterations of 1.5 s; with a third of the bandwidth they take 2.5 s.
    let busy = Options { congestion: 3.0, ..Options::default() };
    assert_close(ends("fifo", &two, &one, &busy)[0], 500.0);
}

#[test]
fn a_preempted_job_keeps_its_progress_and_pays_one_restart() {
    let jobs = vec![job(0.0, 1, 100.0), job(20.0, 1, 10.0)];
    let record = run("srtf", &topology(&[(0, 1)]), jobs);
    // 20 done; the other until 30; restart until 40; 80 more.
    assert_eq!(finishes(&record), [120.0, 30.0]);
    assert_eq!(preemptions(&record), [(20.0, 0, Reason::Priority)]);
    let long = &record.jobs[0];
    assert_eq!((long.run_s, long.queue_s, long.preemptions), (110.0, 10.0, 1));
}

#[test]
fn writing_a_checkpoint_holds_the_gpus_and_reading_it_delays_the_restart() {
    let mut long = job(0.0, 1, 100.0);
    let costly = Profile {
        checkpoint_bytes: 10.0 * GB,
        restart_gpu_s: 3.0,
        ..Profile::clone(&long.profile)
    };
    long.profile = Arc::new(costly);
    let jobs = scenario(vec![long, job(20.0, 1, 10.0)]);
    let one = topology(&[(0, 1)]);
    let stored = |read: f64, write: f64| {
        let checkpoints = Checkpoints {
            read_bytes_per_s: read * GB,
            write_bytes_per_s: write * GB,
            ..Checkpoints::default()
        };
        ends("srtf", &one, &jobs, &Options { checkpoints, ..Options::default() })
    };
    // 20 done; written by 25; the other until 35; 10 s to read, 10 + 3 s to restart; 80 more.
    assert_eq!(stored(1.0, 2.0), [138.0, 35.0]);
    // A storage without limits takes no time.
    assert_eq!(stored(f64::INFINITY, f64::INFINITY), [123.0, 30.0]);
}

#[test]
fn without_a_checkpoint_at_preemption_it_falls_back_to_the_last_periodic_one() {
    let jobs = scenario(vec![job(0.0, 1, 100.0), job(20.0, 1, 10.0)]);
    let one = topology(&[(0, 1)]);
    // Checkpoints at 8 and 16: 16 kept, 84 to go from 40 on.
    assert_eq!(ends("srtf", &one, &jobs, &checkpoints(8.0, false)), [124.0, 30.0]);
    // None yet: all over again.
    assert_eq!(ends("srtf", &one, &jobs, &checkpoints(50.0, false)), [140.0, 30.0]);
}

#[test]
fn a_failure_costs_what_came_after_the_last_checkpoint() {
    let mut faulty = scenario(vec![job(0.0, 1, 100.0)]);
    faulty.machines = vec![(70.0, 0, false), (90.0, 0, true)];
    let one = topology(&[(0, 1)]);
    let options = checkpoints(30.0, true);
    // 60 are kept; up at 90, restarted at 100.
    assert_eq!(ends("fifo", &one, &faulty, &options), [140.0]);
    // Failing again in the middle of the restart costs another restart and no iterations.
    faulty.machines.extend([(95.0, 0, false), (96.0, 0, true)]);
    assert_eq!(ends("fifo", &one, &faulty, &options), [146.0]);
    let run = try_run("fifo", &Settings::default(), &one, &faulty, &options).expect("it ends");
    assert_eq!((run.summary.failures, run.summary.preemptions), (2, 0));
    assert_eq!((run.jobs[0].run_s, run.jobs[0].queue_s), (125.0, 21.0));
}

#[test]
fn a_failed_machine_takes_its_whole_gang_along() {
    let mut faulty = scenario(vec![job(0.0, 2, 100.0), job(0.0, 1, 300.0)]);
    faulty.machines = vec![(50.0, 2, false), (80.0, 2, true)];
    let options = checkpoints(20.0, true);
    // The gang on machines 0 and 2 falls back to 40 and waits for machine 2; the other job on
    // machine 1 goes on.
    let three = topology(&[(0, 1), (0, 1), (0, 1)]);
    assert_eq!(ends("fifo", &three, &faulty, &options), [150.0, 300.0]);
}

#[test]
fn cancelled_jobs_leave_at_once() {
    let mut jobs = scenario(vec![job(0.0, 1, 100.0), job(0.0, 1, 50.0), job(0.0, 1, 30.0)]);
    // The running one at 40, the last in the queue at 10; the first again when it is long over.
    jobs.cancels = vec![(40.0, 0), (10.0, 2), (60.0, 0)];
    let one = topology(&[(0, 1)]);
    let run = try_run("fifo", &Settings::default(), &one, &jobs, &Options::default());
    let run = run.expect("the run keeps all invariants");
    assert_eq!(finishes(&run), [40.0, 90.0, 10.0]);
    let states = [JobState::Cancelled, JobState::Finished, JobState::Cancelled];
    assert_eq!(run.jobs.iter().map(|j| j.state).collect::<Vec<_>>(), states);
    assert_eq!((run.summary.finished, run.summary.cancelled), (1, 2));
    assert_eq!(run.jobs[2].start_s, None);
    // Only the finished job counts in the means.
    assert_eq!(run.summary.jct_s.mean, 90.0);
}

#[test]
fn a_job_that_ends_as_its_machine_fails_or_its_user_gives_up_has_ended() {
    let mut close = scenario(vec![job(0.0, 1, 100.0), job(0.0, 1, 40.0)]);
    close.machines = vec![(100.0, 0, false), (200.0, 0, true)];
    close.cancels = vec![(40.0, 1)];
    let run = try_run(
        "fifo",
        &Settings::default(),
        &topology(&[(0, 1), (0, 1)]),
        &close,
        &Options::default(),
    );
    let run = run.expect("the run keeps all invariants");
    assert_eq!(finishes(&run), [100.0, 40.0]);
    assert_eq!((run.summary.finished, run.summary.failures), (2, 0));
}

#[test]
fn a_neighbour_on_the_network_slows_a_job_until_it_ends() {
    let (four, jobs) = neighbours();
    let record = run("first-fit", &four, jobs);
    // Together until 160, when both have done 40; the 60 that are left take 3 s each.
    assert_close(record.jobs[1].finish_s, 160.0);
    assert_close(record.jobs[0].finish_s, 340.0);
    assert_close(record.jobs[0].comm_s.expect("it is modelled"), 40.0 * 3.0 + 60.0 * 2.0);
    assert_eq!(record.summary.tier_share, [0.0, 0.0, 1.0]);
}

#[test]
fn checkpoints_remember_the_pace_at_which_they_were_written() {
    let (four, jobs) = neighbours();
    let mut faulty = scenario(jobs);
    faulty.machines = vec![(210.0, 0, false), (220.0, 0, true)];
    // The checkpoint at 120 holds 30 iterations. At 210 the neighbour is gone and its machines are
    // free: 70 iterations of 3 s from 220 on.
    let got = ends("first-fit", &four, &faulty, &checkpoints(120.0, true));
    assert_close(got[0], 430.0);
    assert_close(got[1], 160.0);
}

#[test]
fn summary_of_three_jobs_by_hand() {
    // Two machines of two GPUs. A pair on one, a single on the other; then a gang of four that
    // spends half of its time on communication.
    let jobs = vec![job(0.0, 2, 100.0), job(0.0, 1, 50.0), talking_job(10.0, 4, 10.0, 1.0)];
    let record = run("fifo", &topology(&[(0, 2), (0, 2)]), jobs);
    assert_eq!(finishes(&record), [100.0, 50.0, 120.0]);
    let s = &record.summary;
    assert_eq!((s.jobs, s.finished, s.makespan_s), (3, 3, 120.0));
    let jct = s.jct_s;
    assert_close(jct.mean, (100.0 + 50.0 + 110.0) / 3.0);
    // sorted[floor(q·3)] of 50, 100, 110.
    assert_eq!((jct.p50, jct.p95, jct.p99, jct.max), (100.0, 110.0, 110.0, 110.0));
    assert_eq!((s.queue_s.mean, s.queue_s.p50, s.queue_s.max), (30.0, 0.0, 90.0));
    assert_close(s.gpu_utilisation, (2.0 * 100.0 + 50.0 + 4.0 * 20.0) / (4.0 * 120.0));
    assert_close(s.comm_s_total.expect("it is modelled"), 10.0);
    assert_close(s.comm_share.expect("it is modelled"), 10.0 / 170.0);
    assert_close(s.tier_share[0], 200.0 / 280.0);
    assert_close(s.tier_share[1], 80.0 / 280.0);
    // One of one free GPU is next to a busy one for 50 s.
    assert_close(s.fragmentation.expect("it is modelled"), 50.0 / 120.0);
    assert_eq!((s.preemptions, s.failures), (0, 0));
    assert_eq!(record.jobs[2].ideal_s, 20.0);
    assert_eq!((record.jobs[2].tier, record.jobs[2].start_s), (1, Some(100.0)));
}

#[test]
fn the_makespan_counts_from_the_first_submission() {
    let record = run("fifo", &topology(&[(0, 1)]), vec![job(1000.0, 1, 50.0)]);
    assert_eq!((record.summary.makespan_s, record.summary.gpu_utilisation), (50.0, 1.0));
}

#[test]
fn a_move_within_one_moment_keeps_counting_communication() {
    // Gandiva moves a gang together when it can, here from three machines, where 0.5 GB cost
    // 2·2/3·0.5 s, to two, where they cost 2·1/2·0.5 s. Singles, half of them short, leave it one
    // GPU on each of three machines at first; pairs keep the other two machines busy till 500 and 700.
    let five = topology(&[(0, 2), (0, 2), (0, 2), (0, 2), (0, 2)]);
    let lengths = [9000.0, 0.5, 9000.0, 0.5, 9000.0, 0.5];
    let mut jobs: Vec<Job> = lengths.into_iter().map(|s| job(0.0, 1, s)).collect();
    jobs.extend([job(0.0, 2, 500.0), job(0.0, 2, 700.0), talking_job(1.0, 3, 2000.0, 0.5)]);
    let record = run("gandiva", &five, jobs);
    assert_eq!(preemptions(&record)[0], (500.0, 8, Reason::Migration));
    let before = 499.0 / (1.0 + 2.0 / 3.0);
    let moved_s = 500.0 + 1.0 + 2.5 * 0.5 / 1.4;
    assert_close(record.jobs[8].finish_s, moved_s + (2000.0 - before) * 1.5);
    assert_close(
        record.jobs[8].comm_s.expect("it is modelled"),
        before * 2.0 / 3.0 + (2000.0 - before) * 0.5,
    );
}

#[test]
fn a_job_that_can_never_fit_is_named() {
    let typed = typed_topology(&[(0, 2, "a"), (0, 2, "b")]);
    let four = scenario(vec![job(0.0, 2, 1.0), job(0.0, 4, 1.0)]);
    let error = try_run("fifo", &Settings::default(), &typed, &four, &Options::default());
    let Err(Error::NeverFits { name, gpus, kind, .. }) = error else {
        panic!("four GPUs of one type do not exist");
    };
    assert_eq!((name.as_str(), gpus, kind), ("at 0", 4, None));
    let wrong = Job { gpu_type: Some("c".into()), ..job(0.0, 1, 1.0) };
    let error =
        try_run("fifo", &Settings::default(), &typed, &scenario(vec![wrong]), &Options::default());
    assert!(matches!(error, Err(Error::NeverFits { kind: Some(k), .. }) if k == "c"));
}

#[test]
fn a_cluster_that_stays_down_is_reported() {
    let mut dead = scenario(vec![job(0.0, 1, 100.0)]);
    dead.machines = vec![(10.0, 0, false)];
    let error =
        try_run("fifo", &Settings::default(), &topology(&[(0, 1)]), &dead, &Options::default());
    let stuck = Error::Stuck { policy: "fifo".into(), waiting: 1, now: 10.0 };
    assert_eq!(error, Err(stuck));
}

#[test]
fn a_repair_may_take_far_longer_than_the_jobs() {
    let one = topology(&[(0, 1)]);
    let mut dark = scenario(vec![job(0.0, 1, 100.0)]);
    dark.machines = vec![(0.0, 0, false), (1e6, 0, true)];
    assert_eq!(ends("fifo", &one, &dark, &Options::default()), [1e6 + 100.0]);
    let faults = Some(Faults { seed: 1, between_s: 50.0, repair_s: 86_400.0 });
    let often = Scenario { faults, ..scenario(vec![job(0.0, 1, 100.0)]) };
    assert!(ends("fifo", &one, &often, &checkpoints(10.0, true))[0] > 100.0);
    // No checkpoint is ever reached: the run says so and does not go on for ever.
    let hopeless = Scenario { faults, ..scenario(vec![job(0.0, 1, 5000.0)]) };
    let error = try_run("fifo", &Settings::default(), &one, &hopeless, &checkpoints(5000.0, true));
    assert!(matches!(error, Err(Error::Endless { .. })), "{error:?}");
}

#[test]
fn a_scripted_failure_starts_no_chain_of_random_ones() {
    let two = topology(&[(0, 1), (0, 1)]);
    let faults = Some(Faults { seed: 3, between_s: 2000.0, repair_s: 100.0 });
    let by_chance = Scenario { faults, ..scenario(vec![job(0.0, 1, 50_000.0)]) };
    // The job runs on machine 0. Machine 1 goes down and up by the script, over and over again.
    let blinks = (1..50).map(|n| (f64::from(n) * 10.0, 1, n % 2 == 0)).collect();
    let scripted = Scenario { machines: blinks, ..by_chance.clone() };
    let events = |scenario| {
        try_run("fifo", &Settings::default(), &two, &scenario, &checkpoints(10.0, true))
            .map(|record| record.summary.events)
            .expect("it ends")
    };
    let (without, with) = (events(by_chance), events(scripted));
    assert!(with <= without + 49, "{with} events with the script, {without} without");
}

#[test]
fn a_machine_is_up_when_neither_script_nor_chance_holds_it_down() {
    let one = topology(&[(0, 1)]);
    let faults = Some(Faults { seed: 3, between_s: 2000.0, repair_s: 100.0 });
    let machines = vec![(0.0, 0, false), (1e5, 0, true)];
    let dark = Scenario { faults, machines, ..scenario(vec![job(0.0, 1, 100.0)]) };
    assert!(ends("fifo", &one, &dark, &checkpoints(10.0, true))[0] >= 1e5 + 100.0);
}

#[test]
fn measured_profiles_that_are_stretched_leave_a_note() {
    let mut model = profile(0.0);
    model.table = vec![Measured { placement: vec![1, 1], step_s: 3.0 }];
    let with = |gpus| Job { profile: Arc::new(model.clone()), ..job(0.0, gpus, 10.0) };
    let three = topology(&[(0, 1), (0, 1), (0, 1)]);
    let exact = run("fifo", &three, vec![with(2)]);
    assert_eq!((finishes(&exact), exact.summary.notes.len()), (vec![30.0], 0));
    let beyond = run("fifo", &three, vec![with(3)]);
    assert_eq!((finishes(&beyond), beyond.summary.notes.len()), (vec![30.0], 1));
    assert_eq!(Profile::default_restart_s(), 62.0);
}

fn mixed_jobs() -> Vec<Job> {
    let one = |n: u32| {
        let user = format!("u{}", n % 3);
        let gigabytes = f64::from(n % 4) * 0.3;
        let gpus = [1, 2, 1, 4, 3][n as usize % 5];
        Job {
            user,
            ..talking_job(f64::from(n / 2) * 61.0, gpus, f64::from(100 + n * 37 % 900), gigabytes)
        }
    };
    (0..40).map(one).collect()
}

fn faulty() -> Scenario {
    let faults = Some(Faults { seed: 5, between_s: 3000.0, repair_s: 200.0 });
    Scenario { faults, ..scenario(mixed_jobs()) }
}

#[test]
fn the_same_scenario_gives_the_same_record_under_every_policy() {
    let six = topology(&[(0, 2), (0, 2), (1, 2), (1, 2), (2, 1), (2, 4)]);
    for entry in policy::TABLE {
        let go = || {
            let settings = Settings::default();
            try_run(entry.name, &settings, &six, &faulty(), &Options::default())
        };
        let first = go().expect("the run keeps all invariants");
        assert_eq!(first.summary.finished, 40, "{}", entry.name);
        assert_eq!(Ok(first), go(), "{}", entry.name);
    }
}

#[test]
fn every_policy_meets_the_same_failures() {
    let six = topology(&[(0, 2), (0, 2), (1, 2), (1, 2), (2, 1), (2, 4)]);
    let machine_events = |policy: &str| -> Vec<EventRow> {
        let run = try_run(policy, &Settings::default(), &six, &faulty(), &Options::default());
        let of_machines = |e: &EventRow| {
            matches!(e.what, Happening::MachineDown { .. } | Happening::MachineUp { .. })
        };
        run.expect("it ends").events.into_iter().filter(of_machines).collect()
    };
    let fifo = machine_events("fifo");
    assert!(fifo.len() > 4, "machines fail in this test");
    for other in ["srtf", "dally", "gandiva"].map(machine_events) {
        // Runs end at different times; up to the first end all is the same.
        let both = fifo.len().min(other.len());
        assert!(both > 4);
        assert_eq!(fifo[..both], other[..both]);
    }
}

/// Every job starts when the one before it has started and enough GPUs are free.
fn fifo_by_hand(gpus: u32, jobs: &[Job]) -> Vec<f64> {
    let mut ends: Vec<f64> = Vec::new();
    let mut started = 0.0f64;
    for job in jobs {
        let Length::Iterations(seconds) = job.length else { unreachable!("as built below") };
        let earliest = started.max(job.submit_s);
        let mut moments: Vec<f64> = ends.iter().copied().filter(|&e| e > earliest).collect();
        moments.push(earliest);
        moments.sort_by(f64::total_cmp);
        let free_at = |t: f64| {
            let busy = ends.iter().zip(jobs).filter(|(end, _)| **end > t).map(|(_, j)| j.gpus);
            gpus - busy.sum::<u32>()
        };
        started = moments.into_iter().find(|&t| free_at(t) >= job.gpus).expect("it fits");
        ends.push(started + seconds);
    }
    ends
}

proptest! {
    #[test]
    fn fifo_agrees_with_a_plain_reference(
        machines in prop::collection::vec((0..3u32, 1..5u32), 1..6),
        wishes in prop::collection::vec((0..60u32, 1..9u32, 1..200u32), 1..40),
    ) {
        let gpus: u32 = machines.iter().map(|m| m.1).sum();
        let mut submit_s = 0.0;
        let mut jobs = Vec::new();
        for (gap, wanted, iterations) in wishes {
            submit_s += f64::from(gap);
            jobs.push(job(submit_s, wanted.min(gpus), f64::from(iterations)));
        }
        let want = fifo_by_hand(gpus, &jobs);
        prop_assert_eq!(finishes(&run("fifo", &topology(&machines), jobs)), want);
    }
}
