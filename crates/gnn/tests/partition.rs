//! Partitions: what must hold whatever the method, and what makes one method better than another.

use std::fs;
use std::path::Path;

use hither_gnn::partition::{Method, Partition, Settings, partition, quality, read, write};
use hither_gnn::{Error, Features, Graph, Labels};
use proptest::prelude::*;
use rand::RngExt;

fn classes(of: Vec<u32>, count: usize) -> Labels {
    Labels::Classes { of: of.into(), count }
}

fn settings(method: Method, parts: usize) -> Settings {
    Settings { method, parts, seed: 1, imbalance: 1.03, balance_train: false }
}

/// Nodes in communities, numbered across them, with three of four edges inside of one.
fn planted(nodes: u32, communities: u32, edges: usize) -> (Graph, Labels) {
    let mut random = hither_core::seed::stream(1, "planted");
    let edges: Vec<(u32, u32)> = (0..edges)
        .map(|_| {
            let from = random.random_range(0..nodes);
            let inside = random.random_range(0..4) < 3;
            let far = random.random_range(0..nodes);
            let near = far / communities * communities + from % communities;
            (from, if inside { near.min(nodes - 1) } else { far })
        })
        .collect();
    let graph = Graph::from_edges(nodes as usize, &edges).unwrap();
    let of = (0..nodes).map(|node| node % communities).collect();
    (graph, classes(of, communities as usize))
}

/// Most of `count` nodes that a part may have.
fn bound(count: usize, settings: &Settings) -> usize {
    let allowed = (settings.imbalance * count as f64 / settings.parts as f64) as usize;
    allowed.max(count.div_ceil(settings.parts))
}

/// Upper bound on the training nodes of a part: of all together, or of each class by itself where that is a kind of its own.
fn bound_of_train(labels: &Labels, train: &[u32], settings: &Settings) -> usize {
    let is_by_class =
        matches!(settings.method, Method::MetisEven | Method::Clusters | Method::Random);
    let Labels::Classes { of, count } = labels else { return bound(train.len(), settings) };
    if !is_by_class {
        return bound(train.len(), settings);
    }
    let size = |class: u32| train.iter().filter(|node| of[**node as usize] == class).count();
    let (own, few): (Vec<usize>, Vec<usize>) =
        (0..*count as u32).map(size).partition(|size| *size >= settings.parts);
    let unlabelled = size(u32::MAX);
    let rest = few.iter().sum::<usize>() + unlabelled;
    own.iter().map(|size| bound(*size, settings)).sum::<usize>() + bound(rest, settings)
}

fn assert_sound(
    cut: &Partition,
    labels: &Labels,
    nodes: usize,
    train: &[u32],
    settings: &Settings,
) {
    assert_eq!((cut.of.len(), cut.parts), (nodes, settings.parts));
    let lists = cut.nodes_of();
    assert_eq!(lists.iter().map(Vec::len).sum::<usize>(), nodes);
    for (part, list) in lists.iter().enumerate() {
        assert!(!list.is_empty(), "part {part} is empty");
        assert!(list.is_sorted());
        assert!(list.iter().all(|node| cut.of[*node as usize] == part as u32));
        let trains = list.iter().filter(|node| train.contains(node)).count();
        if settings.method == Method::Label || !settings.balance_train {
            assert!(list.len() <= bound(nodes, settings), "{} nodes in {part}", list.len());
        } else {
            let most = bound_of_train(labels, train, settings);
            assert!(trains <= most, "{trains} for training in {part}");
            let others = list.len() - trains;
            assert!(others <= bound(nodes - train.len(), settings), "{others} others in {part}");
        }
    }
}

/// Any graph, also with isolated nodes and hubs, and what to cut it by.
#[derive(Clone, Debug)]
struct Case {
    graph: Graph,
    labels: Labels,
    train: Vec<u32>,
    settings: Settings,
}

