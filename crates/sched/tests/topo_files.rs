//! Clusters from every kind of file.

use hither_core::topology::{Tier, Topology};
use hither_sched::topo::{self, Cluster};
use proptest::prelude::*;

fn read(text: &str, gpus: u32) -> Topology {
    topo::read(&[(text.as_bytes(), "dir/file.ext")], Some(gpus))
        .unwrap_or_else(|error| panic!("{error}"))
        .topology
}

/// Several files at once, without a number of GPUs.
fn read_all(texts: &[&str]) -> Cluster {
    let files: Vec<(&[u8], &str)> =
        texts.iter().map(|text| (text.as_bytes(), "a/f.conf")).collect();
    topo::read(&files, None).unwrap_or_else(|error| panic!("{error}"))
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

    let leaves = "SwitchName=s1 Nodes=a1,c1\nSwitchName=s2 Nodes=a2\n";
    let nodes = "ClusterName=x\nNodeName=a[1-2] Gres=gpu:4\nNodeName=c1 CPUs=4\n";
    for files in [[leaves, nodes], [nodes, leaves]] {
        let Cluster { topology, notes } = read_all(&files);
        assert_eq!((topology.machines.len(), topology.gpus()), (2, 8), "c1 has no GPUs");
        assert_eq!(notes, ["nodes without GPUs are left out: 1 (c1)"]);
    }
    let cluster = read_all(&[nodes]).topology;
    assert_eq!((cluster.racks.len(), cluster.gpus()), (1, 8), "no switches: one rack");
}

const SLURM: &str = include_str!("../../../examples/slurm/slurm.conf");
const GRES: &str = include_str!("../../../examples/slurm/gres.conf");
const TREE: &str = include_str!("../../../examples/slurm/topology.conf");
const BLOCKS: &str = include_str!("../../../examples/slurm/blocks.conf");
const YAML: &str = include_str!("../../../examples/slurm/topology.yaml");

#[test]
fn slurms_files_at_once() {
    let Cluster { topology, notes } = read_all(&[TREE, SLURM, GRES]);
    assert_eq!(topology.racks, ["leaf1", "leaf2", "leaf3"]);
    assert_eq!((rack_sizes(&topology), topology.gpus()), (vec![4, 4, 4], 80));
    let types: Vec<&str> = topology.machines.iter().map(|m| m.gpu_type.as_str()).collect();
    assert_eq!((types[0], types[8]), ("a100", "v100"));
    assert_eq!(
        notes,
        [
            "leaf switches are racks, all equally far apart: 2 switches of level 2 (spine1, \
             spine2) and 1 switch of level 3 (core) are flattened",
            "nodes without GPUs are left out: 1 (login1)",
        ]
    );
    // Without a topology all nodes are one rack, whichever file comes first.
    for files in [[SLURM, GRES], [GRES, SLURM]] {
        let topology = read_all(&files).topology;
        assert_eq!((rack_sizes(&topology), topology.gpus()), (vec![12], 80));
    }
    // gres.conf alone: devices are counted, lines of one node add up.
    let topology = read_all(&[GRES]).topology;
    assert_eq!((topology.machines.len(), topology.gpus()), (12, 80));
    let everywhere = "Name=gpu Type=h100 File=/dev/nvidia[0-3]\n";
    let topology = read_all(&["SwitchName=s Nodes=a[1-3]\n", everywhere]).topology;
    assert_eq!((topology.gpus(), topology.machines[2].gpu_type.as_str()), (12, "h100"));
}

#[test]
fn assumed_gpus_are_told() {
    let leaves = "SwitchName=s Nodes=a[1-4]\n";
    assert_eq!(
        read_all(&[leaves]).notes,
        ["GPUs are assumed, 8 per machine, on 4 of the machines: no file says how many; \
          give --gpus-per-machine N, or slurm.conf and gres.conf too"]
    );
    let file = [(leaves.as_bytes(), "f")];
    assert!(topo::read(&file, Some(4)).unwrap().notes.is_empty(), "the user has said it");
    let nodes = b"NodeName=a1 Gres=gpu:2\n";
    let notes = topo::read(&[(nodes, "f")], Some(4)).unwrap().notes;
    assert!(notes[0].starts_with("--gpus-per-machine 4 is not used"), "{notes:?}");
}

