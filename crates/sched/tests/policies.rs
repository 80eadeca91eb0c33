//! Each policy on a scenario that shows what it is about.

use crate::common;

use std::sync::Arc;

use common::*;
use hither_core::record::{Reason, RunRecord};
use hither_core::topology::Topology;
use hither_sched::cluster::Cluster;
use hither_sched::job::{Job, Profile};
use hither_sched::policy::{Settings, dally};
use hither_sched::sim::{Options, Scenario};

fn machine(gpus: u32) -> Topology {
    topology(&[(0, gpus)])
}

fn of_user(user: &str, job: Job) -> Job {
    Job { user: user.into(), ..job }
}

// ---- fifo, first-fit, fair-share ----

#[test]
fn the_head_of_fifos_line_blocks_and_first_fit_skips_it() {
    let jobs = || vec![job(0.0, 3, 100.0), job(1.0, 4, 10.0), job(2.0, 1, 10.0)];
    assert_eq!(first_starts(&run("fifo", &machine(4), jobs())), [0.0, 100.0, 110.0]);
    assert_eq!(first_starts(&run("first-fit", &machine(4), jobs())), [0.0, 100.0, 2.0]);
}

#[test]
fn first_fit_takes_the_first_machine_and_fifo_the_tightest() {
    let uneven = topology(&[(0, 4), (0, 2)]);
    let place = |policy| run(policy, &uneven, vec![job(0.0, 2, 1.0)]).jobs[0].machines.clone();
    assert_eq!(place("first-fit"), [(0, 2)]);
    assert_eq!(place("fifo"), [(1, 2)]);
}

#[test]
fn users_take_turns_under_fair_share() {
    let from = |user: &str| (0..3).map(|_| of_user(user, job(0.0, 1, 100.0))).collect::<Vec<_>>();
    let all = [from("a"), from("b")].concat();
    let one = run("fair-share", &machine(1), all.clone());
    assert_eq!(first_starts(&one), [0.0, 200.0, 400.0, 100.0, 300.0, 500.0]);
    // Two GPUs at once: one for each user, though the first three jobs are all of one.
    let two = run("fair-share", &machine(2), all.clone());
    assert_eq!(first_starts(&two), [0.0, 100.0, 200.0, 0.0, 100.0, 200.0]);
    assert_eq!(
        first_starts(&run("fifo", &machine(2), all)),
        [0.0, 0.0, 100.0, 100.0, 200.0, 200.0]
    );
}

// ---- srtf, srsf ----

#[test]
fn srtf_looks_at_time_and_srsf_at_time_times_gpus() {
    // At 10 the gang has 90 s or 360 GPU-s left, the single 150 of either.
    let jobs = || vec![job(0.0, 4, 100.0), job(10.0, 1, 150.0)];
    assert_eq!(finishes(&run("srtf", &machine(4), jobs())), [100.0, 250.0]);
    let by_service = run("srsf", &machine(4), jobs());
    // The gang waits until 160 and restarts.
    assert_eq!(finishes(&by_service), [260.0, 160.0]);
    assert_eq!(preemptions(&by_service), [(10.0, 0, Reason::Priority)]);
}

#[test]
fn srtf_preempts_for_a_shorter_job_only() {
    let jobs = vec![job(0.0, 1, 100.0), job(40.0, 1, 61.0), job(50.0, 1, 49.0)];
    let record = run("srtf", &machine(1), jobs);
    assert_eq!(preemptions(&record), [(50.0, 0, Reason::Priority)]);
    // 49 s from 50 on; then the first, with 50 left, restarts; then the longest.
    assert_eq!(finishes(&record), [159.0, 220.0, 99.0]);
}

// ---- tiresias ----

#[test]
fn tiresias_demotes_at_its_threshold_and_then_prefers_new_jobs() {
    // Two GPUs reach 3250 GPU-s after 1625 s. Until then the running job goes before the waiting
    // one of the same queue; a newcomer after that preempts at once.
    let jobs = vec![job(0.0, 2, 5000.0), job(1000.0, 2, 100.0), job(2000.0, 2, 10.0)];
    let record = run("tiresias-authors", &machine(2), jobs);
    let why = Reason::Priority;
    assert_eq!(preemptions(&record), [(1625.0, 0, why), (2000.0, 0, why)]);
    assert_eq!(first_starts(&record), [0.0, 1625.0, 2000.0]);
    // 1625 done by then, 265 more from 1735 to 2000, the last 3110 from 2020 on.
    assert_eq!(finishes(&record), [5130.0, 1725.0, 2010.0]);
}