fn cases() -> impl Strategy<Value = Case> {
    let some_settings = |nodes: usize| {
        (0..Method::ALL.len(), 1..=nodes, any::<u64>(), 1.0..1.5, any::<bool>()).prop_map(
            |(method, parts, seed, imbalance, balance_train)| {
                let method = Method::ALL[method];
                Settings { method, parts, seed, imbalance, balance_train }
            },
        )
    };
    (1_usize..60).prop_flat_map(move |nodes| {
        let node = prop_oneof![0..nodes as u32, Just(0)];
        let edges = prop::collection::vec((0..nodes as u32, node), 0..200);
        let labels = prop::collection::vec(prop_oneof![0_u32..4, Just(u32::MAX)], nodes);
        let train = prop::collection::vec(any::<bool>(), nodes);
        (edges, labels, train, some_settings(nodes)).prop_map(
            move |(edges, labels, train, settings)| Case {
                graph: Graph::from_edges(nodes, &edges).unwrap(),
                labels: classes(labels, 4),
                train: (0..nodes as u32).filter(|node| train[*node as usize]).collect(),
                settings,
            },
        )
    })
}

proptest! {
    #[test]
    fn any_cut_is_sound(Case { graph, labels, train, settings } in cases()) {
        let cut = partition(&graph, &labels, &train, &settings).unwrap();
        assert_sound(&cut, &labels, graph.nodes(), &train, &settings);
        let again = partition(&graph, &labels, &train, &settings).unwrap();
        prop_assert_eq!(&cut, &again);
        assert_recounted(&graph, &labels, &train, &cut);
    }
}

/// The figures of the report against a recount edge by edge.
fn assert_recounted(graph: &Graph, labels: &Labels, train: &[u32], cut: &Partition) {
    let report = quality(graph, labels, train, cut);
    let Labels::Classes { of: class, count } = labels else { panic!("classes expected") };
    let nodes = graph.nodes() as u32;
    let ends = |node: u32| graph.neighbours(node).iter().map(|to| cut.of[*to as usize]);
    let (mut cut_edges, mut volume) = (0, 0);
    for (part, found) in report.parts.iter().enumerate() {
        let own = part as u32;
        let members: Vec<u32> = (0..nodes).filter(|n| cut.of[*n as usize] == own).collect();
        let inside: usize = members.iter().map(|n| ends(*n).filter(|p| *p == own).count()).sum();
        let leaving: usize = members.iter().map(|n| ends(*n).filter(|p| *p != own).count()).sum();
        let boundary = members.iter().filter(|n| ends(**n).any(|p| p != own)).count();
        assert_eq!(found.nodes, members.len() as u64);
        assert_eq!(found.train, members.iter().filter(|n| train.contains(n)).count() as u64);
        assert_eq!(found.edges_inside, inside as u64 / 2);
        assert_eq!(found.edges_cut, leaving as u64);
        assert_eq!(found.boundary_nodes, boundary as u64);
        for label in 0..*count {
            let of_label = members.iter().filter(|n| class[**n as usize] == label as u32).count();
            assert_eq!(found.labels[label], of_label as u64);
        }
        cut_edges += leaving as u64;
        for node in members {
            let mut foreign: Vec<u32> = ends(node).filter(|p| *p != own).collect();
            foreign.sort_unstable();
            foreign.dedup();
            volume += foreign.len() as u64;
        }
    }
    assert_eq!(report.cut_edges, cut_edges / 2);
    assert_eq!(report.communication_volume, volume);
    assert_eq!(report.replication, (f64::from(nodes) + volume as f64) / f64::from(nodes));
    let largest = report.parts.iter().map(|part| part.nodes).max().unwrap();
    assert_eq!(report.nodes.max, largest);
    assert_eq!(report.nodes.mean, f64::from(nodes) / cut.parts as f64);
    assert!((0.0..=1.0).contains(&report.label_skew), "{}", report.label_skew);
}

#[test]
fn metis_beats_streams_beat_chance() {
    let (graph, labels) = planted(4000, 16, 30_000);
    let share = |method| {
        let cut = partition(&graph, &labels, &[], &settings(method, 8)).unwrap();
        quality(&graph, &labels, &[], &cut).cut_share
    };
    let [metis, ldg, fennel, random, label] =
        [Method::Metis, Method::Ldg, Method::Fennel, Method::Random, Method::Label].map(share);
    // A quarter of the edges lead anywhere, and seven of eight of those out of a part.
    assert!(metis < 0.23, "{metis}");
    assert!(label < 0.23, "classes are communities: {label}");
    assert!(metis < ldg && metis < fennel, "{metis} {ldg} {fennel}");
    assert!(ldg < 0.9 * random && fennel < 0.9 * random, "{ldg} {fennel} {random}");
    assert!((random - 0.875).abs() < 0.01, "{random}");
}

