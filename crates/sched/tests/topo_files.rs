//! Clusters from every kind of file.

use hither_core::topology::{Link, Tier, Topology};
use hither_sched::topo::{self, ClusterDescription};
use proptest::prelude::*;

fn read(text: &str, gpus: u32) -> Topology {
    topo::read(&[(text.as_bytes(), "dir/file.ext")], Some(gpus))
        .unwrap_or_else(|error| panic!("{error}"))
        .topology
}

/// Several files at once, without a number of GPUs.
fn read_all(texts: &[&str]) -> ClusterDescription {
    let files: Vec<(&[u8], &str)> =
        texts.iter().map(|text| (text.as_bytes(), "a/f.conf")).collect();
    topo::read(&files, None).unwrap_or_else(|error| panic!("{error}"))
}

fn rack_sizes(topology: &Topology) -> Vec<usize> {
    let mut sizes = vec![0; topology.levels[1].places.len()];
    topology.machines.iter().for_each(|machine| sizes[machine.parent as usize] += 1);
    sizes
}

fn level_names(topology: &Topology) -> Vec<&str> {
    topology.levels.iter().map(|level| level.name.as_str()).collect()
}

/// (name, place around it) of the places of a level.
fn places(topology: &Topology, level: usize) -> Vec<(&str, u32)> {
    topology.levels[level].places.iter().map(|p| (p.name.as_str(), p.parent)).collect()
}

fn racks(topology: &Topology) -> Vec<&str> {
    topology.levels[1].places.iter().map(|place| place.name.as_str()).collect()
}

#[test]
fn toml() {
    let cluster = read(include_str!("data/cluster.toml"), 1);
    assert_eq!(racks(&cluster), ["old1", "old2", "new"]);
    assert_eq!(rack_sizes(&cluster), [4, 4, 3]);
    assert_eq!(cluster.gpus(), 64 + 20);
    let names: Vec<&str> = cluster.machines.iter().map(|machine| machine.name.as_str()).collect();
    assert_eq!((names[0], names[8], names[10]), ("gpu001", "big01", "gpu011"));
    assert_eq!(cluster.levels[1].link, Link::Gbit(200.0));
    assert_eq!(cluster.levels[0].link, Link::Gbit(1200.0));
    assert_eq!(cluster.best_tier(20, Some("a100")), Some(Tier(1)));
    assert_eq!(read("[[rack]]\nmachines = 2\ngpus = 4\n", 1).name, "file");
    let named = "[[rack]]\nname = \"r[1-2]\"\n[[rack.machine]]\nname = \"n[1-6]\"\ngpus = 8\n";
    let named = read(named, 1);
    assert_eq!((rack_sizes(&named), named.machines[3].name.as_str()), (vec![3, 3], "n4"));
}

#[test]
fn slurm() {
    let cluster = read(include_str!("data/topology.conf"), 2);
    assert_eq!(rack_sizes(&cluster), [4, 3]);
    let gpus: Vec<u32> = cluster.machines.iter().map(|machine| machine.gpus).collect();
    assert_eq!(gpus, [4, 4, 4, 4, 2, 2, 8], "default line, argument, own line");
    assert_eq!(cluster.machines[6].gpu_type, "a100");

    let leaves = "SwitchName=s1 Nodes=a1,c1\nSwitchName=s2 Nodes=a2\n";
    let nodes = "ClusterName=x\nNodeName=a[1-2] Gres=gpu:4\nNodeName=c1 CPUs=4\n";
    for files in [[leaves, nodes], [nodes, leaves]] {
        let ClusterDescription { topology, notes } = read_all(&files);
        assert_eq!((topology.machines.len(), topology.gpus()), (2, 8), "c1 has no GPUs");
        assert_eq!(notes, ["nodes without GPUs are left out: 1 (c1)"]);
    }
    let cluster = read_all(&[nodes]).topology;
    assert_eq!((racks(&cluster).len(), cluster.gpus()), (1, 8), "no switches: one rack");
}

