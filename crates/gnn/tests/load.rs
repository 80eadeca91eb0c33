//! One small graph in every layout, made by the programs that own the layouts
//! (tests/data/make.py), or written here where they are plain text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use hither_data::Dtype;
use hither_data::safetensors::{Entry, Writer};
use hither_gnn::dataset::UNLABELLED;
use hither_gnn::load::{self, Format, Lacks, Options};
use hither_gnn::{Dataset, Error, Features, Labels, Metric, Split};
use proptest::prelude::*;
use tempfile::TempDir;

const NODES: u32 = 12;
const EDGES: [(u32, u32); 10] =
    [(0, 1), (0, 3), (1, 2), (2, 11), (3, 8), (4, 5), (4, 7), (5, 6), (8, 9), (9, 11)];
const LABELS: [u32; 12] = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, UNLABELLED, 1];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn feature(node: u32, column: u32) -> f32 {
    match column {
        _ if node == 10 => 0.0,
        column if column == node % 4 => 1.0,
        column if column == (node + 1) % 4 => 0.5 * node as f32,
        _ => 0.0,
    }
}

fn split() -> Split {
    Split { train: vec![0, 1, 2], valid: vec![3, 4, 5, 6, 7], test: vec![8, 9, 11] }
}

fn edges(dataset: &Dataset) -> Vec<(u32, u32)> {
    let graph = &dataset.graph;
    let all = (0..graph.nodes() as u32)
        .flat_map(|u| graph.neighbours(u).iter().map(move |v| (u, *v)))
        .filter(|(u, v)| u < v);
    all.collect()
}

/// All features in full.
fn values(dataset: &Dataset) -> Vec<f32> {
    match &dataset.features {
        Features::Dense { values, .. } => values.to_vec(),
        Features::Sparse { offsets, indices, values, dim } => {
            let mut full = vec![0.0; dataset.graph.nodes() * dim];
            for row in 0..dataset.graph.nodes() {
                for at in offsets[row] as usize..offsets[row + 1] as usize {
                    let value = values.as_ref().map_or(1.0, |values| values[at]);
                    full[row * dim + indices[at] as usize] = value;
                }
            }
            full
        }
    }
}

fn open(path: &Path, options: &Options) -> Dataset {
    load::open(path, options).unwrap_or_else(|error| panic!("{error}"))
}

fn check_graph_and_features(dataset: &Dataset) {
    assert_eq!(dataset.graph.nodes(), NODES as usize);
    assert_eq!(edges(dataset), EDGES);
    let expected: Vec<f32> =
        (0..NODES).flat_map(|node| (0..4).map(move |column| feature(node, column))).collect();
    assert_eq!(values(dataset), expected);
}

fn check_classes(dataset: &Dataset) {
    let Labels::Classes { of, count } = &dataset.labels else { panic!("tasks") };
    assert_eq!((&of[..], *count), (&LABELS[..], 3));
    assert_eq!(dataset.metric, Metric::Accuracy);
}

#[test]
fn layouts_with_a_split() {
    for (name, called, split_index) in [
        ("ogb", "ogb", 0),
        ("ogb-binary", "ogb-binary", 0),
        ("ogb-saver", "ogb-saver", 1),
        ("planetoid-2", "tiny", 0),
        ("planetoid-4", "tiny", 0),
        ("planetoid-5", "tiny", 0),
        ("saint", "saint", 0),
        ("masks.npz", "masks", 1),
        ("pyg", "pyg", 1),
        ("pyg/object.pt", "object", 1),
        ("pyg/collated.pt", "collated", 1),
        ("pyg/lists.npz", "lists", 0),
    ] {
        let options = Options { split_index, ..Options::default() };
        let dataset = open(&fixture(name), &options);
        check_graph_and_features(&dataset);
        check_classes(&dataset);
        assert_eq!((&*dataset.name, &dataset.split), (called, &split()), "{name}");
    }
}

