//! Runs that go on without a slow or a dead rank.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    Bed, ENDLESS, HITHER, PATIENCE, ended, json as read_json, rank_pid, signal, started, text,
};

/// Parts that each round so far was without.
fn left_out(bed: &Bed, out: &str) -> Vec<Vec<u64>> {
    let metrics = fs::read_to_string(bed.path(out).join("metrics.jsonl")).unwrap_or_default();
    let rounds = metrics.lines().map_while(|line| serde_json::from_str::<Value>(line).ok());
    let parts = |round: Value| round["left_out"].as_array().cloned().unwrap_or_default();
    rounds.map(|round| parts(round).iter().filter_map(Value::as_u64).collect()).collect()
}

/// Waits for a round after `from` that is, or is not, without this part. Returns its number.
fn wait_until(bed: &Bed, out: &str, from: usize, part: u64, is_left_out: bool) -> usize {
    let start = Instant::now();
    loop {
        let rounds = left_out(bed, out);
        let new = rounds.iter().enumerate().skip(from);
        let found = new.rev().find(|(_, parts)| parts.contains(&part) == is_left_out);
        if let Some((round, _)) = found {
            return round + 1;
        }
        assert!(start.elapsed() < PATIENCE, "part {part}: {rounds:?}");
        sleep(Duration::from_millis(5));
    }
}

/// mpirun that does not end the job with its first dead rank.
fn recovering(bed: &Bed, ranks: u32, words: &[String]) -> Command {
    let mut command = bed.mpirun(ranks, words);
    command.env("OMPI_MCA_orte_enable_recovery", "1");
    command
}

#[test]
fn a_stopped_worker_stalls_nobody_and_comes_back() {
    let bed = Bed::new(4);
    let more = ["--straggler", "skip:3", "--rounds", ENDLESS, "--checkpoint-every", ENDLESS];
    let job = started(&mut bed.mpirun(5, &bed.train("late", &more)));
    let (server, worker) = (rank_pid(&job, 0), rank_pid(&job, 3));
    bed.wait_for_round("late", 3);
    signal(worker, "STOP");
    let without = wait_until(&bed, "late", bed.rounds("late"), 2, true);
    // The others do not wait for it any more.
    bed.wait_for_round("late", without + 20);
    assert!(left_out(&bed, "late")[without..without + 20].iter().all(|parts| parts.contains(&2)));
    signal(worker, "CONT");
    wait_until(&bed, "late", bed.rounds("late"), 2, false);
    signal(server, "TERM");
    let (_, said) = ended(job);
    assert!(said.contains("stopped as asked after round"), "{said}");
    assert!(said.contains("is without late or lost parts: 2"), "{said}");
    assert!(said.contains("all workers are back"), "{said}");
}

#[test]
fn a_dead_rank_is_left_out_and_back_after_a_restart() {
    let bed = Bed::new(4);
    let more = ["--lost", "skip:1", "--checkpoint-every", "5"];
    let run = |rounds: &'static str| {
        bed.train("lost", &[&more[..], &["--rounds", rounds, "--resume"]].concat())
    };
    let job = started(&mut recovering(&bed, 5, &run("400")));
    let worker = rank_pid(&job, 2);
    bed.wait_for_round("lost", 3);
    signal(worker, "KILL");
    let (succeeded, said) = ended(job);
    assert!(succeeded, "{said}");
    assert!(said.contains("is without late or lost parts: 1"), "{said}");
    let rounds = left_out(&bed, "lost");
    assert_eq!(rounds.len(), 400);
    assert_eq!(rounds[399], [1]);
    let ranks = read_json(&bed.path("lost").join("ranks.json"));
    assert_eq!(ranks[2]["peak_bytes"], json!(null));
    assert!(ranks[1]["peak_bytes"].as_u64() > Some(0));

    let job = started(&mut recovering(&bed, 5, &run("403")));
    let (succeeded, said) = ended(job);
    assert!(succeeded && said.contains("resuming after round 400"), "{said}");
    assert!(left_out(&bed, "lost")[400..].iter().all(Vec::is_empty));
}

/// Without the server nobody could go on: the others notice, and end.
#[test]
fn workers_end_if_the_server_is_dead() {
    let bed = Bed::new(4);
    let more = ["--lost", "skip:1", "--checkpoint-every", "1"];
    let endless = [&more[..], &["--rounds", ENDLESS]].concat();
    let job = started(&mut recovering(&bed, 5, &bed.train("headless", &endless)));
    let server = rank_pid(&job, 0);
    bed.wait_for_round("headless", 3);
    signal(server, "KILL");
    let (_, said) = ended(job);
    assert!(said.contains("the server stopped: it is silent for 1 s"), "{said}");
    bed.ends_as_undisturbed("headless", &more[2..]);
}

/// Slurm's PMIx ends a step with its first lost task, whatever srun is told.
#[test]
fn a_batch_script_does_not_promise_to_go_on_without_a_rank() {
    let bed = Bed::new(2);
    let words = bed.train("out", &["--lost", "skip"]);
    let output = Command::new(HITHER).arg("submit").args(words).output().expect("it starts");
    let said = text(&output.stderr);
    assert!(said.contains("srun ends the job with its first lost rank"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}