#[test]
fn tiresias_promotes_a_job_that_waits_too_long() {
    let jobs = || vec![job(0.0, 1, 9000.0), job(3000.0, 1, 20_000.0)];
    let second_start = |knob| {
        let mut settings = Settings::default();
        settings.tiresias.promote_knob = knob;
        starts(&run_with("tiresias-authors", &settings, &machine(1), jobs()), 0)[1].0
    };
    // The second job runs from 3250 and meets the second threshold at 3250 + 7200.
    assert_eq!(second_start(f64::INFINITY), 10_450.0);
    // With the knob the first starts over after twice the 3250 s that it has run.
    assert_eq!(second_start(2.0), 3250.0 + 2.0 * 3250.0);
}

#[test]
fn tiresias_consolidates_skewed_models_and_no_others() {
    let three = topology(&[(0, 2), (1, 4), (1, 4)]);
    let tier = |skew| {
        let model = Arc::new(hither_sched::job::Profile { skew, ..profile(0.0) });
        run("tiresias", &three, vec![Job { profile: model, ..job(0.0, 6, 1.0) }]).jobs[0].tier
    };
    assert_eq!((tier(0.5), tier(0.49)), (1, 2));
}

#[test]
fn tiresias_learns_its_thresholds_from_the_jobs_that_ended() {
    let mut jobs: Vec<Job> = (0..20).map(|_| job(0.0, 1, 100.0)).collect();
    jobs.extend([job(2000.0, 1, 5000.0), job(2500.0, 1, 10.0)]);
    let last_start = |policy| first_starts(&run(policy, &machine(1), jobs.clone()))[21];
    // All jobs so far had 100 GPU-s, so the long one is in the last queue from 2100 on.
    assert_eq!(last_start("tiresias"), 2500.0);
    assert_eq!(last_start("tiresias-authors"), 2000.0 + 3250.0);
}

/// A pair that finds one GPU free on either machine at 2; the first falls free at 1000.
fn pair_among_singles(policy: &str, gigabytes: f64) -> RunRecord {
    let lengths = [1000.0, 1.0, 1e6, 1.0];
    let mut jobs: Vec<Job> = lengths.into_iter().map(|s| job(0.0, 1, s)).collect();
    jobs.push(talking_job(2.0, 2, 1000.0, gigabytes));
    run(policy, &topology(&[(0, 2), (0, 2)]), jobs)
}

#[test]
fn strict_policies_wait_for_the_best_tier_and_tiresias_plus_only_if_that_matters() {
    let start = |policy, gigabytes| starts(&pair_among_singles(policy, gigabytes), 4)[0];
    for (policy, strict) in [("tiresias", "tiresias-strict"), ("las", "las-strict")] {
        assert_eq!(start(policy, 0.0), (2.0, 1), "{policy}");
        assert_eq!(start(strict, 0.0).1, 0, "{strict}");
    }
    assert_eq!(start("tiresias-strict", 0.0), (1000.0, 0));
    assert_eq!(start("tiresias-plus", 0.0), (2.0, 1));
    assert_eq!(start("tiresias-plus", 1.0), (1000.0, 0));
}

#[test]
fn strict_policies_make_room_in_one_place() {
    // Singles: two on either machine. The longest of each machine go for a pair, or both of one.
    let lengths = [500.0, 5000.0, 600.0, 6000.0];
    let mut jobs: Vec<Job> = (0..).zip(lengths).map(|(n, s)| job(f64::from(n), 1, s)).collect();
    jobs.push(job(10.0, 2, 100.0));
    let out = |policy| {
        let record = run(policy, &topology(&[(0, 2), (0, 2)]), jobs.clone());
        let victims: Vec<u32> = preemptions(&record).iter().map(|p| p.1).collect();
        (starts(&record, 4)[0], victims[..2].to_vec())
    };
    assert_eq!(out("srtf"), ((10.0, 1), vec![1, 3]));
    assert_eq!(out("srtf-strict"), ((10.0, 0), vec![2, 3]));
}