#[test]
fn layouts_without_a_split_draw_one_of_the_nodes_with_a_class() {
    for name in ["shchur.npz", "shchur-dense.npz", "pyg/no-split.npz"] {
        let dataset = open(&fixture(name), &Options::default());
        check_graph_and_features(&dataset);
        check_classes(&dataset);
        let Split { train, valid, test } = &dataset.split;
        assert_eq!([train.len(), valid.len(), test.len()], [6, 2, 3]);
        assert!([train, valid, test].iter().all(|set| !set.contains(&10)));
    }
}

#[test]
fn a_split_is_drawn_on_demand() {
    let draw = |split_seed| {
        let options = Options { split_drawn: true, split_seed, ..Options::default() };
        open(&fixture("ogb"), &options).split
    };
    assert_eq!(draw(3).train.len(), 6);
    assert_eq!(draw(3), draw(3));
    assert_ne!(draw(3), draw(4));
}

#[test]
fn a_drawn_split_needs_no_split_in_the_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ogb");
    copy(&fixture("ogb"), &path);
    fs::remove_dir_all(path.join("split")).expect("removed");
    assert!(error(&path).contains("--draw-split"), "{}", error(&path));
    let options = Options { split_drawn: true, ..Options::default() };
    assert_eq!(open(&path, &options).split.train.len(), 6);
}

#[test]
fn a_split_that_is_not_there_is_refused() {
    let refused = |name: &str, split_index, expected: &str| {
        let options = Options { split_index, ..Options::default() };
        let found = load::open(&fixture(name), &options).expect_err("no such split").to_string();
        assert!(found.contains(expected), "{found}");
    };
    refused("ogb", 5, "has one split, number 0; there is no split 5");
    refused("ogb-saver", 2, "has splits 0 to 1; there is no split 2");
    refused("masks.npz", 2, "`train_masks` has splits 0 to 1; there is no split 2");
    refused("pyg", 2, "`train_mask` has splits 0 to 1; there is no split 2");
    refused("pyg/lists.npz", 1, "has one split, number 0; there is no split 1");
    refused("pyg/no-split.npz", 1, "it holds no split; there is no split 1");
    refused("shchur.npz", 1, "there is no split 1: its layout has no numbered splits");
}

#[test]
fn edge_attributes_are_noted_as_unused() {
    let dataset =
        open(&fixture("pyg/object.pt"), &Options { split_index: 1, ..Options::default() });
    assert_eq!(dataset.notes, ["`edge_attr` is not used: edges have no features"]);
}

#[test]
fn several_tasks() {
    for (name, metric) in [("ogb-proteins", Metric::RocAuc), ("saint-tasks", Metric::F1Micro)] {
        let dataset = open(&fixture(name), &Options::default());
        assert_eq!(edges(&dataset), EDGES, "{name}");
        let Labels::Tasks { of, count: 2 } = &dataset.labels else { panic!("classes") };
        let expected: Vec<u8> = (0..12).flat_map(|node| [node % 2, u8::from(node < 6)]).collect();
        assert_eq!(of[..], expected);
        assert_eq!((dataset.metric, dataset.split), (metric, split()));
    }
}

#[test]
fn where_only_edges_have_features_nodes_have_their_mean() {
    let dataset = open(&fixture("ogb-proteins"), &Options::default());
    let values = values(&dataset);
    // Node 0 is an end of the edges 0, 1 and 4; node 2 of 2 (twice), 3 and 11; node 10 of none.
    assert_eq!(values[..2], [5.0 / 3.0, 2.5 / 3.0]);
    assert_eq!(values[4..6], [18.0 / 4.0, 9.0 / 4.0]);
    assert_eq!(values[20..22], [0.0, 0.0]);
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, content) in files {
        fs::write(dir.path().join(name), content).expect("written");
    }
    dir
}

fn lines(rows: impl Iterator<Item = String>) -> String {
    rows.map(|row| row + "\n").collect()
}

fn edge_lines() -> String {
    lines(EDGES.iter().map(|(u, v)| format!("{v},{u}")))
}

fn feature_lines(row: impl Fn(u32) -> String) -> String {
    lines((0..NODES).map(|node| {
        let values: Vec<String> = (0..4).map(|column| feature(node, column).to_string()).collect();
        row(node) + &values.join(",")
    }))
}