const SLURM: &str = include_str!("../../../examples/slurm/slurm.conf");
const GRES: &str = include_str!("../../../examples/slurm/gres.conf");
const TREE: &str = include_str!("../../../examples/slurm/topology.conf");
const BLOCKS: &str = include_str!("../../../examples/slurm/blocks.conf");
const YAML: &str = include_str!("../../../examples/slurm/topology.yaml");

#[test]
fn slurms_files_at_once() {
    let ClusterDescription { topology, notes } = read_all(&[TREE, SLURM, GRES]);
    assert_eq!(level_names(&topology), ["machine", "rack", "pod", "network"]);
    assert_eq!(places(&topology, 1), [("leaf1", 0), ("leaf2", 0), ("leaf3", 1)]);
    assert_eq!(places(&topology, 2), [("spine1", 0), ("spine2", 0)]);
    assert_eq!(places(&topology, 3), [("network", 0)], "the switch above all is the network");
    assert_eq!((rack_sizes(&topology), topology.gpus()), (vec![4, 4, 4], 80));
    let types: Vec<&str> = topology.machines.iter().map(|m| m.gpu_type.as_str()).collect();
    assert_eq!((types[0], types[8]), ("a100", "v100"));
    assert_eq!(notes, ["nodes without GPUs are left out: 1 (login1)"]);
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
        ["assuming 8 GPUs on each of 4 machines, because no file says how many they have; \
          give --gpus-per-machine N, or slurm.conf and gres.conf too"]
    );
    let file = [(leaves.as_bytes(), "f")];
    assert!(topo::read(&file, Some(4)).unwrap().notes.is_empty(), "the user has said it");
    let nodes = b"NodeName=a1 Gres=gpu:2\n";
    let notes = topo::read(&[(nodes, "f")], Some(4)).unwrap().notes;
    assert!(notes[0].starts_with("--gpus-per-machine 4 is not used"), "{notes:?}");
}

#[test]
fn our_own_file_and_slurms_do_not_mix() {
    let ours = "[[rack]]\nmachines = 2\ngpus = 8\n";
    let switches = "ip,ASW\nh1,S1\n";
    for other in [ours, switches] {
        let files = [(other.as_bytes(), "other"), (SLURM.as_bytes(), "slurm.conf")];
        let error = topo::read(&files, None).unwrap_err().to_string();
        assert!(error.starts_with("other describes a whole cluster by itself"), "{error}");
    }
    let notes = read_all(&["SlurmctldPort=6817\n", SLURM]).notes;
    assert!(notes.iter().any(|note| note.contains("is not used")), "{notes:?}");
}

#[test]
fn a_file_called_yaml_is_read_as_yaml() {
    let error = topo::read(&[(b"topology:\n", "topology.yaml")], None).unwrap_err().to_string();
    assert!(error.contains("a list of topologies"), "{error}");
}

#[test]
fn blocks_and_yaml() {
    let ClusterDescription { topology, notes } =
        read_all(&[BLOCKS, "NodeName=gpu[01-08] Gres=gpu:8\n"]);
    assert_eq!((racks(&topology), topology.gpus()), (vec!["block1", "block2"], 64));
    assert_eq!(
        level_names(&topology),
        ["machine", "block", "network"],
        "8 nodes are all there are"
    );
    assert!(notes.is_empty(), "{notes:?}");
    let ClusterDescription { topology, notes } = read_all(&[YAML]);
    assert_eq!((racks(&topology), topology.gpus()), (vec!["leaf1", "leaf2"], 64));
    assert_eq!(notes[0], "a/f.conf has 3 topologies: tree is used, blocks, flat not");
    let blocks =
        YAML.replace("cluster_default: false", "cluster_default: true").replacen("true", "no", 1);
    assert_eq!(racks(&read_all(&[&blocks]).topology), ["block1", "block2"]);
    let flat = "- topology: x\n  flat: true\n";
    assert_eq!(rack_sizes(&read_all(&[flat, SLURM]).topology), [12]);
}

