//! Clusters from every kind of file.

use hither_core::topology::{Tier, Topology};
use hither_sched::topo;
use proptest::prelude::*;

fn read(text: &str, gpus: u32) -> Topology {
    topo::read(text.as_bytes(), "dir/file.ext", gpus).unwrap_or_else(|error| panic!("{error}"))
}

fn rack_sizes(topology: &Topology) -> Vec<usize> {
    let mut sizes = vec![0; topology.racks.len()];
    topology.machines.iter().for_each(|machine| sizes[machine.rack as usize] += 1);
    sizes
}

#[test]
fn toml() {
    let cluster = read(include_str!("data/cluster.toml"), 1);
    assert_eq!(cluster.racks, ["old1", "old2", "new"]);
    assert_eq!(rack_sizes(&cluster), [4, 4, 3]);
    assert_eq!(cluster.gpus(), 64 + 20);
    let names: Vec<&str> = cluster.machines.iter().map(|machine| machine.name.as_str()).collect();
    assert_eq!((names[0], names[8], names[10]), ("gpu001", "big01", "gpu011"));
    assert_eq!((cluster.links.nic_gbit, cluster.links.gpu_gbit), (200.0, 1200.0));
    assert_eq!(cluster.best_tier(20, Some("a100")), Some(Tier::Rack));
    assert_eq!(read("[[rack]]\nmachines = 2\ngpus = 4\n", 1).name, "file");
    let named = "[[rack]]\nname = \"r[1-2]\"\n[[rack.machine]]\nname = \"n[1-6]\"\ngpus = 8\n";
    let named = read(named, 1);
    assert_eq!((rack_sizes(&named), named.machines[3].name.as_str()), (vec![3, 3], "n4"));
}

#[test]
fn slurm() {
    let cluster = read(include_str!("data/topology.conf"), 2);
    assert_eq!((cluster.racks.len(), rack_sizes(&cluster)), (2, vec![4, 3]));
    let gpus: Vec<u32> = cluster.machines.iter().map(|machine| machine.gpus).collect();
    assert_eq!(gpus, [4, 4, 4, 4, 2, 2, 8], "default line, argument, own line");
    assert_eq!(cluster.machines[6].gpu_type, "a100");

    let leaves = b"SwitchName=s1 Nodes=a1,c1\nSwitchName=s2 Nodes=a2\n";
    let nodes = b"ClusterName=x\nNodeName=a[1-2] Gres=gpu:4\nNodeName=c1 CPUs=4\n";
    let cluster = topo::read_slurm(leaves, "t", Some((nodes, "n")), 8).unwrap();
    assert_eq!((cluster.machines.len(), cluster.gpus()), (2, 8), "c1 has no GPUs");
    let cluster = topo::read(nodes, "n", 8).unwrap();
    assert_eq!((cluster.racks.len(), cluster.gpus()), (1, 8), "no switches: one rack");
}

#[test]
fn tables() {
    let cluster = read(include_str!("data/switches.csv"), 8);
    assert_eq!(
        (cluster.racks.as_slice(), rack_sizes(&cluster)),
        (&["S1".into(), "S2".into()][..], vec![2, 1])
    );
    let cluster = read(include_str!("data/spec.csv"), 8);
    assert_eq!((rack_sizes(&cluster), cluster.gpus()), (vec![3, 3], 24));
}

#[test]
fn clusters_come_back_from_toml() {
    for text in [
        include_str!("data/cluster.toml"),
        include_str!("data/topology.conf"),
        include_str!("data/switches.csv"),
        include_str!("data/spec.csv"),
    ] {
        let cluster = read(text, 4);
        assert_eq!(read(&topo::to_toml(&cluster), 1), cluster);
    }
}

