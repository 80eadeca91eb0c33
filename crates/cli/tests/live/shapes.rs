//! Every way in which users ask Slurm for GPUs: gangs start where they were placed, in the shape that
//! they asked for.

use std::collections::BTreeMap;

use hither_live::slurm::testbed::Shape as SlurmShape;
use serde_json::Value;

use crate::bed::Bed;
use crate::story::{FAST, racks};

/// GPUs by node of a running job, as Slurm has it.
fn held(bed: &Bed, job: &str) -> BTreeMap<String, u32> {
    let text = bed.slurm.ask("scontrol", &["-d", "show", "job", job]).unwrap();
    hither_live::slurm::read::records(&text)[job]
        .holds
        .iter()
        .map(|held| (held.node.clone(), held.gpus))
        .collect()
}

/// As a user would, with the site's job_submit script: nobody says `-H`.
#[test]
fn users_keep_sbatch() {
    let bed = Bed::with(SlurmShape { racks: 1, machines: 2, gpus: 4 }, "JobSubmitPlugins=lua");
    let entered = |args: &[&str]| {
        let job = bed.submit_foreign(args, 3);
        let row = bed.slurm.ask("squeue", &["-h", "-j", &job, "-o", "%r|%k"]).unwrap();
        (job, row.trim().to_owned())
    };
    let comment = "--comment=hither: model=bert iterations=30";
    let (first, row) = entered(&["--gpus=2", comment]);
    assert_eq!(row, "JobHeldUser|hither: model=bert iterations=30");
    let (second, row) = entered(&["-n2", "--gpus-per-task=2"]);
    assert!(row.starts_with("JobHeldUser|"), "{row}");
    let (without, row) = entered(&["-n1"]);
    assert!(!row.starts_with("JobHeldUser|"), "{row}");
    let mut scheduler = bed.schedule(FAST);
    bed.await_all_completed(&[first.clone(), second, without], 40);
    assert!(bed.told(&["explain", &first]).contains("starts on"));
    scheduler.kill();
}

#[test]
fn gangs_of_every_shape_start_where_they_were_placed() {
    let bed = Bed::new(2, 4, 4);
    // One GPU of n0 is taken: no gang that wants whole machines fits there.
    let other = bed.submit_foreign(&["--gpus=1", "-w", "n0"], 300);
    bed.await_state(&other, "RUNNING", 10);
    let mut scheduler = bed.schedule(FAST);
    // (how it asks, GPUs on each node)
    let shapes: [(&[&str], &[u32]); 6] = [
        (&["-N2", "--gpus-per-node=4"], &[4, 4]),
        (&["-N3", "--gres=gpu:a100:2"], &[2, 2, 2]),
        (&["--gpus-per-node=3"], &[3]),
        (&["-N2", "--gpus=8"], &[4, 4]),
        (&["-n4", "--gpus-per-task=2", "--ntasks-per-node=2"], &[4, 4]),
        (&["-n2", "--gpus-per-task=2"], &[4]),
    ];
    for (asks, gpus) in shapes {
        let job = bed.submit_foreign(&[&["-H", "--requeue"], asks].concat(), 15);
        let nodes = bed.first_start(&job).nodes;
        let held = held(&bed, &job);
        assert_eq!(held.values().copied().collect::<Vec<_>>(), gpus, "{asks:?} on {held:?}");
        assert_eq!(racks(&nodes), 1, "{asks:?} on {nodes}");
        let why = bed.told(&["explain", &job]);
        assert!(why.contains("starts on"), "{asks:?}: {why}");
        bed.await_all_completed(&[job], 30);
    }
    // One that may not be requeued is nobody's victim: the newcomer waits for a job that may.
    let stays = bed.submit_foreign(&["-H", "-N4", "--gpus-per-node=4", "--no-requeue"], 150);
    let goes = bed.submit_foreign(&["-H", "-N3", "--gpus-per-node=4", "--requeue"], 150);
    [&stays, &goes].iter().for_each(|job| drop(bed.first_start(job)));
    let newcomer = bed.submit_foreign(&["-H", "-N2", "--gpus-per-node=4", "--requeue"], 5);
    bed.first_start(&newcomer);
    let stops: Vec<String> =
        bed.marks().into_iter().filter(|m| m.what == "stop").map(|m| m.job).collect();
    assert_eq!(stops, [goes]);
    // What would become of the cluster from here on, by what Slurm tells and by the journal.
    let simulated = |from: &str| -> Value {
        let told = bed.told(&["simulate", "--from", from, "--policy", "dally,fifo", "--json"]);
        serde_json::from_str(&told).unwrap()
    };
    let from_slurm = simulated("slurm");
    scheduler.kill();
    for summaries in [from_slurm, simulated(&bed.journal())] {
        for run in summaries["runs"].as_array().unwrap() {
            assert!(run["jobs"].as_u64().unwrap() >= 2, "{run}");
            assert_eq!(run["jobs"], run["finished"], "{run}");
        }
    }
}