#[test]
fn switches_of_any_depth() {
    // A leaf right under the core, and two cores that share all below them.
    let text = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=c Nodes=n3\n\
                SwitchName=s Switches=a,b\nSwitchName=x Switches=s,c\nSwitchName=y Switches=s,c\n";
    let ClusterDescription { topology, notes } = read_all(&[text]);
    assert_eq!(level_names(&topology), ["machine", "rack", "pod", "network"]);
    assert_eq!(places(&topology, 1), [("a", 0), ("b", 0), ("c", 1)]);
    assert_eq!(places(&topology, 2), [("s", 0), ("c", 0)]);
    assert_eq!(notes[0], "switches that share switches below them are one place: x, y");
    // Several trees: the network joins them.
    let text = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=s Switches=a\n";
    let topology = read_all(&[text]).topology;
    assert_eq!(places(&topology, 2), [("s", 0), ("b", 0)]);
    // Five levels of switches, and one too many.
    let mut text = "SwitchName=s1 Nodes=n1\nSwitchName=t1 Nodes=n2\n".to_owned();
    for level in 2..=5 {
        text += &format!("SwitchName=s{level} Switches=s{}\n", level - 1);
        text += &format!("SwitchName=t{level} Switches=t{}\n", level - 1);
    }
    let error = topo::read(&[(text.as_bytes(), "f")], None).unwrap_err().to_string();
    assert!(error.contains("at most 5 levels of switches"), "{error}");
    let text = text.replace("SwitchName=s5 Switches=s4", "SwitchName=top Switches=s4,t4");
    let text = text.replace("SwitchName=t5 Switches=t4\n", "");
    assert_eq!(
        level_names(&read_all(&[&text]).topology),
        ["machine", "rack", "pod", "hall", "site", "network"]
    );
}

#[test]
fn blocks_of_blocks() {
    let mut text: String = (0..6).map(|b| format!("BlockName=b{b} Nodes=n{b}[0-3]\n")).collect();
    text += "BlockSizes=4,8,16,32\n";
    let topology = read_all(&[&text]).topology;
    assert_eq!(level_names(&topology), ["machine", "block", "group2", "group4", "network"]);
    let around: Vec<u32> = places(&topology, 1).iter().map(|place| place.1).collect();
    assert_eq!(around, [0, 0, 1, 1, 2, 2]);
    assert_eq!(places(&topology, 2), [("b0", 0), ("b2", 0), ("b4", 1)]);
    for sizes in ["4,6", "8,4", "4,4", "0", "x"] {
        let text = text.replace("4,8,16,32", sizes);
        let error = topo::read(&[(text.as_bytes(), "f")], None).unwrap_err().to_string();
        assert!(error.contains("rising sizes of blocks"), "{sizes}: {error}");
    }
}

const FOUR: &str = include_str!("../../../examples/cluster-4level.toml");

#[test]
fn levels_by_name() {
    let topology = read(FOUR, 1);
    assert_eq!(level_names(&topology), ["machine", "rack", "pod", "network"]);
    assert_eq!((topology.machines.len(), topology.gpus()), (128, 1024));
    assert_eq!((topology.levels[1].places.len(), topology.levels[2].places.len()), (16, 4));
    assert_eq!(read(&topo::to_toml(&topology), 1), topology);
    // Entries inside entries; names go through all copies.
    let nested = "[[level]]\nname = \"machine\"\n[[level]]\nname = \"rack\"\n[[level]]\nname = \"pod\"\n\
                  [[level]]\nname = \"network\"\noversubscription = 3\n\
                  [[pod]]\ncount = 2\n[[pod.rack]]\nname = \"r[1-4]\"\nmachines = 2\ngpus = 4\n\
                  [[pod]]\nname = \"odd\"\n[[pod.rack]]\n[[pod.rack.machine]]\nname = \"big\"\ngpus = 16\n";
    let topology = read(nested, 1);
    assert_eq!(places(&topology, 2), [("pod0", 0), ("pod1", 0), ("odd", 0)]);
    assert_eq!(places(&topology, 1), [("r1", 0), ("r2", 0), ("r3", 1), ("r4", 1), ("rack4", 2)]);
    assert_eq!((rack_sizes(&topology), topology.gpus()), (vec![2, 2, 2, 2, 1], 48));
    assert_eq!(topology.levels[3].link, Link::Oversubscribed(3.0));
    assert_eq!(topology.levels[3].core, None, "a core that never fills");
    assert_eq!(read(&topo::to_toml(&topology), 1), topology);
    // Two levels: machines around one switch. NVLink domains inside machines.
    let flat = "[[level]]\nname = \"machine\"\n[[level]]\nname = \"network\"\n[[machine]]\ncount = 3\ngpus = 8\n";
    assert_eq!((read(flat, 1).levels.len(), read(flat, 1).gpus()), (2, 24));
    let inside = "[[level]]\nname = \"nvlink\"\n[[level]]\nname = \"machine\"\n[[level]]\nname = \"network\"\n\
                  [[machine]]\ncount = 2\nnvlinks = 2\ngpus = 4\n";
    assert_eq!(read(inside, 1).best_tier(8, None), Some(Tier(1)));
}