#[test]
fn wrong_clusters_are_refused() {
    for (text, word) in [
        ("", "expected"),
        ("name = \"x\"\n", "at least one machine"),
        ("[[rack]]\nmachines = 2\n", "file:1: column rack: expected gpus beside machines"),
        ("[[rack]]\ngpus = 2\n", "either machines"),
        ("[[rack]]\nmachines = 2\ngpus = -1\n", "file:3"),
        ("[[rack]]\nmachines = 2\ngpus = 0\n", "from 1 to 1000000 GPUs"),
        ("[[rack]]\nmachines = 2\ngpus = 8\ncolour = 1\n", "colour"),
        ("[[rack]]\ncount = 4000000000\nmachines = 4000000000\ngpus = 8\n", "1000000"),
        ("[[rack]]\ncount = 100000\nmachines = 4000000000\ngpus = 8\n", "1000000 machines"),
        ("[[rack]]\nmachines = 900000\ngpus = 100\n", "10000000 GPUs"),
        (
            "[[rack]]\nname=\"a\"\nmachines=1\ngpus=1\n[[rack]]\nname=\"a\"\nmachines=1\ngpus=1\n",
            "file:5",
        ),
        ("[network]\nnic_gbit = nan\n[[rack]]\nmachines = 1\ngpus = 1\n", "network.nic_gbit"),
        ("[network]\nlatency_us = [1, -5, 3]\n[[rack]]\nmachines = 1\ngpus = 1\n", "latency_us"),
        ("[[rack]]\n[[rack.machine]]\nname = \"a[1-3]\"\ncount = 2\ngpus = 1\n", "2 names"),
        ("[[rack]]\n[[rack.machine]]\nname = \"a[1-99999999]\"\ngpus = 1\n", "file:2"),
        ("ip,ASW\nh1,S1\nh1,S1\n", "file:3: found \"h1\""),
        ("num_switch,num_node_p_switch,num_gpu_p_node\n1000000,1000000,8\n", "file:2"),
        ("SwitchName=a Nodes=x\nSwitchName=a Nodes=y\n", "file:2"),
        ("SwitchName=a Nodes=x\nSwitchName=b Nodes=x\n", "different names"),
        ("SwitchName=a Switches=b\n", "line of its own"),
        ("SwitchName=a\n", "either Nodes"),
        ("SwitchName=a Nodes=x[1-\n", "bracket"),
        ("SwitchName=a Nodes=x\nNodeName=x Gres=gpu:a:b:c\n", "gpu:a100:4"),
        ("SwitchName=a Nodes=x\nNodeName=y Gres=gpu:4\n", "under a switch"),
    ] {
        let error = topo::read(text.as_bytes(), "file", 8).unwrap_err().to_string();
        assert!(error.starts_with("file") && error.contains(word), "{text:?}: {error}");
    }
}

/// A real cluster: hosts and racks as counted in the file itself.
#[test]
fn lingjun() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/traces/lingjun_topo.csv");
    let Ok(bytes) = std::fs::read(path) else {
        eprintln!("skipped: {path} absent");
        return;
    };
    let cluster = topo::read(&bytes, "lingjun_topo.csv", 8).unwrap();
    let sizes = rack_sizes(&cluster);
    assert_eq!((cluster.machines.len(), sizes.len()), (847, 48));
    assert_eq!((sizes.iter().min(), sizes.iter().max()), (Some(&3), Some(&24)));
    // All but three of the racks hold 8 to 24 hosts.
    assert_eq!(sizes.iter().filter(|&&size| size < 8).count(), 3);
    assert_eq!(read(&topo::to_toml(&cluster), 1).machines, cluster.machines);
}

proptest! {
    /// Folding and expanding a host list gives the names back, sorted or in order.
    #[test]
    fn host_lists_round_trip(
        names in proptest::collection::vec("[a-z]{1,2}(0?[0-9]{1,3})?[a-z]?", 1..30),
    ) {
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        let mut back = topo::expand(&topo::hostlist(&names)).unwrap();
        back.sort();
        prop_assert_eq!(back, sorted);
    }
}