#[test]
fn las_gives_gpus_to_the_least_served_at_the_end_of_a_lease() {
    let record = run("las", &machine(1), vec![job(0.0, 1, 1000.0), job(10.0, 1, 1000.0)]);
    let turns: Vec<(f64, u32)> = preemptions(&record).iter().map(|p| (p.0, p.1)).collect();
    // At 310 the lease of the first is over; at 610 the second has had 300 s to its 310.
    assert_eq!(turns[..2], [(310.0, 0), (910.0, 1)]);
    assert_eq!(first_starts(&record), [0.0, 310.0]);
}

// ---- gandiva ----

#[test]
fn gandiva_slices_time_where_gpus_are_promised_twice() {
    let record = run("gandiva", &machine(1), vec![job(0.0, 1, 200.0), job(0.0, 1, 200.0)]);
    // Turns of 60 s, of which a resume takes 1: 60 + 59 + 59 + 22.
    assert_eq!(finishes(&record), [383.0, 406.0]);
    let slices = preemptions(&record);
    let times: Vec<f64> = slices.iter().map(|p| p.0).collect();
    assert_eq!(times, [60.0, 120.0, 180.0, 240.0, 300.0, 360.0]);
    assert!(slices.iter().all(|p| p.2 == Reason::TimeSlice));
}

#[test]
fn gandiva_keeps_jobs_of_a_size_together() {
    let jobs = vec![job(0.0, 1, 10.0), job(0.0, 2, 10.0), job(0.0, 1, 10.0)];
    let record = run("gandiva", &topology(&[(0, 4), (0, 4)]), jobs);
    let on: Vec<u32> = record.jobs.iter().map(|j| j.machines[0].0).collect();
    assert_eq!(on, [0, 1, 0]);
    assert_eq!(first_starts(&record), [0.0; 3]);
}

#[test]
fn gandiva_moves_a_spread_job_together_when_another_departs() {
    let record = pair_among_singles("gandiva", 1.0);
    assert_eq!(starts(&record, 4), [(2.0, 1), (1000.0, 0)]);
    assert_eq!(preemptions(&record), [(1000.0, 4, Reason::Migration)]);
    // 499 iterations of 2 s, a move of 1 s and 2.5 s per 1.4 GB, 501 iterations of 1 s.
    assert_close(record.jobs[4].finish_s, 1000.0 + 1.0 + 2.5 / 1.4 + 501.0);
}

#[test]
fn gandiva_counts_machines_and_gandiva_rack_racks_too() {
    // Pairs fill four machines in two racks. Those in the middle end; a gang takes their place, and at
    // 1000 the last machine falls free.
    let mut jobs: Vec<Job> = [1e6, 1.0, 1.0, 1000.0].map(|s| job(0.0, 2, s)).into();
    jobs.push(job(2.0, 4, 5000.0));
    let four = topology(&[(0, 2), (0, 2), (1, 2), (1, 2)]);
    let moves = |policy| starts(&run(policy, &four, jobs.clone()), 4);
    assert_eq!(moves("gandiva"), [(2.0, 2)]);
    assert_eq!(moves("gandiva-rack"), [(2.0, 2), (1000.0, 1)]);
}

#[test]
fn gandiva_empties_the_machine_with_the_most_free_gpus() {
    // A pair on the first machine, singles on the second. At 700 one of them ends.
    let jobs = vec![job(0.0, 2, 5000.0), job(0.0, 1, 5000.0), job(0.0, 1, 700.0)];
    let record = run("gandiva", &topology(&[(0, 4), (0, 4)]), jobs);
    assert_eq!(preemptions(&record), [(700.0, 1, Reason::Migration)]);
    assert_eq!(record.jobs[1].machines, [(0, 1)]);
    assert_close(record.jobs[1].finish_s, 5001.0);
}

// ---- themis ----

#[test]
fn themis_moves_a_job_whose_lease_is_over_to_a_better_place() {
    // A gang of four keeps auctions going; at 3000, when a machine falls free, the pair's lease is over.
    let lengths = [3000.0, 1.0, 1e6, 1.0];
    let mut jobs: Vec<Job> = lengths.into_iter().map(|s| job(0.0, 1, s)).collect();
    jobs.extend([talking_job(2.0, 2, 4000.0, 1.0), job(3.0, 4, 1e6)]);
    let moved = |sensitive| {
        let mut settings = Settings::default();
        settings.themis.sensitive = sensitive;
        let record = run_with("themis", &settings, &topology(&[(0, 2), (0, 2)]), jobs.clone());
        starts(&record, 4).iter().any(|start| start.1 == 0 && start.0 >= 3000.0)
    };
    assert!(moved(true) && !moved(false));
}

