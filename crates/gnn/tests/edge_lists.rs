//! Lists of edges as people have them: separators, comments, weights, names, and nothing else.

use std::fs;
use std::path::Path;

use hither_gnn::graph::Listed;
use hither_gnn::load::{self, Lacks, Options};
use hither_gnn::{Dataset, Graph};
use tempfile::TempDir;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, content) in files {
        fs::write(dir.path().join(name), content).expect("written");
    }
    dir
}

fn open(path: &Path) -> Dataset {
    load::open(path, &Options::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn open_graph(path: &Path) -> Dataset {
    let options = Options { lacks: Lacks::Features, ..Options::default() };
    load::open(path, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn edges(graph: &Graph) -> Vec<(u32, u32)> {
    let all = (0..graph.nodes() as u32)
        .flat_map(|u| graph.neighbours(u).iter().map(move |v| (u, *v)))
        .filter(|(u, v)| u < v);
    all.collect()
}

const FEATURES: (&str, &str) = ("features.csv", "1,0\n0,1\n1,1\n0,0\n2,0\n0,2\n");
const LABELS: (&str, &str) = ("labels.csv", "a\nb\na\nb\na\nb\n");
const RING: [(u32, u32); 5] = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)];

/// Weights stand at both ends of an edge, go with it into parts and into our own layout, and are refused where they
/// make no sense.
#[test]
fn weights_are_read_if_they_are_asked_for() {
    let open_weighted = |content: &str| {
        let dir = folder(&[("edges.csv", content), FEATURES, LABELS]);
        load::open(dir.path(), &Options { edge_weights: true, ..Options::default() })
    };
    let list = "source,target,weight\n0,1,2\n1,2,0.5\n2,1,0.5\n2,3,3\n3,3,9\n3,4,2\n4,5,1\n";
    let dataset = open_weighted(list).unwrap_or_else(|error| panic!("{error}"));
    let of = |graph: &Graph, node: u32| graph.weights_of(node).expect("weights").to_vec();
    assert_eq!(edges(&dataset.graph), RING);
    assert_eq!((of(&dataset.graph, 1), of(&dataset.graph, 2)), (vec![2.0, 0.5], vec![0.5, 3.0]));
    assert_eq!(dataset.graph.roots()[1], 1.0 / 3.5_f32.sqrt());
    let part = dataset.graph.induced(&[3, 1, 2], &mut [u32::MAX; 6]);
    assert_eq!((of(&part, 0), of(&part, 2)), (vec![3.0], vec![3.0, 0.5]));
    let dir = folder(&[]);
    let path = dir.path().join("w.graph.safetensors");
    load::write(&dataset, &path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(open(&path).graph.weights(), dataset.graph.weights());
    for (content, problem) in [
        ("0,1\n1,2\n", "2 columns; --edge-weights needs a third one with the weights"),
        ("0,1,2\n1,2,-1\n", "weight `-1`: expected a number above 0"),
        ("0,1,2\n1,0,3\n", "the edge of nodes 1 and 0 has the weights 2 and 3"),
    ] {
        let error = open_weighted(content).expect_err(content).to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn separators_comments_and_weights() {
    let weight = "column 3 of edges.csv is not used; --edge-weights reads it as weights";
    let columns =
        "columns 3 to 4 of edges.csv are not used; --edge-weights reads column 3 as weights";
    for (content, note) in [
        ("0,1\n1,2\n2,3\n3,4\n4,5\n", None),
        ("# Directed graph\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t3\n3\t4\n4\t5\n", None),
        ("% sym unweighted\n% 5 6 6\n0 1\n1   2\n2 3\n3 4\n4 5\n", None),
        ("0 1 0.5\n1 2 1e3\n2 3 -1\n3 4 7\n4 5 1\n", Some(weight)),
        ("source,target,weight\n0,1,2\n1,2,2\n2,3,2\n3,4,2\n4,5,1\n", Some(weight)),
        ("0\t1\t1\t99\n1\t2\t1\t9\n2\t3\t1\t9\n3\t4\t1\t9\n4\t5\t1\t9\r\n", Some(columns)),
    ] {
        let dir = folder(&[("edges.csv", content), FEATURES, LABELS]);
        let dataset = open(dir.path());
        assert_eq!(edges(&dataset.graph), RING, "{content}");
        let drawn =
            "the split is drawn by seed 0: 60 % training, 20 % validation and 20 % test nodes";
        let expected: Vec<&str> = note.into_iter().chain([drawn]).collect();
        assert_eq!(dataset.notes, expected, "{content}");
    }
}

#[test]
fn edges_may_have_any_name_of_a_table() {
    let ring = "0 1\n1 2\n2 3\n3 4\n4 5\n";
    for name in ["edges.txt", "edges.tsv"] {
        let dir = folder(&[(name, ring), FEATURES, LABELS]);
        assert_eq!(edges(&open(dir.path()).graph), RING);
    }
    let dir = folder(&[("soc-ring.edgelist", ring), FEATURES, LABELS]);
    assert_eq!(edges(&open(&dir.path().join("soc-ring.edgelist")).graph), RING);
    let market = "%%MatrixMarket matrix coordinate\n6 6 5\n";
    let dir = folder(&[("edges.txt", market), FEATURES, LABELS]);
    let found = load::open(dir.path(), &Options::default()).expect_err("no list").to_string();
    assert!(found.contains("Matrix Market files are not read"), "{found}");
}

/// Names that the features give, without a list of nodes.
#[test]
fn features_name_the_nodes() {
    let features = "id,a,b\nzoe,1,0\nbob,0,1\n\"Smith, J\",1,1\n#4,0,0\n5,2,0\nann,0,2\n";
    let edges_csv = "bob,zoe\nbob,\"Smith, J\"\n\"Smith, J\",#4\n#4,5\nann,5\n";
    let labels = "ann,b\nbob,b\nzoe,a\n#4,b\n5,a\n\"Smith, J\",a\n";
    let dir =
        folder(&[("edges.csv", edges_csv), ("features.csv", features), ("labels.csv", labels)]);
    let dataset = open(dir.path());
    assert_eq!(edges(&dataset.graph), RING);
    let names = ["zoe", "bob", "Smith, J", "#4", "5", "ann"];
    assert_eq!((0..6).map(|node| dataset.node_name(node)).collect::<Vec<_>>(), names);
    let path = dir.path().join("named.graph.safetensors");
    load::write(&dataset, &path).expect("written");
    let again = open(&path);
    assert_eq!((0..6).map(|node| again.node_name(node)).collect::<Vec<_>>(), names);
    for (first, is_fine) in [("node,kind\n", true), ("who,label\n", true), ("zoo,a\n", false)] {
        let labels = format!("{first}{labels}");
        let dir = folder(&[
            ("edges.csv", edges_csv),
            ("features.csv", features),
            ("labels.csv", &labels),
        ]);
        let found = load::open(dir.path(), &Options::default());
        assert_eq!(found.is_ok(), is_fine, "{first}");
    }
    // A node that no row names is an error, in the first line too.
    let dir = folder(&[
        ("edges.csv", "bbo,zoe\nbob,zoe\n"),
        ("features.csv", features),
        ("labels.csv", labels),
    ]);
    let found = load::open(dir.path(), &Options::default()).expect_err("unknown").to_string();
    assert!(
        found.contains("edges.csv:1: `bbo`: expected a node that features.csv lists"),
        "{found}"
    );
}

#[test]
fn a_lone_list_of_edges_is_a_graph_but_no_dataset() {
    let dir = folder(&[("soc.txt", "# a comment\n3\t1\n1\t3\n0\t5\n")]);
    let path = dir.path().join("soc.txt");
    let found = load::open(&path, &Options::default()).expect_err("no features").to_string();
    assert!(
        found.contains("soc.txt: features.csv (or features.npy) is missing beside it"),
        "{found}"
    );
    let graph = open_graph(&path);
    assert_eq!(graph.graph.nodes(), 6, "integers are the nodes' numbers");
    assert_eq!(edges(&graph.graph), [(0, 5), (1, 3)]);
    assert!(graph.node_names.is_none());
    fs::write(&path, "who,whom\n3,1\n0,5\n").expect("written");
    assert_eq!(edges(&open_graph(&path).graph), [(0, 5), (1, 3)], "two words head the columns");
    // Other names are numbered as they appear, and so are integers with many gaps.
    for (content, names) in [
        ("source target\nbob ann\nann eve\n", ["bob", "ann", "eve"]),
        ("900 7\n7 123456789\n", ["900", "7", "123456789"]),
    ] {
        fs::write(&path, content).expect("written");
        let graph = open_graph(&path);
        assert_eq!(edges(&graph.graph), [(0, 1), (1, 2)]);
        assert_eq!((0..3).map(|node| graph.node_name(node)).collect::<Vec<_>>(), names);
    }
}

#[test]
fn what_is_dropped_of_a_list_is_counted() {
    let list = [(0, 1), (1, 0), (1, 2), (1, 2), (2, 2), (3, 2), (3, 2), (2, 3), (2, 3)];
    let graph = Graph::from_edges(4, &list).expect("a graph");
    assert_eq!(edges(&graph), [(0, 1), (1, 2), (2, 3)]);
    let expected = Listed { pairs: 9, self_loops: 1, repeated: 3, reciprocal: 2 };
    assert_eq!(*graph.listed(), expected);
}
