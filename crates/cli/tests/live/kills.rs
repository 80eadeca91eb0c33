//! The scheduler is killed fifty times while jobs come and go, its commands fail and are slow, and
//! Slurm's own daemons are restarted. What counts is what Slurm and the jobs themselves recorded.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use hither_core::seed::stream;
use rand::RngExt;

use crate::bed::{Bed, Mark, until};
use crate::story::FAST;

const SEED: u64 = 15;
const KILLS: u32 = 50;

/// GPUs of a gang, and how its user asks Slurm for them.
const SHAPES: [(u32, &[&str]); 10] = [
    (1, &["--gpus=1"]),
    (2, &["--gpus=2"]),
    (3, &["--gpus=3"]),
    (4, &["--gpus=4"]),
    (6, &["--gpus=6"]),
    (8, &["--gpus=8"]),
    (3, &["--gpus-per-node=3"]),
    (8, &["-N2", "--gpus-per-node=4"]),
    (6, &["-N3", "--gres=gpu:a100:2"]),
    (4, &["-n2", "--gpus-per-task=2"]),
];

/// One command in ten fails without effect, one fails after it took effect, one is slow.
const FAULTS: &str = "\
case $((RANDOM % 10)) in
0) echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1 ;;
1) /usr/bin/$name \"$@\" >/dev/null; echo 'error: Socket timed out on send/recv operation' >&2; exit 1 ;;
2) sleep 0.3 ;;
esac";

#[test]
fn fifty_kills_lose_nothing_and_start_nothing_twice() {
    println!("seed {SEED}");
    let mut rng = stream(SEED, "kills");
    let bed = Bed::new(2, 4, 4);
    let bin = bed.wrapped(FAULTS);
    let flags = [FAST, &["--slurm-bin", &bin, "--start-limit-s", "6"]].concat();
    let mut sizes: BTreeMap<String, u32> = BTreeMap::new();
    let mut scheduler = bed.schedule(&flags);
    for kill in 0..KILLS {
        if kill % 3 == 0 {
            let (gpus, asks) = SHAPES[rng.random_range(0..SHAPES.len())];
            let steps = rng.random_range(5..60);
            let signal = "--comment=hither: model=bert iterations=1e5 signal=USR1 grace=0.2";
            let more: &[&str] = if rng.random_bool(0.5) { &[signal] } else { &[] };
            let job = until("Slurm to take a job", 20, || {
                bed.try_submit(&[&["-H", "--requeue"], asks, more].concat(), steps)
            });
            sizes.insert(job, gpus);
        }
        match kill {
            10 => {
                bed.slurm.await_saved();
                bed.slurm.kill_controller();
                bed.slurm.start_controller().unwrap();
            }
            35 => {
                bed.slurm.stop_controller();
                bed.slurm.start_controller().unwrap();
            }
            25 => {
                bed.slurm.kill_node(2);
                bed.slurm.start_node(2).unwrap();
            }
            _ => {}
        }
        thread::sleep(Duration::from_millis(rng.random_range(20..700)));
        scheduler.kill();
        scheduler = bed.schedule(&flags);
    }
    let jobs: Vec<String> = sizes.keys().cloned().collect();
    bed.await_all_completed(&jobs, 90);
    scheduler.kill();
    judge(&bed.marks(), &sizes, bed.slurm.nodes() * bed.slurm.shape.gpus);
    completed_once(&bed, &jobs);
    let replayed = bed.told(&["schedule", "--replay", &bed.journal()]);
    assert!(replayed.contains("the same decisions"), "{replayed}");
}

/// What the jobs wrote: every job ran to its end once, never twice at a time, never lost a
/// checkpoint, and all together never had more GPUs than there are.
fn judge(marks: &[Mark], sizes: &BTreeMap<String, u32>, gpus: u32) {
    let mut running: BTreeMap<&str, u64> = BTreeMap::new();
    let mut saved: BTreeMap<&str, u64> = BTreeMap::new();
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    let mut in_order: Vec<&Mark> = marks.iter().collect();
    in_order.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    for mark in in_order {
        let job = mark.job.as_str();
        match mark.what.as_str() {
            "start" => {
                assert!(!running.contains_key(job), "job {job} was started twice");
                assert!(mark.done >= saved.get(job).copied().unwrap_or(0), "job {job} lost work");
                running.insert(job, mark.done);
                let taken: u32 = running.keys().map(|job| sizes[*job]).sum();
                assert!(taken <= gpus, "{taken} GPUs of {gpus} are taken");
            }
            "saved" => drop(saved.insert(job, mark.done)),
            "stop" => {
                saved.insert(job, mark.done);
                running.remove(job);
            }
            "end" => {
                running.remove(job);
                *ends.entry(job).or_default() += 1;
            }
            other => panic!("{other}"),
        }
    }
    for job in sizes.keys() {
        assert_eq!(ends.get(job.as_str()), Some(&1), "ends of job {job}");
    }
}

/// Slurm's own record of ended jobs.
fn completed_once(bed: &Bed, jobs: &[String]) {
    let log = std::fs::read_to_string(bed.slurm.dir.join("log/jobcomp")).unwrap();
    for job in jobs {
        let id = format!("JobId={job} ");
        let ended = log.lines().filter(|l| l.starts_with(&id) && l.contains("JobState=COMPLETED"));
        assert_eq!(ended.count(), 1, "job {job}");
    }
}
