//! What goes wrong on real clusters: each gets a clear message and sane behaviour.

use hither_live::slurm::testbed::Shape;

use crate::bed::{Bed, until};
use crate::story::FAST;

#[test]
fn errors_name_what_is_wrong_and_the_remedy() {
    let bed = Bed::new(1, 2, 2);
    let absent = bed.refused(&["schedule", "--slurm-bin", "/nowhere"]);
    assert!(absent.contains("cannot run scontrol") && absent.contains("slurm-client"), "{absent}");
    let old = bed.wrapped("[ \"$1\" != --version ] || { echo slurm 19.05.2; exit 0; }");
    let old = bed.refused(&["schedule", "--slurm-bin", &old]);
    assert!(old.contains("Slurm slurm 19.05.2 is not supported; 20.11 or later"), "{old}");
    let nowhere = bed.refused(&["schedule", "--partition", "lost"]);
    assert!(nowhere.contains("partition lost does not exist; the partitions are gpu"), "{nowhere}");
    let torn = bed.wrapped(
        "[ \"$2\" != topology ] || { echo 'SwitchName=a Level=0 LinkSpeed=1 Nodes=n0'; exit 0; }",
    );
    let torn = bed.refused(&["schedule", "--slurm-bin", &torn]);
    assert!(torn.contains("every node with GPUs under a switch") && torn.contains("n1"), "{torn}");
    let silent = bed.wrapped("[ $name != squeue ] || sleep 5");
    let silent = bed.refused(&["schedule", "--slurm-bin", &silent, "--command-limit-s", "0.3"]);
    assert!(silent.contains("Slurm does not answer squeue"), "{silent}");
    let policy = bed.refused(&["schedule", "--policy", "srtf"]);
    assert!(policy.contains("it needs true job lengths"), "{policy}");
    let nothing = bed.refused(&["queue"]);
    assert!(nothing.contains("no scheduler runs with"), "{nothing}");
    assert!(bed.refused(&["explain", "x"]).contains("expected Slurm's id"));
    assert!(bed.refused(&["progress", "5"]).contains("SLURM_JOB_ID is not set"));
    // Without --act it says what it would do and does nothing.
    let job = bed.submit(2, 5, &[]);
    let told = bed.told(&["schedule"]);
    assert!(told.contains(&format!("job {job}: starts on n0:2: it is its turn")), "{told}");
    assert_eq!(bed.states()[&job], "PENDING");
    // A user who may not change jobs is told so.
    let denied = bed.wrapped(
        "[ \"$1\" != -Q ] || { echo \"Access/permission denied for job 1\" >&2; exit 1; }",
    );
    let denied =
        bed.refused(&["schedule", "--act", "--slurm-bin", &denied, "--release-after-s", "0"]);
    assert!(denied.contains("run as SlurmUser, root or an operator"), "{denied}");
    // Bad journals are named.
    std::fs::write(bed.folder().join("bad"), b"not a journal").unwrap();
    let bad = bed.folder().join("bad").display().to_string();
    assert!(bed.refused(&["schedule", "--replay", &bad]).contains("bad"));
}

/// A claim as a scheduler on another host would make it.
fn claim_from_elsewhere(bed: &Bed, silent_s: f64) -> String {
    let renewed_s = hither_live::slurm::unix_s() - silent_s;
    let comment = format!("--comment=hither-claim host=elsewhere renewed={renewed_s:.0}");
    bed.submit_foreign(&["-H", "-J", "hither-claim", &comment], 1)
}