fn label(node: u32) -> String {
    let label = LABELS[node as usize];
    if label == UNLABELLED { String::new() } else { label.to_string() }
}

fn set(node: u32) -> &'static str {
    let split = split();
    let found = [(split.train, "train"), (split.valid, "val"), (split.test, "test")];
    found.into_iter().find(|(set, _)| set.contains(&node)).map_or("none", |(_, name)| name)
}

#[test]
fn tables_by_number() {
    let labels = lines((0..NODES).map(|node| format!("{node},{}", label(node))));
    let sets = lines((0..NODES).map(|node| format!("{node},{}", set(node))));
    let (edges, features) = (edge_lines(), feature_lines(|_| String::new()));
    let dir = folder(&[
        ("edges.csv", &format!("source,target\n{edges}0,0\n0,1\n")),
        ("features.csv", &features),
        ("labels.csv", &format!("node,label\n{labels}")),
        ("split.csv", &sets),
    ]);
    for path in [dir.path().to_path_buf(), dir.path().join("edges.csv")] {
        let dataset = open(&path, &Options::default());
        check_graph_and_features(&dataset);
        check_classes(&dataset);
        assert_eq!(dataset.split, split());
    }
}

#[test]
fn tables_by_name() {
    let name = |node: u32| format!("\"page, {node}\"");
    let nodes = lines((0..NODES).map(|n| format!("{},{},{}", set(n), name(n), label(n))));
    let edges = lines(EDGES.iter().map(|(u, v)| format!("{},{}", name(*u), name(*v))));
    let features = feature_lines(|_| String::new());
    let dir = folder(&[
        ("nodes.csv", &format!("set,id,label\n{nodes}")),
        ("edges.csv", &edges),
        ("features.csv", &format!("a,b,c,d\n{features}")),
    ]);
    let dataset = open(dir.path(), &Options::default());
    check_graph_and_features(&dataset);
    check_classes(&dataset);
    assert_eq!(dataset.split, split());
}

#[test]
fn tables_with_rows_in_any_order_and_classes_by_name() {
    let mut features: Vec<String> =
        feature_lines(|node| format!("{node},")).lines().map(String::from).collect();
    features.reverse();
    let labels = lines((0..NODES).map(|node| match label(node).as_str() {
        "" => "\"\"".into(),
        label => format!("class {label}"),
    }));
    let dir = folder(&[
        ("edges.csv", &edge_lines()),
        ("features.csv", &format!("id,a,b,c,d\n{}", features.join("\n"))),
        ("labels.csv", &format!("label\n{labels}")),
    ]);
    let dataset = open(dir.path(), &Options::default());
    check_graph_and_features(&dataset);
    check_classes(&dataset);
    assert_eq!(dataset.split.train.len(), 6);
}

#[test]
fn musae() {
    let targets = lines((0..NODES).map(|node| format!("{node},\"a, b\",{}", label(node))));
    let bags: Vec<String> =
        (0..NODES).rev().map(|n| format!("\"{n}\": [{}, {}]", (n + 1) % 4, n % 4)).collect();
    let dir = folder(&[
        ("musae_web_edges.csv", &format!("id_1,id_2\n{}", edge_lines())),
        ("musae_web_features.json", &format!("{{{}}}", bags.join(", "))),
        ("musae_web_target.csv", &format!("id,name,page_type\n{targets}")),
    ]);
    let dataset = open(dir.path(), &Options::default());
    check_classes(&dataset);
    assert_eq!(edges(&dataset), EDGES);
    let values = values(&dataset);
    assert_eq!(values[..8], [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
}

#[test]
fn our_own_form_keeps_everything_and_is_mapped() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tiny.graph.safetensors");
    for name in ["ogb", "planetoid-2", "saint-tasks"] {
        let dataset = open(&fixture(name), &Options::default());
        load::write(&dataset, &path).expect("written");
        let again = open(&path, &Options::default());
        assert_eq!(edges(&again), edges(&dataset));
        assert_eq!(values(&again), values(&dataset));
        assert_eq!((&again.name, &again.split), (&dataset.name, &dataset.split));
        assert_eq!(again.metric, dataset.metric);
        assert!(again.node_names.is_none() && again.class_names.is_none());
        match (&again.labels, &dataset.labels) {
            (Labels::Classes { of: a, count }, Labels::Classes { of: b, count: c }) => {
                assert!(a.is_mapped() && a[..] == b[..] && count == c);
            }
            (Labels::Tasks { of: a, count }, Labels::Tasks { of: b, count: c }) => {
                assert!(a.is_mapped() && a[..] == b[..] && count == c);
            }
            _ => panic!("labels changed their kind"),
        }
        let mapped = match &again.features {
            Features::Dense { values, .. } => values.is_mapped(),
            Features::Sparse { indices, .. } => indices.is_mapped(),
        };
        assert!(mapped);
    }
    assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1, "nothing else is left");
}

