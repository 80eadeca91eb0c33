//! What a real site has: limits of accounts, arrays with a throttle, jobs of several parts, interactive jobs, holds,
//! reservations, and jobs that need more CPUs than GPUs.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use hither_live::slurm::testbed::Shape;

use crate::bed::{Bed, Mark, until};
use crate::story::FAST;

/// The most of these jobs that ran at a time, by what they wrote.
fn most_at_once(marks: &[Mark], is_meant: impl Fn(&Mark) -> bool) -> usize {
    let mut marks: Vec<&Mark> = marks.iter().filter(|mark| is_meant(mark)).collect();
    marks.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let (mut now, mut most) = (0usize, 0);
    for mark in marks {
        match mark.what.as_str() {
            "start" => now += 1,
            "end" | "stop" => now -= 1,
            _ => {}
        }
        most = most.max(now);
    }
    most
}

fn metric(bed: &Bed, name: &str) -> f64 {
    let metrics = hither_live::serve::get(&bed.state.join("socket"), "/metrics").unwrap().1;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_limit_of_one_user_costs_the_others_nothing() {
    let bed = Bed::with_accounts(Shape { racks: 1, machines: 4, gpus: 4 });
    for words in [
        &["-i", "add", "qos", "limited"][..],
        &["-i", "modify", "qos", "limited", "set", "MaxTRESPerUser=gres/gpu=4"],
        &["-i", "modify", "user", "where", "account=lab", "set", "qos+=limited"],
    ] {
        bed.slurm.ask("sacctmgr", words).unwrap();
    }
    let limited: Vec<String> = (0..50).map(|_| bed.submit(1, 4, &["-q", "limited"])).collect();
    let mut scheduler = bed.schedule(FAST);
    bed.await_log("decides for partition", 20);
    bed.first_start(&limited[0]);
    // Three machines are free for others, whatever waits.
    let others: Vec<String> = (0..3).map(|_| bed.submit(4, 20, &[])).collect();
    others.iter().for_each(|job| drop(bed.first_start(job)));
    let why = bed.told(&["explain", &limited[49]]);
    assert!(why.contains("waits for a limit: user") && why.contains("4 GPUs at a time"), "{why}");
    bed.await_all_completed(&[&limited[..], &others].concat(), 120);
    let is_limited = |mark: &Mark| limited.contains(&mark.job);
    assert!(most_at_once(&bed.marks(), is_limited) <= 4);
    // Nobody was offered GPUs that Slurm would not let him have.
    assert_eq!(metric(&bed, "hither_refusals_total "), 0.0, "{}", bed.log());
    scheduler.kill();
}

#[test]
fn jobs_of_every_kind_run_and_none_is_held_for_ever() {
    let bed = Bed::new(1, 4, 4);
    let mut scheduler = bed.schedule(FAST);
    bed.await_log("decides for partition", 20);
    // An array of which two tasks may run at a time.
    let array = bed.try_submit(&["-H", "--gpus=1", "--array=1-5%2"], 8).unwrap();
    // A job of two groups of nodes is Slurm's.
    let script = bed.folder().join("work.sh").display().to_string();
    let folder = bed.folder().display().to_string();
    let parts = ["--parsable", "-H", "-o", "/dev/null", "-D", &folder, "--gpus=1", ":", "--gpus=1"];
    let parts = bed.slurm.ask("sbatch", &[&parts[..], &[&script, "3"]].concat()).unwrap();
    // An interactive job is placed, and nobody's victim.
    let mut interactive = bed.slurm.command("salloc");
    let interactive =
        interactive.args(["-H", "-n1", "--gpus=1", "sleep", "2"]).stdin(Stdio::null());
    let mut interactive = interactive.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // An administrator holds a job, and lets it go again.
    let held = bed.submit(1, 3, &[]);
    bed.slurm.ask("scontrol", &["hold", &held]).unwrap();
    // Its user holds another by a word.
    let waits = bed.submit(1, 3, &["--comment=hither: hold"]);
    // One process with many CPUs stays on one machine; one that takes all CPUs of a machine leaves its GPUs idle.
    let wide = bed.submit(4, 5, &["-n1", "-c", "8"]);
    assert!(!bed.first_start(&wide).nodes.contains(['[', ',']));
    let greedy = bed.submit(1, 60, &["-n1", "-c", "64"]);
    let at = bed.first_start(&greedy).nodes;
    let modest: Vec<String> = (0..3).map(|_| bed.submit(1, 3, &["-n1"])).collect();
    modest.iter().for_each(|job| assert_ne!(bed.first_start(job).nodes, at));
    let whole = bed.submit_foreign(&["-H", "--exclusive", "--gpus=1"], 3);
    thread::sleep(Duration::from_secs(2));
    assert!(bed.starts(&held).is_empty() && bed.starts(&waits).is_empty());
    let why = bed.told(&["explain", &held]);
    assert!(why.contains("is held (JobHeldAdmin)"), "{why}");
    assert!(bed.told(&["explain", &waits]).contains("held by the word `hold`"));
    bed.slurm.ask("scontrol", &["uhold", &held]).unwrap();
    bed.slurm.ask("scontrol", &["update", &format!("jobid={waits}"), "comment=hither:"]).unwrap();
    let all = [vec![held, waits, wide, greedy, whole], modest].concat();
    bed.await_all_completed(&all, 60);
    until("the interactive job to end", 30, || interactive.try_wait().unwrap());
    let leader = parts.trim().to_owned();
    until("the job of several parts to end", 30, || {
        bed.marks().iter().any(|mark| mark.what == "end" && mark.job == leader).then_some(())
    });
    until("the array to end", 60, || {
        let states = bed.states();
        let task = |n: u32| states.get(&format!("{array}_{n}")).is_some_and(|s| s == "COMPLETED");
        (1..=5).all(task).then_some(())
    });
    let tasks: Vec<String> = bed.marks().into_iter().map(|mark| mark.job).collect();
    let of_array = |job: &str| {
        let text = bed.slurm.ask("scontrol", &["show", "job", job]).unwrap_or_default();
        text.contains(&format!("ArrayJobId={array} "))
    };
    let tasks: Vec<String> = tasks.into_iter().filter(|job| of_array(job)).collect();
    assert!(most_at_once(&bed.marks(), |mark| tasks.contains(&mark.job)) <= 2);
    assert!(!bed.log().contains("times:"), "no job was given up: {}", bed.log());
    scheduler.kill();
}

#[test]
fn a_guard_of_another_state_directory_releases_nothing_while_a_scheduler_lives() {
    let bed = Bed::new(1, 2, 2);
    let first = bed.folder().join("first").display().to_string();
    let quick = ["--release-after-s", "3"];
    let flags =
        [&FAST[..FAST.len() - 4], &quick, &["--grace-s", "0.5", "--state", &first]].concat();
    let mut scheduler = bed.schedule(&flags);
    bed.await_log("decides for partition", 20);
    scheduler.kill();
    // Another takes over, with a state directory of its own; the first one's guard is still there.
    let mut scheduler = bed.schedule(&[FAST, &["--poll-s", "1"]].concat());
    until("the second to decide", 20, || {
        (bed.log().matches("decides for partition").count() == 2).then_some(())
    });
    let blocker = bed.submit(4, 120, &["--no-requeue"]);
    bed.first_start(&blocker);
    let waits = bed.submit(4, 3, &[]);
    thread::sleep(Duration::from_secs(2));
    // While nothing happens, Slurm is asked once a second.
    let looks = metric(&bed, "hither_looks_total ");
    thread::sleep(Duration::from_secs(5));
    let looks = metric(&bed, "hither_looks_total ") - looks;
    assert!(looks <= 7.0, "{looks} looks in five seconds");
    let reason = bed.slurm.ask("squeue", &["-h", "-j", &waits, "-o", "%r"]).unwrap();
    assert_eq!(reason.trim(), "JobHeldUser", "{}", bed.log());
    // Nor does the documented line of cron, also with a slow squeue.
    let slow = bed.wrapped("[ \"$name\" != squeue ] || sleep 2");
    let told = bed.told(&["release", "--after-s", "5", "--slurm-bin", &slow]);
    assert!(told.contains("nothing is released"), "{told}");
    bed.slurm.ask("scancel", &[&blocker]).unwrap();
    bed.await_all_completed(&[waits], 30);
    scheduler.kill();
}

#[test]
fn nodes_that_sleep_are_woken_and_reserved_ones_are_left_free() {
    // Nodes sleep by hand alone: the first one that would by itself does so in a day.
    let power = "SuspendTime=86400\nSuspendProgram=/bin/true\nResumeProgram=RESUME\n\
                 SuspendTimeout=1\nResumeTimeout=30";
    let bed = Bed::with(Shape { racks: 1, machines: 3, gpus: 4 }, power);
    let node_state = |node: &str| {
        let state = bed.slurm.ask("sinfo", &["-h", "-N", "-n", node, "-o", "%T"]).unwrap();
        state.lines().next().unwrap_or_default().trim().to_owned()
    };
    bed.slurm.ask("scontrol", &["update", "nodename=n1", "state=power_down"]).unwrap();
    until("n1 to sleep", 30, || (node_state("n1") == "idle~").then_some(()));
    // All of n2 is somebody else's for now.
    let of_others = |name: &str, start: &str, nodes: &str| {
        let (name, nodes) = (format!("reservation={name}"), format!("nodes={nodes}"));
        let start = format!("starttime={start}");
        let words =
            ["create", &name, &start, "duration=60", &nodes, "users=root", "flags=ignore_jobs"];
        bed.slurm.ask("scontrol", &words).unwrap();
    };
    of_others("now", "now", "n2");
    until("n2 to be reserved", 10, || (node_state("n2") == "reserved").then_some(()));
    let mut scheduler = bed.schedule(FAST);
    bed.await_log("decides for partition", 20);
    let modest = bed.submit(4, 3, &[]);
    let wide = bed.submit(8, 3, &[]);
    bed.await_all_completed(&[modest.clone(), wide.clone()], 60);
    assert_eq!(bed.first_start(&wide).nodes, "n[0-1]");
    assert_ne!(bed.first_start(&modest).nodes, "n2");
    until("n1 to be idle", 10, || (node_state("n1") == "idle").then_some(()));
    assert_eq!(metric(&bed, "hither_refusals_total "), 0.0, "{}", bed.log());
    scheduler.kill();

    // Soon everything is under maintenance: only what ends before may start.
    bed.slurm.ask("scontrol", &["delete", "reservation=now"]).unwrap();
    of_others("soon", "now+2hours", "ALL");
    let mut scheduler = bed.schedule(FAST);
    let long = bed.submit(4, 3, &[]);
    let short = bed.submit(4, 3, &["-t", "60"]);
    bed.await_all_completed(&[short], 30);
    let why = bed.told(&["explain", &long]);
    assert!(why.contains("when a reservation of its nodes begins"), "{why}");
    assert_eq!(metric(&bed, "hither_refusals_total "), 0.0, "{}", bed.log());
    bed.slurm.ask("scontrol", &["update", &format!("jobid={long}"), "timelimit=60"]).unwrap();
    bed.await_all_completed(&[long], 60);
    scheduler.kill();
}