#[test]
fn blocks_and_yaml() {
    let Cluster { topology, notes } = read_all(&[BLOCKS, "NodeName=gpu[01-08] Gres=gpu:8\n"]);
    assert_eq!(
        (topology.racks.as_slice(), topology.gpus()),
        (&["block1".into(), "block2".into()][..], 64)
    );
    assert!(notes[0].contains("BlockSizes=4,8 are flattened"), "{notes:?}");
    let Cluster { topology, notes } = read_all(&[YAML]);
    assert_eq!(
        (topology.racks.as_slice(), topology.gpus()),
        (&["leaf1".into(), "leaf2".into()][..], 64)
    );
    assert_eq!(notes[0], "a/f.conf has 3 topologies: tree is used, blocks, flat not");
    let blocks =
        YAML.replace("cluster_default: false", "cluster_default: true").replacen("true", "no", 1);
    assert_eq!(read_all(&[&blocks]).topology.racks, ["block1", "block2"]);
    let flat = "- topology: x\n  flat: true\n";
    assert_eq!(rack_sizes(&read_all(&[flat, SLURM]).topology), [12]);
}

#[test]
fn a_continued_blank_line_swallows_nothing() {
    let text = "SwitchName=a Nodes=n[1-2] \\\n\nSwitchName=b Nodes=n[3-4]\n\
                SwitchName=c \\\n  Nodes=n5\n";
    assert_eq!(read(text, 1).racks, ["a", "b", "c"]);
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
        ("", "file is empty; a description of a cluster"),
        ("name = \"x\"\n", "at least one machine"),
        ("[[rack]]\nmachines = 2\n", "file:1: key rack: expected gpus beside machines"),
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
        ("SwitchName=a\n", "either nodes or switches"),
        ("SwitchName=a Switches=a\n", "no switch below itself"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "no switch below itself"),
        ("BlockName=a\n", "the nodes of a block"),
        ("BlockName=a Nodes=x\nSwitchName=b Switches=a\n", "either blocks or switches"),
        (
            "SwitchName=a Nodes=gpu[000000-999999999]\n",
            "file:1: key Nodes: found \"gpu[000000-999999999]\", expected at most 1000000 names: \
             the range \"000000-999999999\" has 1000000000",
        ),
        ("SwitchName=a Nodes=gpu[9-1]\n", "a range that goes upward"),
        ("Name=gpu Count=many\n", "a number of GPUs"),
        ("NodeName=a Name=gpu Type=x\nNodeName=a Name=gpu Type=y\n", "one type of GPU per node"),
        ("- topology: a\n", "one of tree, block and flat"),
        ("- topology: a\n  tree:\n    leaves: 3\n", "a key switches"),
        ("- topology: a\n  tree:\n    switches:\n      - switch: s\n", "file:4"),
        ("- topology: a\n\tflat: true\n", "not tabs"),
        ("- topology: a\n  flat: {}\n", "plain words"),
        ("racks:\n  - a\n", "Slurm's topology.conf"),
        ("SwitchName=a Nodes=x[1-\n", "bracket"),
        ("SwitchName=a Nodes=x\nNodeName=x Gres=gpu:a:b:c\n", "gpu:a100:4"),
        ("SwitchName=a Nodes=x\nNodeName=y Gres=gpu:4\n", "under a switch"),
    ] {
        let error = topo::read(&[(text.as_bytes(), "file")], None).unwrap_err().to_string();
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
    let Cluster { topology: cluster, notes } =
        topo::read(&[(&bytes[..], "lingjun_topo.csv")], None).unwrap();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("of PSW") && notes[0].contains("of DSW"), "{notes:?}");
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