#[test]
fn schedulers_on_two_hosts_do_not_act_at_once() {
    let bed = Bed::new(1, 2, 2);
    let theirs = claim_from_elsewhere(&bed, 5.0);
    let refused = bed.refused(&["schedule", "--act"]);
    assert!(
        refused.contains("a scheduler on host elsewhere decides for partition gpu"),
        "{refused}"
    );
    // Theirs is kept, and the one that was made in vain is gone.
    let pending = |job: &String| bed.states().get(job).is_some_and(|state| state == "PENDING");
    assert!(pending(&theirs));
    let waiting = bed.states().into_values().filter(|state| state == "PENDING").count();
    assert_eq!(waiting, 1);
    bed.slurm.ask("scancel", &[&theirs]).unwrap();
    // A claim that nobody renews is void.
    let left = claim_from_elsewhere(&bed, 90.0);
    // It is watched for twenty seconds first: the clocks of two hosts may differ.
    let mut scheduler = bed.schedule(FAST);
    bed.await_log("decides for partition", 60);
    assert!(!pending(&left));
    let job = bed.submit(2, 3, &[]);
    bed.await_all_completed(&[job], 20);
    // A scheduler whose claim was taken over, because it had stood still for a minute, stops.
    let theirs = claim_from_elsewhere(&bed, 0.0);
    let own = bed.slurm.ask("squeue", &["-h", "-n", "hither-claim", "-o", "%i"]).unwrap();
    let own = own.split_whitespace().find(|job| *job != theirs).unwrap();
    bed.slurm.ask("scancel", &[own]).unwrap();
    let status = until("the scheduler to stop", 20, || scheduler.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(2));
    assert!(bed.log().contains("a scheduler on host elsewhere decides"), "{}", bed.log());
    assert!(pending(&theirs));
}

#[test]
fn an_epilog_that_pokes_saves_the_wait_for_the_next_poll() {
    let shape = Shape { racks: 1, machines: 2, gpus: 2 };
    let bed = Bed::with(shape, "EpilogSlurmctld=EPILOG");
    let jobs: Vec<String> = (0..2).map(|_| bed.submit(4, 5, &[])).collect();
    let slow = ["--poll-s", "60", "--release-after-s", "0"];
    let _scheduler = bed.schedule(&slow);
    bed.await_all_completed(&jobs, 30);
}

#[test]
fn jobs_that_are_not_hithers_are_left_to_slurm() {
    let bed = Bed::new(1, 4, 2);
    let mut first = bed.schedule(FAST);
    bed.await_log("decides for partition", 20);
    let second = bed.refused(&["schedule", "--act"]);
    assert!(second.contains("another scheduler acts"), "{second}");
    let elsewhere = bed.folder().join("elsewhere").display().to_string();
    let second = bed.refused(&["schedule", "--act", "--state", &elsewhere]);
    assert!(
        second.contains("another scheduler on this host decides for partition gpu"),
        "{second}"
    );
    // No GPUs, or a wish that only Slurm knows: released at once.
    let plain = bed.submit_foreign(&["-H", "-n1"], 3);
    let picky = bed.submit_foreign(&["-H", "-N2", "--gpus-per-node=2", "-x", "n3"], 10);
    bed.await_state(&picky, "RUNNING", 15);
    let why = bed.told(&["explain", &picky]);
    assert!(why.contains("asks for ExcNodeList=n3, which Hither cannot place"), "{why}");
    // Its GPUs are seen: a gang of six has to wait for it.
    let gang = bed.submit(6, 3, &[]);
    bed.await_all_completed(&[plain, picky.clone(), gang.clone()], 40);
    let ended = bed.marks().into_iter().find(|m| m.what == "end" && m.job == picky).unwrap();
    assert!(bed.first_start(&gang).at_s > ended.at_s);
    // An array's tasks are jobs of their own.
    let array = bed.submit(2, 3, &["--array=1-3"]);
    until("the array to end", 30, || {
        let ends = bed.marks().into_iter().filter(|m| m.what == "end").count();
        (ends == 6).then_some(())
    });
    until("the task to be over", 10, || {
        bed.told(&["explain", &format!("{array}_2")]).contains("is over").then_some(())
    });
    first.kill();
}