#[test]
fn themis_serves_the_most_unfairly_treated_when_a_lease_ends() {
    // At 1200 the first lease is over. ρ: (1200 + 8800)/10000, (1200 + 10000)/10000,
    // (1200 + 1000)/1000: the short job; when it ends, the one that never ran.
    let jobs = vec![job(0.0, 1, 10_000.0), job(0.0, 1, 10_000.0), job(0.0, 1, 1000.0)];
    let record = run("themis", &machine(1), jobs);
    assert_eq!(first_starts(&record), [0.0, 2200.0, 1200.0]);
    assert_eq!(record.jobs[2].finish_s, 2200.0);
    assert!(preemptions(&record).iter().all(|p| p.0 >= 1200.0));
}

// ---- dally: delays ----

/// Fixed timers of 100 s for a machine and 200 s for a rack, and nothing else.
fn delays() -> Settings {
    let mut settings = Settings::default();
    let d = &mut settings.dally;
    (d.timers, d.machine_s, d.rack_s) = (dally::Timers::Fixed, 100.0, 200.0);
    (d.preempt, d.upgrade) = (false, false);
    settings
}

/// Two racks of two machines of four GPUs, each with three GPUs taken for `until[machine]` s.
fn with_blockers(settings: &Settings, policy: &str, until: [f64; 4], late: Job) -> RunRecord {
    let mut jobs: Vec<Job> = until.into_iter().map(|s| job(0.0, 3, s)).collect();
    jobs.push(late);
    let four = topology(&[(0, 4), (0, 4), (1, 4), (1, 4)]);
    run_with(policy, settings, &four, jobs)
}

const LONG: f64 = 1e6;

#[test]
fn dally_declines_a_worse_tier_until_its_timer_runs_out() {
    let late = |gpus| job(10.0, gpus, 50.0);
    let start = |gpus, until| {
        let record = with_blockers(&delays(), "dally", until, late(gpus));
        starts(&record, 4)[0]
    };
    // Two GPUs: a rack is on offer from the start.
    assert_eq!(start(2, [LONG; 4]), (110.0, 1));
    // Four: nothing less than the network, which costs it the rack's timer.
    assert_eq!(start(4, [LONG; 4]), (210.0, 2));
    // The best tier is taken as soon as it falls free.
    assert_eq!(start(2, [LONG, LONG, 50.0, LONG]), (50.0, 0));
    assert_eq!(start(4, [LONG, LONG, LONG, 150.0]), (150.0, 0));
    assert_eq!(start(1, [LONG; 4]), (10.0, 0));
}

#[test]
fn dally_has_ends_of_its_scale() {
    let start = |policy| {
        let late = job(10.0, 2, 50.0);
        starts(&with_blockers(&delays(), policy, [90_000.0, LONG, LONG, LONG], late), 4)[0]
    };
    assert_eq!(start("dally-no-wait"), (10.0, 1));
    assert_eq!(start("dally-consolidate"), (90_000.0, 0));
    assert_eq!(start("dally-manual"), (110.0, 1));
}

#[test]
fn dally_waits_no_longer_than_waiting_is_worth() {
    let mut settings = delays();
    (settings.dally.machine_s, settings.dally.timers) = (50_000.0, dally::Timers::Auto);
    // 300 iterations take 1 s each on a machine and 2 s in a rack: 300 s to lose.
    let talks = talking_job(10.0, 2, 300.0, 1.0);
    let record = with_blockers(&settings, "dally", [LONG; 4], talks);
    assert_eq!(starts(&record, 4), [(310.0, 1)]);
    // Who does not talk has nothing to wait for.
    let silent = with_blockers(&settings, "dally", [LONG; 4], job(10.0, 2, 300.0));
    assert_eq!(starts(&silent, 4), [(10.0, 1)]);
}

/// No preemption and no upgrades: places are final.
fn weighs() -> Settings {
    let mut settings = Settings::default();
    (settings.dally.preempt, settings.dally.upgrade) = (false, false);
    settings
}

