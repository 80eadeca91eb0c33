//! Ranks on emulated machines with limited links, and a Slurm on them. Making them needs root: elsewhere these
//! tests say so and are skipped.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{fs, thread};

use hither_live::slurm::testbed::{Shape, Testbed};
use hither_live::slurm::testnet::{Links, Network, SUBNET};
use serde_json::{Value, json};

use crate::{Bed, HITHER, PATIENCE, str, text};

/// The network, or `None` and one line that says why there is none.
fn network(racks: u32, machines: u32, links: Links) -> Option<Network> {
    match Network::start(racks, machines, links) {
        Ok(network) => Some(network),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Bytes that launching, connecting and reporting may take on a machine's NIC.
const START_BYTES_MAX: u64 = 100_000;
/// Share that headers and acknowledgements may add.
const HEADERS_MAX: f64 = 0.02;

/// One rank per machine, so that every message crosses its NIC.
#[test]
fn the_kernel_counts_the_bytes_that_ranks_count() {
    let links = Links { nic_mbit: 1000.0, uplink_mbit: 250.0 };
    let Some(network) = network(2, 2, links) else { return };
    let bed = Bed::new(3);
    let more = ["--rounds", "14", "--local-steps", "2", "--hidden", "256"];
    for mode in ["llcg", "ggs"] {
        let more = [&more[..], &["--mode", mode]].concat();
        let (alone, spread) = (format!("{mode}-alone"), format!("{mode}-spread"));
        bed.alone(&bed.train(&alone, &more));
        let bytes = |machine: u32| network.machine_bytes(machine).expect("counts");
        let before: Vec<_> = (0..4).map(bytes).collect();
        let ranks = [(0, 1), (1, 1), (2, 1), (3, 1)];
        let mut mpirun = network.mpirun(bed.dir.path(), &ranks).expect("an agent");
        let output = mpirun.arg(HITHER).args(bed.train(&spread, &more)).output();
        let output = output.expect("mpirun starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(bed.model(&spread) == bed.model(&alone), "{mode}");
        let report = crate::json(&bed.path(&spread).join("ranks.json"));
        for (machine, before) in (0..4).zip(before) {
            let (rank, after) = (&report[machine as usize], bytes(machine));
            assert_eq!(rank["host"], Value::from(format!("n{machine}")));
            let received = after.received_bytes - before.received_bytes;
            let sent = after.sent_bytes - before.sent_bytes;
            for (key, kernel) in [("received_bytes", received), ("sent_bytes", sent)] {
                let counted = rank[key].as_u64().expect("a number");
                let most = (counted as f64 * (1.0 + HEADERS_MAX)) as u64 + START_BYTES_MAX;
                assert!(
                    (counted..=most).contains(&kernel),
                    "{mode} n{machine} {key}: ranks counted {counted}, the kernel {kernel}"
                );
                // What is compared is mostly messages of ranks.
                assert!(counted > 10 * START_BYTES_MAX, "{mode} n{machine} {key}: {counted}");
            }
        }
    }
}

/// Two racks of two machines with four GPUs; links between racks are slow.
const SHAPE: Shape = Shape { racks: 2, machines: 2, gpus: 4 };
const LINKS: Links = Links { nic_mbit: 1000.0, uplink_mbit: 50.0 };
/// Four ranks, each with a GPU: they fit on one machine.
const RANKS: u32 = 4;
const ROUNDS: &str = "15";
/// Until then no machine is free: longer than the slow links cost llcg (2 s in all), shorter than they cost ggs
/// (40 s).
const BUSY_S: &str = "15";

/// A run near, with all ranks on one machine, and one far, over two racks; returns the profiles of both modes.
fn profiles(bed: &Bed, network: &Network) -> PathBuf {
    let mut outs = vec![];
    for mode in ["ggs", "llcg"] {
        for (place, ranks) in [("near", vec![(0, RANKS)]), ("far", vec![(0, 2), (2, 2)])] {
            let out = format!("{mode}-{place}");
            let words = bed.train(&out, &["--mode", mode, "--rounds", "4", "--hidden", "32"]);
            let mut mpirun = network.mpirun(bed.dir.path(), &ranks).expect("an agent");
            let output = mpirun.arg(HITHER).args(words).output().expect("mpirun starts");
            assert!(output.status.success(), "{}", text(&output.stderr));
            outs.push(bed.path(&out));
        }
    }
    let path = bed.path("profiles.json");
    let outs: Vec<&str> = outs.iter().map(|out| str(out)).collect();
    bed.alone(&[&["profile"], &outs[..], &["-o", str(&path)]].concat());
    path
}

/// Submits a training run as `hither submit` writes it, for the scheduler to place.
fn submit_run(bed: &Bed, slurm: &Testbed, mode: &str) {
    let train = bed.train(mode, &["--mode", mode, "--rounds", ROUNDS, "--hidden", "32"]);
    let submit = ["submit", "--gpus-per-rank", "1", "--hold"].map(ToOwned::to_owned);
    let script = text(&bed.alone(&[&submit[..], &train].concat()).stdout);
    let program = Path::new(HITHER).parent().map(str).unwrap_or_default().to_owned();
    let local = format!(
        "\nexport PATH={program}:$PATH OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include={SUBNET}\nsrun "
    );
    let path = bed.path(&format!("{mode}.sh"));
    fs::write(&path, script.replacen("\nsrun ", &local, 1)).expect("written");
    let log = bed.path(&format!("{mode}.log"));
    slurm.submit(&["-o", str(&log)], &path, &[]).expect("a job");
}

/// Training measures, and the scheduler places by it: of two runs that could start on scattered GPUs at once, the
/// one that fetches features holds out for a machine, and the one that sends models does not.
#[test]
fn a_sensitive_run_waits_for_a_machine_and_an_insensitive_one_spreads() {
    let Some(network) = network(SHAPE.racks, SHAPE.machines, LINKS) else { return };
    let bed = Bed::new(RANKS - 1);
    let profiles = profiles(&bed, &network);
    let slurm = Testbed::start_on(Some(network), &bed.path("slurm"), SHAPE, "");
    let slurm = slurm.unwrap_or_else(|error| panic!("{error}"));
    let sleep = bed.path("sleep.sh");
    fs::write(&sleep, "#!/bin/bash\nsleep $1\n").expect("written");
    // Two GPUs remain in each rack; n0 becomes free later.
    for (node, gpus, seconds) in
        [("n0", 4, BUSY_S), ("n1", 2, "600"), ("n2", 2, "600"), ("n3", 4, "600")]
    {
        let gpus = format!("--gpus-per-node={gpus}");
        slurm.submit(&["-w", node, &gpus], &sleep, &[seconds]).expect("a job");
    }
    let start = Instant::now();
    while slurm.ask("squeue", &["-h", "-t", "R"]).unwrap_or_default().lines().count() < 4 {
        assert!(start.elapsed() < PATIENCE, "the machines are not busy");
        thread::sleep(Duration::from_millis(50));
    }
    submit_run(&bed, &slurm, "ggs");
    submit_run(&bed, &slurm, "llcg");
    let log = fs::File::create(bed.path("hither.log")).expect("a log");
    let mut scheduler = slurm.command(HITHER);
    scheduler.args(["schedule", "--act", "--partition", "gpu", "--poll-s", "0.2"]);
    // Waiting jobs are asked again every second: all here takes seconds.
    scheduler.args(["--set", "dally.round_s=1", "--release-after-s", "0"]);
    scheduler.args(["--profiles", str(&profiles)]);
    scheduler.arg("--state").arg(bed.path("state")).stdin(Stdio::null()).stderr(log);
    let mut scheduler = scheduler.spawn().expect("the scheduler starts");
    let start = Instant::now();
    let is_done = |mode: &str| bed.path(mode).join("ranks.json").exists();
    while !(is_done("ggs") && is_done("llcg")) && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(100));
    }
    scheduler.kill().and_then(|()| scheduler.wait()).expect("it ends");
    let said = |name: &str| fs::read_to_string(bed.path(name)).unwrap_or_default();
    let logs = ["hither.log", "ggs.log", "llcg.log"].map(said).join("\n");
    assert!(is_done("ggs") && is_done("llcg"), "{logs}");
    let placement = |mode: &str| {
        crate::json(&bed.path(mode).join("profile.json"))["table"][0]["placement"].clone()
    };
    assert_eq!(placement("ggs"), json!([4]), "{logs}");
    assert_eq!(placement("llcg"), json!([2, 2]), "{logs}");
    // Wherever they ran, the models are those of one process.
    for mode in ["ggs", "llcg"] {
        let alone = format!("{mode}-alone");
        bed.alone(&bed.train(&alone, &["--mode", mode, "--rounds", ROUNDS, "--hidden", "32"]));
        assert!(bed.model(mode) == bed.model(&alone), "{mode}");
    }
}