#[test]
fn seeds_differ() {
    let (graph, labels) = planted(500, 5, 3000);
    for method in Method::ALL.into_iter().filter(|method| *method != Method::Label) {
        let cut = |seed| {
            let settings = Settings { seed, ..settings(method, 4) };
            partition(&graph, &labels, &[], &settings).unwrap().of
        };
        assert_ne!(cut(1), cut(2), "{method}");
        assert_eq!(cut(1 << 40), cut(1 << 40), "{method}");
    }
}

#[test]
fn cuts_at_the_same_time_do_not_disturb_each_other() {
    let (graph, labels) = planted(500, 5, 3000);
    let cut = |seed| {
        let settings = Settings { seed, ..settings(Method::Metis, 4) };
        partition(&graph, &labels, &[], &settings).unwrap()
    };
    let alone: Vec<Partition> = (0..8).map(cut).collect();
    let together: Vec<Partition> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|seed| scope.spawn(move || cut(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn training_nodes_are_balanced_where_asked() {
    let (graph, labels) = planted(2000, 8, 12_000);
    // All in two of the eight communities.
    let train: Vec<u32> = (0..2000).filter(|node| node % 8 < 2).collect();
    for method in [Method::Metis, Method::Ldg, Method::Fennel, Method::Random] {
        let even = Settings { balance_train: true, ..settings(method, 4) };
        let cut = partition(&graph, &labels, &train, &even).unwrap();
        assert_sound(&cut, &labels, 2000, &train, &even);
        assert!(quality(&graph, &labels, &train, &cut).train.min > 100, "{method}");
    }
    let cut = partition(&graph, &labels, &train, &settings(Method::Metis, 4)).unwrap();
    assert!(quality(&graph, &labels, &train, &cut).train.imbalance > 1.5);
}

/// Neither the training node nor the five others are enough for a part each; together they are.
#[test]
fn no_part_is_empty_where_kinds_are_few() {
    let graph = Graph::from_edges(6, &[(0, 4)]).unwrap();
    let labels = classes(vec![0; 6], 1);
    for method in Method::ALL {
        let settings = Settings { balance_train: true, ..settings(method, 6) };
        let cut = partition(&graph, &labels, &[4], &settings).unwrap();
        assert_sound(&cut, &labels, 6, &[4], &settings);
    }
}

#[test]
fn parts_by_label_are_skewed_and_random_ones_are_not() {
    let (graph, labels) = planted(2000, 8, 12_000);
    let skew = |method| {
        let cut = partition(&graph, &labels, &[], &settings(method, 8)).unwrap();
        quality(&graph, &labels, &[], &cut).label_skew
    };
    // A part of one class is as far from eight even ones as seven of eight nodes are.
    assert!((skew(Method::Label) - 0.875).abs() < 1e-9);
    assert!(skew(Method::Random) < 0.1);
}

#[test]
fn even_methods_give_every_part_its_share_of_each_class() {
    // Classes are communities, so that METIS alone puts each into one part.
    let (graph, labels) = planted(4000, 8, 40_000);
    let train: Vec<u32> = (0..4000).step_by(2).collect();
    let found = |method| {
        let settings = Settings { balance_train: true, ..settings(method, 4) };
        let cut = partition(&graph, &labels, &train, &settings).unwrap();
        let of_train = classes(train.iter().map(|node| node % 8).collect(), 8);
        let train_of =
            Partition { of: train.iter().map(|n| cut.of[*n as usize]).collect(), parts: 4 };
        let bare = Graph::from_edges(train.len(), &[]).unwrap();
        let skew = quality(&bare, &of_train, &[], &train_of).label_skew;
        (skew, quality(&graph, &labels, &train, &cut).cut_share)
    };
    let [metis, even, clusters, random] =
        [Method::Metis, Method::MetisEven, Method::Clusters, Method::Random].map(found);
    assert!(metis.0 > 0.3 && even.0 < 0.03 && random.0 < 0.01, "{metis:?} {even:?} {random:?}");
    assert!(clusters.0 < 0.1, "{clusters:?}");
    assert!(
        metis.1 < even.1 && even.1 < random.1 && clusters.1 < random.1,
        "{even:?} {clusters:?}"
    );
}

#[test]
fn features_and_hubs_of_parts() {
    // Two parts of two nodes: rows 0 and 2 in one, 4 and 6 in the other; the mean is 3 and the variance 5.
    let dense = Features::Dense { values: vec![0.0_f32, 2.0, 4.0, 6.0].into(), dim: 1 };
    let graph = Graph::from_edges(4, &[(3, 0), (3, 1), (3, 2)]).unwrap();
    let cut = Partition { of: vec![0, 0, 1, 1], parts: 2 };
    let report = quality(&graph, &classes(vec![0; 4], 1), &[], &cut).with_features(&dense, &cut);
    let near = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-12);
    assert!(near(report.feature_skew, 4.0 / 5.0), "{:?}", report.feature_skew);
    assert!(near(report.parts[1].feature_skew, (4.0_f64 / 5.0).sqrt()));
    assert_eq!(report.parts.iter().map(|part| part.hubs).collect::<Vec<_>>(), [0, 1]);
    // The same as sparse rows.
    let (offsets, indices) = (vec![0, 0, 1, 2, 3], vec![0, 0, 0]);
    let values = Some(vec![2.0_f32, 4.0, 6.0].into());
    let sparse =
        Features::Sparse { offsets: offsets.into(), indices: indices.into(), values, dim: 1 };
    let again = quality(&graph, &classes(vec![0; 4], 1), &[], &cut).with_features(&sparse, &cut);
    assert_eq!(again, report);
}

#[test]
fn nodes_without_a_class_are_spread() {
    let of = (0..80).map(|node| if node < 40 { u32::MAX } else { node / 10 - 4 }).collect();
    let labels = classes(of, 4);
    let graph = Graph::from_edges(80, &[]).unwrap();
    let cut = partition(&graph, &labels, &[], &settings(Method::Label, 4)).unwrap();
    let report = quality(&graph, &labels, &[], &cut);
    for (part, found) in report.parts.iter().enumerate() {
        let mut expected = vec![0; 4];
        expected[part] = 10;
        assert_eq!((found.nodes, &found.labels), (20, &expected));
    }
    assert_eq!(report.label_skew, 0.75);
}

#[test]
fn rows_of_answers() {
    // Nodes 0 and 3 answer yes to the first question, 1 and 2 to the second.
    let labels = Labels::Tasks { of: vec![1, 0, 0, 1, 0, 1, 1, 0].into(), count: 2 };
    let graph = Graph::from_edges(4, &[(0, 1), (1, 2), (2, 3)]).unwrap();
    let cut = partition(&graph, &labels, &[], &settings(Method::Label, 2)).unwrap();
    assert_eq!(cut.of, [0, 1, 1, 0]);
    let report = quality(&graph, &labels, &[], &cut);
    assert_eq!(report.parts[0].labels, [2, 0]);
    assert_eq!((report.label_skew, report.cut_share), (0.5, 2.0 / 3.0));
}

#[test]
fn odd_graphs() {
    let star: Vec<(u32, u32)> = (1..200).map(|leaf| (0, leaf)).collect();
    let clique: Vec<(u32, u32)> = (0..40).flat_map(|u| (0..u).map(move |v| (u, v))).collect();
    let shapes: [(usize, &[(u32, u32)]); 5] =
        [(200, &star), (40, &clique), (50, &[]), (50, &[(3, 4)]), (1, &[])];
    for (nodes, edges) in shapes {
        let graph = Graph::from_edges(nodes, edges).unwrap();
        let labels = classes(vec![0; nodes], 1);
        for method in Method::ALL {
            for parts in [1, 2, 7, 16, nodes] {
                let settings = settings(method, parts);
                if parts <= nodes {
                    let cut = partition(&graph, &labels, &[], &settings).unwrap();
                    assert_sound(&cut, &labels, nodes, &[], &settings);
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_done_is_told() {
    let graph = Graph::from_edges(5, &[(0, 1)]).unwrap();
    let labels = classes(vec![0; 5], 1);
    let told = |settings: &Settings| {
        partition(&graph, &labels, &[], settings).expect_err("refused").to_string()
    };
    let base = settings(Method::Metis, 6);
    assert_eq!(
        told(&base),
        "cannot partition a graph of 5 nodes into 6 parts: ask for at most one part per node"
    );
    assert!(told(&Settings { parts: 0, ..base }).contains("at least 1 part"));
    for imbalance in [0.5, f64::NAN, f64::INFINITY] {
        assert!(told(&Settings { parts: 2, imbalance, ..base }).contains("expected 1 or more"));
    }
    let no_train = partition(&graph, &labels, &[9], &settings(Method::Ldg, 2)).unwrap_err();
    assert!(no_train.to_string().contains("training node 9"), "{no_train}");
    let empty = Graph::from_edges(0, &[]).unwrap();
    let none = partition(&empty, &classes(vec![], 1), &[], &settings(Method::Random, 1));
    assert!(none.unwrap_err().to_string().contains("graph of 0 nodes into 1 parts"));
    assert!("kahip".parse::<Method>().unwrap_err().to_string().contains("clusters, ldg, fennel"));
    assert_eq!("fennel".parse::<Method>().unwrap(), Method::Fennel);
}

/// A mapped file's edges are not checked for their other directions: METIS must not see those.
#[test]
fn edges_with_one_end_are_refused_by_metis() {
    let labels = classes(vec![0; 64], 1);
    // Node 0 knows node 1, which knows nobody; node 0 knows itself.
    for target in [1, 0] {
        let offsets: Vec<u64> = (0..65).map(|node| u64::from(node > 0)).collect();
        let graph = Graph::from_arrays(offsets.into(), vec![target].into()).unwrap();
        let refused = partition(&graph, &labels, &[], &settings(Method::Metis, 2)).unwrap_err();
        assert!(refused.to_string().contains("lacks its other direction"), "{refused}");
        partition(&graph, &labels, &[], &settings(Method::Ldg, 2)).unwrap();
    }
}

fn read_text(dir: &Path, text: impl AsRef<[u8]>, nodes: usize) -> Result<Partition, Error> {
    let path = dir.join("graph.part.3");
    fs::write(&path, text).unwrap();
    read(&path, nodes)
}

#[test]
fn files_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("graph.part.3");
    let cut = Partition { of: vec![2, 0, 1, 1, 0], parts: 3 };
    write(&path, &cut).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "2\n0\n1\n1\n0\n");
    assert_eq!(read(&path, 5).unwrap(), cut);
    // Replaced as a whole, and nothing left beside it.
    write(&path, &Partition { of: vec![0], parts: 1 }).unwrap();
    assert_eq!(read(&path, 1).unwrap().of, [0]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(read_text(dir.path(), " 0\r\n1 \r\n\r\n1", 3).unwrap().of, [0, 1, 1]);
}

#[test]
fn bad_files_are_told_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&str, usize, &str); 9] = [
        ("0\none\n", 2, "graph.part.3:2: `one`: expected a part number"),
        ("0\n-1\n", 2, "graph.part.3:2: `-1`: expected a part number"),
        ("0\n99999999999\n", 2, "graph.part.3:2: `99999999999`: expected a part number"),
        ("0 1\n", 2, "graph.part.3:1: `0 1`: expected a part number"),
        ("0\n2\n", 2, "graph.part.3:2: part 2 is not below 2"),
        ("0\n0\n0\n", 2, "graph.part.3:3: more lines than the 2 nodes of the graph"),
        ("0\n", 2, "graph.part.3: it has 1 lines; expected 2, one per node"),
        ("0\n2\n0\n", 3, "graph.part.3: part 1 is empty, but part 2 is not"),
        ("", 2, "graph.part.3: it has 0 lines"),
    ];
    for (text, nodes, expected) in cases {
        let found = read_text(dir.path(), text, nodes).unwrap_err().to_string();
        assert!(found.contains(expected), "{found}\n{expected}");
    }
    let long = read_text(dir.path(), vec![b'1'; 1 << 20], 2).unwrap_err().to_string();
    assert!(long.contains(": expected a part number") && long.len() < 300, "{long}");
    let bytes = read_text(dir.path(), [0xff, 0xfe, b'\n'], 1).unwrap_err().to_string();
    assert!(bytes.contains(": expected a part number"), "{bytes}");
    let absent = read(dir.path().join("absent"), 1).unwrap_err().to_string();
    assert!(absent.contains("cannot open") && absent.contains("absent"), "{absent}");
    let nowhere = write(dir.path().join("no/such"), &Partition { of: vec![0], parts: 1 });
    assert!(nowhere.unwrap_err().to_string().contains("cannot write"));
}