/// Without features and labels only the ids tell how many nodes there are.
#[test]
fn a_stray_id_does_not_take_all_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("edges.safetensors");
    let open_edges = |ids: [i64; 4]| {
        let entries = [Entry::new("edge_index", Dtype::I64, &[2, 2])];
        let mut out = Writer::packed(&path, &entries, &BTreeMap::new()).expect("a file");
        out.write(&ids.map(i64::to_le_bytes).concat()).expect("written");
        out.finish().expect("written");
        load::open(&path, &Options { lacks: Lacks::Features, ..Options::default() })
    };
    assert_eq!(edges(&open_edges([0, 2, 1, 1]).expect("a graph")), [(0, 1), (1, 2)]);
    let found = open_edges([0, 2, 1, 4_000_000_000]).expect_err("too many").to_string();
    assert!(found.contains("says 4000000001 nodes, too many for 2 edges"), "{found}");
}

fn error(path: &Path) -> String {
    load::open(path, &Options::default()).expect_err("an error").to_string()
}

#[test]
fn errors_name_file_line_and_what_was_expected() {
    let (edges, features) = (edge_lines(), feature_lines(|_| String::new()));
    let labels = "0\n".repeat(12);
    type Case<'a> = (&'a str, &'a str, &'a str);
    let cases: [Case<'_>; 11] = [
        ("edges.csv", "0,1\n1,12\n", "edges.csv:2: `12`: expected a node from 0 to below 12"),
        ("edges.csv", "0,1\n1,12\n", "list nodes with other ids in nodes.csv"),
        ("edges.csv", "0,1\n1,2,0.5\n", "edges.csv:2: 3 columns; expected 2 as before"),
        ("edges.csv", "0,1,2,3,4\n", "edges.csv:1: 5 columns; expected two nodes"),
        ("edges.csv", "0,1\n\n1,x\n", "edges.csv:3: `x`: expected a node"),
        ("features.csv", "1,2\n1,2,3\n", "features.csv:2: 3 features; expected 2"),
        ("features.csv", "1,2\n1,nan\n", "features.csv:2: column 2: `nan`: expected a finite"),
        ("labels.csv", "0,1\n0,2\n", "labels.csv:2: this node has a row already"),
        ("labels.csv", "0,1,2\n", "labels.csv:1: 3 columns; expected 1 or 2"),
        ("labels.csv", "0\n1\n", "labels.csv: it has 2 rows; expected 12, one per node"),
        ("split.csv", "0,trian\n", "split.csv:1: set `trian`; expected train, valid, test or"),
    ];
    for (name, content, expected) in cases {
        let mut files =
            vec![("edges.csv", &*edges), ("features.csv", &features), ("labels.csv", &labels)];
        files.push((name, content));
        let found = error(folder(&files).path());
        assert!(found.contains(expected), "{found}");
    }
    for (path, expected) in [
        (fixture("saint/feats.npy"), "is a NumPy array"),
        (fixture("nothing"), "cannot open"),
        (fixture("saint/adj_full.npz"), "it holds the arrays data, format"),
        (fixture("ogb/raw"), "no graph is found in this folder; expected one of raw/edge.csv.gz"),
        (fixture("pyg/two-graphs.pt"), "it holds several graphs; expected one"),
        (fixture("pyg/no-edges.pt"), "it holds x; expected `edge_index`"),
        (fixture("pyg/regression.npz"), "`y` has the label 0.09090909 at node 1"),
        (fixture("pyg/regression.npz"), "is this a regression target?"),
    ] {
        let found = error(&path);
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn formats_by_name() {
    for format in Format::ALL {
        assert_eq!(format.name().parse::<Format>().expect("known"), format);
    }
    let error = "dgl".parse::<Format>().expect_err("unknown").to_string();
    assert!(error.contains("there are mapped, pyg, ogb"), "{error}");
    let options = Options { format: Some(Format::Masks), ..Options::default() };
    let error = load::open(&fixture("shchur.npz"), &options).expect_err("missing").to_string();
    assert!(error.contains("array `node_features` is missing; there are: adj_data"), "{error}");
}

/// Copies a fixture, with one file of it damaged.
fn damaged(name: &str, file: &str, damage: impl FnOnce(&mut Vec<u8>)) -> Result<Dataset, Error> {
    let dir = tempfile::tempdir().expect("a directory");
    let (from, to) = (fixture(name), dir.path().join(name.replace('/', "-")));
    copy(&from, &to);
    let target = if file.is_empty() { to.clone() } else { to.join(file) };
    let mut bytes = fs::read(&target).expect("read");
    damage(&mut bytes);
    fs::write(&target, bytes).expect("written");
    load::open(&to, &Options::default())
}

fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        fs::copy(from, to).expect("copied");
        return;
    }
    fs::create_dir(to).expect("created");
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("an entry");
        copy(&entry.path(), &to.join(entry.file_name()));
    }
}

