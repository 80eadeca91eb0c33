//! The end-to-end story: two racks of four machines of four GPUs.

use serde_json::Value;

use crate::bed::{Bed, until};

/// The default policy, with rounds of a second, so that a story takes less than a minute.
pub const FAST: &[&str] = &[
    "--set",
    "dally.round_s=1",
    "--set",
    "dally.quantum_s=3",
    "--release-after-s",
    "0",
    "--grace-s",
    "0.5",
];

/// Fixed timers of seconds: a job gives in before it can know what waiting brings.
pub const TIMERS: &[&str] =
    &["--set", "dally.timers=fixed", "--set", "dally.machine_s=30", "--set", "dally.rack_s=1"];

fn row(bed: &Bed, job: &str) -> Option<Value> {
    let rows: Vec<Value> = serde_json::from_str(&bed.told(&["queue", "--json"])).ok()?;
    rows.into_iter().find(|row| row["job"] == job)
}

pub fn racks(nodes: &str) -> usize {
    let names = hither_sched::topo::expand(nodes).unwrap();
    let racks: std::collections::BTreeSet<u32> =
        names.iter().map(|name| name[1..].parse::<u32>().unwrap() / 4).collect();
    racks.len()
}

/// Two foreign jobs leave n3 and n7 free, in racks of their own, for six seconds.
fn others(bed: &Bed) {
    let others = ["n[0-2]", "n[4-6]"]
        .map(|nodes| bed.submit_foreign(&["-N3", "--gpus-per-node=4", "-w", nodes], 60));
    others.iter().for_each(|job| bed.await_state(job, "RUNNING", 10));
}

/// What a rack saves is latency, which counts over this many iterations.
const LONG: &str = "--comment=night run hither: model=vgg16 iterations=1e9 signal=USR1 grace=0.5";

#[test]
fn a_job_that_gave_in_moves_when_a_rack_is_free() {
    let bed = Bed::new(2, 4, 4);
    others(&bed);
    let _scheduler = bed.schedule(&[FAST, TIMERS].concat());
    let upgraded = bed.submit(8, 100, &[LONG]);
    assert_eq!(bed.first_start(&upgraded).nodes, "n[3,7]");
    // The others end; one rack has room; the job moves there and goes on from its checkpoint.
    let starts = until("the upgrade", 30, || Some(bed.starts(&upgraded)).filter(|s| s.len() == 2));
    assert_eq!(racks(&starts[1].nodes), 1, "{starts:?}");
    assert!(starts[1].done > 0, "{starts:?}");
    assert!(bed.told(&["explain", &upgraded]).contains("moves to one rack"));
}

#[test]
fn gangs_wait_are_placed_preempted_and_all_complete() {
    let bed = Bed::new(2, 4, 4);
    others(&bed);
    let mut scheduler = bed.schedule(FAST);
    bed.await_log("decides for partition", 20);

    // Two racks would cost it more than the wait: it declines them until the others end.
    let patient = bed.submit(8, 250, &[LONG]);
    let why = until("the job to decline", 10, || {
        row(&bed, &patient)?["why"]
            .as_str()
            .filter(|why| why.contains("declines"))
            .map(str::to_owned)
    });
    assert!(why.contains("declines the whole network: it would lose"), "{why}");
    assert_eq!(racks(&bed.first_start(&patient).nodes), 1);

    // Six machines are free. Six jobs take three GPUs of each; the seventh wants a whole machine and
    // declines what is scattered, until the first of them ends.
    let mut jobs: Vec<String> = vec![patient];
    let short = bed.submit(3, 12, &[]);
    let long: Vec<String> = (0..5).map(|_| bed.submit(3, 120, &[])).collect();
    until("the six to run", 15, || {
        let states = bed.states();
        let runs = |job: &&String| states.get(*job).is_some_and(|s| s == "RUNNING");
        (long.iter().filter(runs).count() == 5).then_some(())
    });
    let choosy = bed.submit(4, 120, &["--comment=hither: model=vgg16"]);
    until("the choosy job to decline", 10, || {
        row(&bed, &choosy)?["why"].as_str().filter(|why| why.contains("declines")).map(drop)
    });
    let at = bed.first_start(&choosy).nodes;
    assert_eq!(at, bed.first_start(&short).nodes, "it takes the machine that became free");

    // All machines are full. A new job has the better claim: one machine is freed for it.
    let newcomer = bed.submit(4, 10, &[]);
    let at = bed.first_start(&newcomer).nodes;
    // Another job may move meanwhile.
    let mut marks = bed.marks().into_iter();
    let was_at = |nodes: &str| hither_sched::topo::expand(nodes).unwrap().contains(&at);
    let victim =
        marks.rfind(|m| m.what == "stop" && was_at(&m.nodes)).expect("a job was stopped there");
    assert!(
        bed.told(&["explain", &victim.job]).contains(&format!("makes room for job {newcomer}"))
    );

    jobs.extend([short, choosy, newcomer]);
    jobs.extend(long);
    bed.await_all_completed(&jobs, 60);
    let resumed = bed.starts(&victim.job);
    assert!(resumed.len() >= 2 && resumed[1].done >= victim.done, "{resumed:?}");
    // Every start was where the scheduler had decided: nothing was found elsewhere.
    assert!(!bed.log().contains("runs on other GPUs"), "{}", bed.log());

    let metrics = hither_live::serve::get(&bed.state.join("socket"), "/metrics").unwrap().1;
    let starts = metrics.lines().find_map(|l| l.strip_prefix("hither_starts_total ")).unwrap();
    assert!(starts.parse::<u32>().unwrap() >= 10, "{starts}");
    let is_over = || bed.told(&["explain", &jobs[0]]).contains("is over");
    until("the last end to be seen", 10, || is_over().then_some(()));
    scheduler.kill();
    let replayed = bed.told(&["schedule", "--replay", &bed.journal()]);
    assert!(replayed.contains("the same decisions"), "{replayed}");
    assert!(is_over(), "its journal says so too");
}