#[test]
fn nodes_drain_partitions_vanish_and_slurm_goes_on_without_hither() {
    let bed = Bed::new(1, 3, 2);
    let flags = [&FAST[..FAST.len() - 4], &["--release-after-s", "2"]].concat();
    let mut scheduler = bed.schedule(&flags);
    // A node drains under a running job: the job stays, and no other comes.
    let stays = bed.submit(2, 40, &[]);
    let at = bed.first_start(&stays).nodes;
    let name = format!("nodename={at}");
    bed.slurm.ask("scontrol", &["update", &name, "state=drain", "reason=test"]).unwrap();
    bed.await_log(&format!("node {at} is drain"), 10);
    let others: Vec<String> = (0..3).map(|_| bed.submit(2, 5, &[])).collect();
    bed.await_all_completed(&others, 40);
    others.iter().for_each(|job| assert_ne!(bed.first_start(job).nodes, at));
    bed.slurm.ask("scontrol", &["update", &name, "state=resume"]).unwrap();
    bed.await_all_completed(&[stays], 30);
    // The partition goes and comes again.
    until("the partition to go", 10, || {
        // Slurm deletes no partition with jobs in it, and the scheduler soon claims it again.
        bed.slurm.ask("scancel", &["-n", "hither-claim"]).unwrap();
        bed.slurm.ask("scontrol", &["delete", "partitionname=gpu"]).ok()
    });
    bed.await_log("partition gpu does not exist", 15);
    let nodes = ["create", "partitionname=gpu", "nodes=n[0-2]", "default=yes"];
    bed.slurm.ask("scontrol", &nodes).unwrap();
    bed.await_log("Slurm answers again", 15);
    let after = bed.submit(4, 3, &[]);
    bed.await_all_completed(&[after], 30);
    // Hither stays away: its jobs go to Slurm's own scheduler.
    scheduler.kill();
    let orphan = bed.submit(2, 3, &[]);
    bed.await_all_completed(&[orphan], 30);
}

#[test]
fn a_slow_look_and_a_job_that_may_not_be_changed_leave_the_scheduler_well() {
    let bed = Bed::new(1, 2, 4);
    let folder = bed.folder().display();
    // squeue takes five seconds while there is a file `slow`. One job is refused to Hither: its lines are taken out.
    let slurm = bed.wrapped(&format!(
        r#"if [ $name = squeue ] && [ -e {folder}/slow ]; then touch {folder}/looks; sleep 5; rm {folder}/looks; fi
if [ "$name $1" = "scontrol -Q" ] && [ -e {folder}/denied ]; then
  job=$(cat {folder}/denied) all=$(cat)
  if grep -qw "$job" <<< "$all"; then echo "Access/permission denied for job $job" >&2; fi
  grep -vw "$job" <<< "$all" | /usr/bin/scontrol -Q; exit 1
fi"#
    ));
    let mut scheduler = bed.schedule(&[FAST, &["--slurm-bin", &slurm]].concat());
    bed.await_log("decides for partition", 20);
    let first = bed.submit(4, 3, &[]);
    bed.await_all_completed(&[first], 30);
    let denied = bed.submit_foreign(&["-n1"], 1);
    bed.await_all_completed(std::slice::from_ref(&denied), 30);
    std::fs::write(bed.folder().join("denied"), (denied.parse::<u32>().unwrap() + 1).to_string())
        .unwrap();
    let denied = bed.submit(4, 3, &[]);
    bed.await_log(&format!("permission denied for job {denied}"), 20);
    let others: Vec<String> = (0..3).map(|_| bed.submit(4, 3, &[])).collect();
    bed.await_all_completed(&others, 40);

    std::fs::write(bed.folder().join("slow"), "").unwrap();
    let looks = || bed.folder().join("looks").exists().then_some(());
    until("a look", 20, looks);
    let health = hither_live::serve::get(&bed.state.join("socket"), "/healthz").unwrap();
    assert!(looks().is_some(), "it did not wait for the look to end");
    assert_eq!(health.0, 200, "{}", health.1);
    std::fs::remove_file(bed.folder().join("slow")).unwrap();
    assert!(scheduler.child.try_wait().unwrap().is_none(), "{}", bed.log());
    scheduler.kill();
}