const FILES: [(&str, &str); 20] = [
    ("pyg/object.pt", ""),
    ("pyg/collated.pt", ""),
    ("pyg/lists.npz", ""),
    ("pyg/no-split.npz", ""),
    ("ogb-saver", "split/first/split_dict.pt"),
    ("shchur.npz", ""),
    ("shchur-dense.npz", ""),
    ("masks.npz", ""),
    ("ogb", "raw/edge.csv.gz"),
    ("ogb", "raw/node-feat.csv.gz"),
    ("ogb-binary", "raw/data.npz"),
    ("ogb-binary", "raw/node-label.npz"),
    ("planetoid-2", "ind.tiny.allx"),
    ("planetoid-4", "ind.tiny.graph"),
    ("planetoid-5", "ind.tiny.ally"),
    ("planetoid-2", "ind.tiny.test.index"),
    ("saint", "adj_full.npz"),
    ("saint", "feats.npy"),
    ("saint-tasks", "class_map.json"),
    ("saint", "role.json"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_files_are_errors_or_other_graphs(
        file in prop::sample::select(FILES.to_vec()),
        cut in prop::option::weighted(0.3, 0.0..1.0_f64),
        flips in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 0..4),
    ) {
        let result = damaged(file.0, file.1, |bytes| {
            if let Some(cut) = cut {
                bytes.truncate((bytes.len() as f64 * cut) as usize);
            }
            for (at, byte) in &flips {
                let at = (bytes.len() as f64 * at) as usize;
                if let Some(target) = bytes.get_mut(at) {
                    *target = *byte;
                }
            }
        });
        if let Ok(dataset) = result {
            dataset.check().expect("what is read is whole");
        }
    }

    #[test]
    fn damaged_files_of_ours_are_errors_or_other_graphs(
        flips in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 1..4),
        in_header in any::<bool>(),
        tasks in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("tiny.graph.safetensors");
        let name = if tasks { "saint-tasks" } else { "planetoid-2" };
        load::write(&open(&fixture(name), &Options::default()), &path).expect("written");
        let mut bytes = fs::read(&path).expect("read");
        let range = if in_header { 0..1200 } else { 4096..bytes.len() };
        for (at, byte) in flips {
            bytes[range.start + (range.len() as f64 * at) as usize] = byte;
        }
        fs::write(&path, bytes).expect("written");
        if let Ok(dataset) = load::open(&path, &Options::default()) {
            dataset.check().expect("what is read is whole");
        }
    }
}