#[test]
fn dally_holds_out_as_long_as_accepting_would_cost() {
    // 300 iterations take 1 s each on a machine and 2 s in a rack: 300 s to lose.
    let talks = talking_job(10.0, 2, 300.0, 1.0);
    let record = with_blockers(&weighs(), "dally", [LONG; 4], talks.clone());
    assert_eq!(starts(&record, 4), [(310.0, 1)]);
    // The best tier is taken as soon as it falls free.
    let record = with_blockers(&weighs(), "dally", [LONG, LONG, 50.0, LONG], talks);
    assert_eq!(starts(&record, 4), [(50.0, 0)]);
    // Who does not talk has nothing to wait for.
    let silent = with_blockers(&weighs(), "dally", [LONG; 4], job(10.0, 2, 300.0));
    assert_eq!(starts(&silent, 4), [(10.0, 1)]);
}

#[test]
fn dally_declines_a_place_where_it_would_slow_others() {
    // The pair loses nothing across racks: its 2 s of communication hide behind 4 s of computing. But a
    // neighbour that runs across the same uplinks would take 4 s for each iteration instead of 3.
    let start = |neighbour: Job| {
        let mut pair = talking_job(10.0, 2, 50.0, 1.0);
        let hides = Profile { compute_s: 4.0, overlap: 1.0, backward_share: 1.0, ..profile(1.0) };
        pair.profile = Arc::new(hides);
        let two = topology(&[(0, 2), (1, 2)]);
        let across = placed(&Cluster::new(&two), &[(0, 1), (1, 1)]);
        let running = vec![Arc::new(across)];
        let jobs = Scenario { running, ..scenario(vec![neighbour, pair]) };
        let run = try_run("dally", &weighs(), &two, &jobs, &Options::default());
        starts(&run.expect("it keeps all invariants"), 1)[0]
    };
    assert_eq!(start(job(0.0, 2, 300.0)), (10.0, 2), "nobody to slow");
    assert_eq!(start(talking_job(0.0, 2, 100.0, 1.0)), (300.0, 0), "it lets the neighbour end");
}

#[test]
fn dally_holds_out_only_while_something_is_declined() {
    // A pair arrives at 10. The cluster is full until 1000, then offers a rack; from 1200 to 1700 nothing.
    let mut settings = delays();
    settings.dally.machine_s = 500.0;
    let mut jobs: Vec<Job> =
        [1000.0, LONG, 1000.0, LONG].into_iter().map(|s| job(0.0, 1, s)).collect();
    // The last one waits too: the line is passed over at its arrival.
    jobs.extend([job(10.0, 2, 50.0), job(1200.0, 1, 500.0), job(1201.0, 4, 1.0)]);
    let run = run_with("dally", &settings, &topology(&[(0, 2), (0, 2)]), jobs);
    // 201 s until 1201, 299 s from 1700 on.
    assert_eq!(starts(&run, 4)[0], (1999.0, 1));
}

// ---- dally: preemption, upgrades, the bound on waiting ----

#[test]
fn a_gang_does_not_decline_an_idle_cluster_of_uneven_machines() {
    // No place keeps what the estimate, which counts with machines of average size, promises.
    let uneven = topology(&[(0, 4), (0, 2), (1, 4)]);
    for policy in ["dally", "dally-no-preempt"] {
        for gpus in [5, 6, 8, 9] {
            let record = run(policy, &uneven, vec![talking_job(0.0, gpus, 1000.0, 3.0)]);
            assert_eq!(first_starts(&record), [0.0], "{policy}, {gpus} GPUs");
        }
    }
}

#[test]
fn dally_preempts_the_fewest_jobs_of_one_domain() {
    // One machine has four singles, the other two pairs; a gang of four needs a machine.
    let mut jobs: Vec<Job> = (0..4).map(|_| job(0.0, 1, 5000.0)).collect();
    jobs.extend([job(0.0, 2, 5000.0), job(0.0, 2, 5000.0), job(700.0, 4, 100.0)]);
    let two = topology(&[(0, 4), (0, 4)]);
    let record = run("dally", &two, jobs.clone());
    // The first round after its arrival.
    let why = Reason::Priority;
    assert_eq!(preemptions(&record)[..2], [(900.0, 4, why), (900.0, 5, why)]);
    assert_eq!(starts(&record, 6), [(900.0, 0)]);
    // They are back as soon as the gang is done, and nobody else was moved.
    assert_eq!(starts(&record, 4)[1].0, 1000.0);
    assert_eq!(record.summary.preemptions, 2);
    let calm = run("dally-no-preempt", &two, jobs);
    assert_eq!((calm.summary.preemptions, calm.jobs[6].start_s), (0, Some(5000.0)));
}

