//! What workers hold: parts cut in memory, parts on disk, copies of remote nodes.

use std::path::Path;
use std::sync::Arc;

use hither_core::record::train::Machine;
use hither_gnn::dataset::UNLABELLED;
use hither_gnn::generate::{self, Family};
use hither_gnn::load::{self, Options};
use hither_gnn::local::Pace;
use hither_gnn::model::{Kind, Model, Spec};
use hither_gnn::partition::Partition;
use hither_gnn::parts::stored::{PARTS, WHOLE};
use hither_gnn::parts::{self, PartWriter, open_part};
use hither_gnn::sample::Fanout;
use hither_gnn::train::{Mode, Settings, Trainer};
use hither_gnn::{Dataset, Features, Graph, Labels, Metric, Split};
use proptest::prelude::*;

fn write(data: &Dataset, partition: &Partition, dir: &Path) {
    let writer = PartWriter::new(data, partition, "test").expect("a complete dataset");
    writer.write(dir, &|_| ()).expect("written");
}

fn open(dir: &Path) -> Dataset {
    load::open(dir, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// Everything that training reads of a part.
fn assert_same(found: &Dataset, expected: &Dataset) {
    assert_eq!(found.graph.offsets(), expected.graph.offsets());
    assert_eq!(found.graph.targets(), expected.graph.targets());
    assert_eq!(found.split.train, expected.split.train);
    match (&found.features, &expected.features) {
        (Features::Dense { values: a, dim: m }, Features::Dense { values: b, dim: n }) => {
            assert_eq!((&a[..], m), (&b[..], n));
            assert!(a.is_mapped());
        }
        (
            Features::Sparse { offsets: a, indices: b, values: c, dim: m },
            Features::Sparse { offsets: d, indices: e, values: f, dim: n },
        ) => {
            assert_eq!((&a[..], &b[..], m), (&d[..], &e[..], n));
            assert_eq!(c.as_deref(), f.as_deref());
            assert!(a.is_mapped() && b.is_mapped());
        }
        _ => panic!("features of another kind"),
    }
    match (&found.labels, &expected.labels) {
        (Labels::Classes { of: a, .. }, Labels::Classes { of: b, .. }) => assert_eq!(a[..], b[..]),
        (Labels::Tasks { of: a, .. }, Labels::Tasks { of: b, .. }) => assert_eq!(a[..], b[..]),
        _ => panic!("labels of another kind"),
    }
}

/// A dataset of any kind, whose features name the node.
fn dataset(nodes: u32, edges: &[(u32, u32)], kind: usize) -> Dataset {
    let graph = Graph::from_edges(nodes as usize, edges).expect("nodes are there");
    let features = match kind % 3 {
        0 => {
            let values: Vec<f32> = (0..nodes).flat_map(|node| [node as f32, -1.0]).collect();
            Features::Dense { values: values.into(), dim: 2 }
        }
        with_values => {
            // Node n has n % 3 entries.
            let rows = (0..nodes).map(|node| (0..node % 3).map(move |at| (at + node) % 7));
            let mut offsets = vec![0_u64];
            let mut indices: Vec<u32> = vec![];
            for row in rows {
                indices.extend(row);
                offsets.push(indices.len() as u64);
            }
            let values: Vec<f32> = (0..indices.len()).map(|at| at as f32).collect();
            let values = (with_values == 2).then(|| values.into());
            Features::Sparse { offsets: offsets.into(), indices: indices.into(), values, dim: 7 }
        }
    };
    let (labels, metric) = if kind.is_multiple_of(2) {
        let class = |node| if node == 3 { UNLABELLED } else { node % 2 };
        let of: Vec<u32> = (0..nodes).map(class).collect();
        (Labels::Classes { of: of.into(), count: 2 }, Metric::Accuracy)
    } else {
        let of: Vec<u8> = (0..nodes).flat_map(|node| [(node % 2) as u8, 1]).collect();
        (Labels::Tasks { of: of.into(), count: 2 }, Metric::F1Micro)
    };
    let set = |first: u32| (first..nodes).step_by(3).filter(|node| *node != 3).collect();
    let split = Split { train: set(0), valid: set(1), test: set(2) };
    let mut data = Dataset::new("any".into(), graph, features, labels, split, metric);
    if kind.is_multiple_of(5) {
        data.node_names = Some((0..nodes).map(|node| format!("n{node}")).collect());
    }
    data
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn parts_on_disk_are_those_cut_in_memory(
        edges in prop::collection::vec((0_u32..40, 0_u32..40), 0..300),
        of in prop::collection::vec(0_u32..4, 40),
        kind in 0_usize..30,
    ) {
        let mut of = of;
        of[..4].copy_from_slice(&[0, 1, 2, 3]);
        let partition = Partition { of, parts: 4 };
        let data = dataset(40, &edges, kind);
        let folder = tempfile::tempdir().expect("a folder");
        write(&data, &partition, folder.path());
        let whole = open(folder.path());
        let stored = whole.parts.clone().expect("parts");
        let cut = parts::cut(&data, &partition);
        for (part, expected) in cut.iter().enumerate() {
            assert_same(&stored.datasets()[part], expected);
            let alone = open_part(folder.path(), part).expect("a part");
            assert_same(&alone.data, expected);
            let of = partition.nodes_of();
            prop_assert_eq!(&alone.data.original.expect("renumbered")[..], &of[part][..]);
            prop_assert_eq!(alone.nodes.len(), expected.graph.nodes());
        }
        prop_assert!(open_part(folder.path(), 4).is_err());
        // Nodes keep their names and neighbours, in the same order.
        let order = whole.nodes_in_original_order().expect("renumbered");
        for node in 0..40_u32 {
            let new = order[node as usize];
            prop_assert_eq!(whole.node_name(new), data.node_name(node));
            let old = |new: &u32| whole.original_number(*new);
            let neighbours: Vec<u32> = whole.graph.neighbours(new).iter().map(old).collect();
            prop_assert_eq!(&neighbours[..], data.graph.neighbours(node));
        }
        let old = |set: &[u32]| set.iter().map(|n| whole.original_number(*n)).collect::<Vec<_>>();
        prop_assert_eq!(old(&whole.split.test), data.split.test.clone());
        // Written once more, in other parts, it is the same again.
        let other = Partition { of: (0..40).map(|node| node % 3).collect(), parts: 3 };
        let again = tempfile::tempdir().expect("a folder");
        let renumbered = (0..40).map(|new| other.of[whole.original_number(new) as usize]).collect();
        write(&whole, &Partition { of: renumbered, parts: 3 }, again.path());
        for (part, expected) in parts::cut(&data, &other).iter().enumerate() {
            assert_same(&open_part(again.path(), part).expect("a part").data, expected);
        }
    }
}

fn settings(mode: Mode) -> Settings {
    let pace = Pace { batch: Some(64), fanout: Fanout::AtMost(5), rate: 0.01, clip: None };
    Settings {
        mode,
        rounds: 3,
        local_steps: 3,
        rho: 1.2,
        local: pace.clone(),
        server: Pace { fanout: Fanout::AtMost(7), ..pace },
        machine: Machine { sums_per_s: 1e9, products_per_s: 1e10, link_bytes_per_s: 1e9 },
        seed: 7,
        ..Settings::default()
    }
}

/// Only numbers of nodes differ, and nothing that is drawn or summed depends on them: models and
/// outputs agree to the last bit wherever the whole graph is sampled.
#[test]
fn training_on_parts_from_disk_changes_no_bit() {
    let family = generate::Settings::for_family(Family::CutHomophily, 1200, 1);
    let data = generate::generate(&generate::Settings { communities: 12, ..family });
    let data = Arc::new(data.expect("a graph"));
    let of: Vec<u32> = (0..1200_u32).map(|node| node.wrapping_mul(2_654_435_761) >> 30).collect();
    let partition = Partition { of, parts: 4 };
    let folder = tempfile::tempdir().expect("a folder");
    write(&data, &partition, folder.path());
    let stored = Arc::new(open(folder.path()));
    let by_part = stored.parts.as_ref().expect("parts").partition();
    let order = stored.nodes_in_original_order().expect("renumbered");
    let spec = Spec {
        layers: vec![Kind::Gcn, Kind::Sage, Kind::Gat],
        inputs: data.features.dim(),
        hidden: 16,
        outputs: data.labels.count(),
        heads: 2,
        batch_norm: true,
        dropout: 0.3,
        ..Spec::default()
    };
    for mode in Mode::ALL {
        let trained = |data: &Arc<Dataset>, partition: &Partition| {
            let model = Model::new(spec.clone()).expect("a model");
            let mut trainer = Trainer::new(settings(mode), model, data.clone(), partition);
            while !trainer.is_done() {
                trainer.round(&|| 0.0).expect("a round");
            }
            trainer
        };
        let (memory, disk) = (trained(&data, &partition), trained(&stored, &by_part));
        assert!(memory.global == disk.global, "{} differs", mode.name());
        assert_eq!(memory.rounds, disk.rounds, "{}", mode.name());
        let infer = |trainer: &Trainer| trainer.model.infer(&trainer.global, &trainer.data).logits;
        let (memory, disk) = (infer(&memory), infer(&disk));
        let classes = data.labels.count();
        for (node, logits) in memory.chunks(classes).enumerate() {
            let new = order[node] as usize;
            assert_eq!(logits, &disk[new * classes..(new + 1) * classes], "{}", mode.name());
        }
    }
}

#[test]
fn a_part_opens_without_the_rest() {
    let edges: Vec<(u32, u32)> = (0..39).map(|node| (node, node + 1)).collect();
    let data = dataset(40, &edges, 0);
    let partition = Partition { of: (0..40).map(|node| node / 10).collect(), parts: 4 };
    let folder = tempfile::tempdir().expect("a folder");
    write(&data, &partition, folder.path());
    // The last bytes are the last part's training nodes.
    let path = folder.path().join(PARTS);
    let mut bytes = std::fs::read(&path).expect("bytes");
    let end = bytes.len();
    bytes[end - 4..].fill(255);
    std::fs::write(&path, &bytes).expect("written");
    for part in 0..3 {
        assert_eq!(open_part(folder.path(), part).expect("intact").data.graph.edges(), 9);
    }
    assert!(open_part(folder.path(), 3).is_err());
    assert!(load::open(folder.path(), &Options::default()).is_err());
}

#[test]
fn files_of_different_writes_are_told_apart() {
    let edges: Vec<(u32, u32)> = (0..39).map(|node| (node, node + 1)).collect();
    let data = dataset(40, &edges, 1);
    let [one, other] = [0, 1].map(|_| tempfile::tempdir().expect("a folder"));
    let by = |size: u32| Partition { of: (0..40).map(|node| node / size).collect(), parts: 2 };
    write(&data, &by(20), one.path());
    write(&data, &Partition { of: (0..40).map(|node| node % 2).collect(), parts: 2 }, other.path());
    std::fs::copy(other.path().join(PARTS), one.path().join(PARTS)).expect("copied");
    let error = open_part(one.path(), 0).expect_err("mixed").to_string();
    assert!(error.contains("partition again"), "{error}");
    // Files that were cut off end in an error, never in a panic.
    for name in [WHOLE, PARTS] {
        let path = other.path().join(name);
        let bytes = std::fs::read(&path).expect("bytes");
        for len in (0..bytes.len()).step_by(251) {
            std::fs::write(&path, &bytes[..len]).expect("written");
            assert!(load::open(other.path(), &Options::default()).is_err(), "{name}, {len} bytes");
        }
        std::fs::write(&path, &bytes).expect("written");
    }
}

/// Node 4 has nine edges into part 0, node 5 one: it is copied nine times out of ten.
#[test]
fn copies_are_drawn_by_their_edges_and_do_not_learn() {
    let mut edges: Vec<(u32, u32)> = (6..15).map(|node| (4, node)).collect();
    edges.extend([(5, 6), (5, 4)]);
    let data = dataset(15, &edges, 0);
    let of = (0..15).map(|node| u32::from(node < 6)).collect();
    let partition = Partition { of, parts: 2 };
    let mut often = 0;
    for seed in 0..1000 {
        let (parts, bytes) = parts::cut_with_copies(&data, &partition, 1, seed);
        let Features::Dense { values, .. } = &parts[0].features else { panic!("dense") };
        let copied = values[9 * 2] as u32;
        often += u32::from(copied == 4);
        assert!(copied == 4 || copied == 5, "{copied} is no neighbour");
        // Own training nodes are 6, 9 and 12; the copy is none, whatever its set.
        assert_eq!(parts[0].split.train, [0, 3, 6]);
        // Part 1 gets one node with one of its edges from part 0. A row has 8 bytes.
        let edges_here = if copied == 4 { 9 } else { 1 };
        let other = parts[1].graph.degree(6) as u64;
        assert_eq!(bytes, 2 * 8 + 4 * (edges_here + other));
    }
    // Five standard deviations are 47.
    assert!((853..947).contains(&often), "{often}");
}

#[test]
fn homes_are_the_parts() {
    let data = dataset(12, &[(0, 1)], 0);
    let partition = Partition { of: (0..12).map(|node| node % 2).collect(), parts: 2 };
    let homes = parts::homes(&data, &partition);
    for (part, (train, home)) in homes.iter().enumerate() {
        let is_here = |node: &u32| *node as usize % 2 == part;
        let expected: Vec<u32> = data.split.train.iter().copied().filter(is_here).collect();
        assert_eq!(train, &expected);
        let expected: Vec<bool> = (0..12_u32).map(|node| is_here(&node)).collect();
        assert_eq!(home, &expected);
    }
}