#[test]
fn wrong_levels_are_refused() {
    let level = |name: &str| format!("[[level]]\nname = \"{name}\"\n");
    let two = level("machine") + &level("network");
    let end = "[[machine]]\ngpus = 1\n";
    for (text, word) in [
        (level("machine") + end, "from 2 to 6 levels"),
        (level("machine") + &level("machine") + end, "different names"),
        (level("gpus") + &two + end, "that is no key"),
        (level("A b") + &two + end, "that is no key"),
        (level("network") + &two + end, "the last level only"),
        (two.clone() + "gbit = 3\noversubscription = 2\n" + end, "not both"),
        (two.clone() + "gbit = -3\n" + end, "level.gbit: found \"-3\""),
        (two.clone() + "latency_us = nan\n" + end, "level.latency_us"),
        (two.replacen("\n[[level]]", "\ncore_gbit = 3\n[[level]]", 1) + end, "nothing else"),
        (two.clone() + "[network]\nnic_gbit = 3\n" + end, "only all_reduce beside [[level]]"),
        (
            two.clone() + "[[rack]]\nmachines = 1\ngpus = 1\n",
            "one of name, network, level, [[machine]]",
        ),
        (two.clone() + "machine = 3\n", "found \"machine\""),
        (two.clone() + "[[machine]]\ncount = 2\n", "gpus of a machine"),
        (two.clone() + "[[machine]]\ngpus = 2\nracks = 2\n", "found \"racks\""),
    ] {
        let error = topo::read(&[(text.as_bytes(), "file")], None).unwrap_err().to_string();
        assert!(error.starts_with("file") && error.contains(word), "{text:?}: {error}");
    }
}

#[test]
fn a_continued_blank_line_swallows_nothing() {
    let text = "SwitchName=a Nodes=n[1-2] \\\n\nSwitchName=b Nodes=n[3-4]\n\
                SwitchName=c \\\n  Nodes=n5\n";
    assert_eq!(racks(&read(text, 1)), ["a", "b", "c"]);
}

#[test]
fn tables() {
    let cluster = read(include_str!("data/switches.csv"), 8);
    // The S1 of another aggregation switch is another rack.
    assert_eq!(places(&cluster, 1), [("P1-S1", 0), ("S2", 0), ("P2-S1", 1)]);
    assert_eq!(places(&cluster, 2), [("P1", 0), ("P2", 0)]);
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
    let ClusterDescription { topology: cluster, notes } =
        topo::read(&[(&bytes[..], "lingjun_topo.csv")], None).unwrap();
    assert_eq!(notes.len(), 1, "{notes:?}");
    // Each of the three aggregation switches has its own access switches S1, S2 and so on.
    let sizes = rack_sizes(&cluster);
    assert_eq!((cluster.machines.len(), sizes.len(), cluster.levels.len()), (847, 119, 4));
    assert_eq!(cluster.levels[2].places.len(), 3);
    assert_eq!(sizes.iter().max(), Some(&8));
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