#[test]
fn dally_spares_jobs_within_their_quantum_and_claims_that_are_hardly_worse() {
    let mut settings = Settings::default();
    settings.dally.quantum_s = 2000.0;
    let jobs = || vec![job(0.0, 1, 5000.0), job(700.0, 1, 5000.0)];
    let record = run_with("dally", &settings, &machine(1), jobs());
    let turns: Vec<f64> = preemptions(&record).iter().map(|p| p.0).collect();
    // The first is safe until 2000, so the round at 2100. It then waits with 2100 GPU-s, and the
    // other must have more than twice that: not yet at 6300, but one round later.
    assert_eq!(turns, [2100.0, 6600.0]);
}

#[test]
fn dally_by_what_is_left_serves_and_spares_the_shorter_job() {
    // At the round of 900 the first has 4100 s left. Of the two that wait, the later is the shorter.
    let jobs = || vec![job(0.0, 1, 5000.0), job(700.0, 1, 2000.0), job(701.0, 1, 500.0)];
    let mut settings = Settings::default();
    settings.dally.score = dally::Score::Left;
    let record = run_with("dally", &settings, &machine(1), jobs());
    assert_eq!(first_starts(&record)[1..], [1400.0, 900.0]);
    assert_eq!(preemptions(&record), [(900.0, 0, Reason::Priority)]);
    let record = run("dally", &machine(1), jobs());
    assert_eq!(first_starts(&record)[1], 900.0, "by time held the first in line goes first");
}

#[test]
fn dally_preempts_nobody_where_an_earlier_victim_left_room() {
    // Two gangs of four arrive; one victim of eight makes room for both.
    let mut jobs = vec![job(0.0, 8, 5000.0), job(0.0, 8, 5000.0)];
    jobs.extend([job(700.0, 4, 100.0), job(700.0, 4, 100.0)]);
    let record = run("dally", &topology(&[(0, 8), (0, 8)]), jobs);
    assert_eq!(preemptions(&record), [(900.0, 0, Reason::Priority)]);
    assert_eq!(first_starts(&record)[2..], [900.0, 900.0]);
}

/// A pair that talks (1 s an iteration on a machine, 2 s in a rack) and finds one GPU free on
/// either machine at 2. Its best tier falls free at 1000, and the round at 1200 sees that.
fn spread_pair(iterations: f64) -> RunRecord {
    let lengths = [1000.0, 1.0, LONG, 1.0];
    let mut jobs: Vec<Job> = lengths.into_iter().map(|s| job(0.0, 1, s)).collect();
    jobs.push(talking_job(2.0, 2, iterations, 1.0));
    run("dally-no-wait", &topology(&[(0, 2), (0, 2)]), jobs)
}

#[test]
fn dally_moves_a_spread_job_when_its_best_tier_falls_free() {
    let record = spread_pair(1000.0);
    assert_eq!(starts(&record, 4), [(2.0, 1), (1200.0, 0)]);
    assert_eq!(preemptions(&record), [(1200.0, 4, Reason::Upgrade)]);
    // 599 iterations of 2 s, then a restart, then 401 of 1 s.
    assert_close(record.jobs[4].finish_s, 1210.0 + 401.0);
    assert_close(record.jobs[4].comm_s.expect("it is modelled"), 599.0);
}

#[test]
fn dally_moves_a_job_only_if_that_saves_twice_the_restart() {
    // 20 iterations left save 20 s: no more than two restarts of 10 s.
    let stays = spread_pair(619.0);
    assert_eq!((starts(&stays, 4).len(), stays.jobs[4].finish_s), (1, 1240.0));
    let moves = spread_pair(620.0);
    assert_eq!((starts(&moves, 4).len(), moves.jobs[4].finish_s), (2, 1231.0));
}

#[test]
fn dally_lets_nobody_overtake_a_job_that_is_overdue() {
    let start = |overdue_s| {
        let mut settings = delays();
        settings.dally.overdue_s = overdue_s;
        // Singles of 100 s every 50 s keep both GPUs busy; a pair comes at 1.
        let mut jobs: Vec<Job> = (0..100).map(|n| job(50.0 * f64::from(n), 1, 100.0)).collect();
        jobs.insert(1, job(1.0, 2, 10.0));
        first_starts(&run_with("dally", &settings, &machine(2), jobs))[1]
    };
    // The last single ends at 5050. Overdue from 1001: GPUs are saved at 1050 and 1100.
    assert_eq!(start(f64::INFINITY), 5050.0);
    assert_eq!(start(1000.0), 1100.0);
}
