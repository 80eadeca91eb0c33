//! What stands for "no label" and what is refused as classes, in tables and in other layouts.

use std::fs;
use std::path::Path;

use hither_gnn::dataset::UNLABELLED;
use hither_gnn::load::{self, Lacks, Options};
use hither_gnn::{Dataset, Error, Labels};
use tempfile::TempDir;

/// A ring of nodes with these lines of `labels.csv`.
fn ring(labels: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = labels.len();
    let lines = |line: &dyn Fn(usize) -> String| (0..nodes).map(line).collect::<String>();
    write(dir.path(), "edges.csv", lines(&|node| format!("{node},{}\n", (node + 1) % nodes)));
    write(dir.path(), "features.csv", lines(&|node| format!("{node},1\n")));
    write(dir.path(), "labels.csv", lines(&|node| format!("{}\n", labels[node])));
    dir
}

fn write(dir: &Path, name: &str, content: impl AsRef<[u8]>) {
    fs::write(dir.join(name), content).expect("written");
}

fn open(labels: &[&str]) -> Result<Dataset, Error> {
    load::open(ring(labels).path(), &Options::default())
}

fn refused(labels: &[&str]) -> String {
    open(labels).expect_err("an error").to_string()
}

fn classes(dataset: &Dataset) -> Vec<Option<String>> {
    let Labels::Classes { of, .. } = &dataset.labels else { panic!("tasks") };
    let name =
        |class: &u32| (*class != UNLABELLED).then(|| dataset.class_name(*class).into_owned());
    of.iter().map(name).collect()
}

#[test]
fn minus_one_nan_na_and_empty_fields_are_no_labels() {
    for none in ["-1", "nan", "NaN", "NA", "\"\"", "-1.0", "-100", ""] {
        let labels = ["0", "1", none, "2", "0", "1", "2", "0", "1", "2"];
        let dataset = open(&labels).unwrap_or_else(|error| panic!("{none:?}: {error}"));
        let expected: Vec<Option<String>> = labels
            .iter()
            .enumerate()
            .map(|(at, label)| (at != 2).then(|| (*label).to_owned()))
            .collect();
        assert_eq!(classes(&dataset), expected, "{none:?}");
        assert_eq!((dataset.labels.count(), dataset.labels.unlabelled()), (3, 1), "{none:?}");
        assert!(dataset.class_names.is_none(), "classes are called by their numbers");
    }
}

#[test]
fn minus_one_beside_names_is_no_label() {
    for none in ["-1", "nan", "NA", "\"\""] {
        let dataset = open(&["cat", none, "dog", "cat", "dog", "cat"]).expect(none);
        assert_eq!((dataset.labels.count(), dataset.labels.unlabelled()), (2, 1), "{none:?}");
    }
}

#[test]
fn labels_without_a_list_of_nodes_are_noted() {
    let dir = ring(&["0", "1", "0", "1"]);
    fs::remove_file(dir.path().join("features.csv")).expect("removed");
    let options = Options { lacks: Lacks::Features, ..Options::default() };
    let dataset = load::open(dir.path(), &options).expect("a graph");
    assert!(dataset.notes.iter().any(|note| note.contains("labels.csv is not read")));
}

#[test]
fn classes_keep_their_numbers_and_names() {
    // Programs that know no missing integers write fractions.
    for (labels, names) in [
        (["10", "30", "10", "30", "20", "20"], ["10", "20", "30"]),
        (["10.0", "30.0", "10.0", "30.0", "20.0", "20.0"], ["10", "20", "30"]),
        (["cat", "fox", "cat", "fox", "dog", "dog"], ["cat", "dog", "fox"]),
    ] {
        let dataset = open(&labels).expect("classes");
        let found = dataset.class_names.as_ref().expect("names").iter().collect::<Vec<_>>();
        assert_eq!(found, names);
        let Labels::Classes { of, .. } = &dataset.labels else { panic!("tasks") };
        assert_eq!(of[..], [0, 2, 0, 2, 1, 1]);
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ring.graph.safetensors");
        load::write(&dataset, &path).expect("written");
        let again = load::open(&path, &Options::default()).expect("read");
        assert_eq!(classes(&again), classes(&dataset));
    }
}

#[test]
fn labels_that_are_no_classes_are_refused_with_a_hint() {
    let mixed = refused(&["0", "1", "x", "1", "0"]);
    assert!(
        mixed.contains("labels.csv:3: label \"x\" is not an integer, but others are; use -1 for"),
        "{mixed}"
    );
    let real = refused(&["0.5", "1.25", "3", "1", "0"]);
    assert!(real.contains("labels.csv:1: label \"0.5\" is a real number, not a class"), "{real}");
    let negative = refused(&["-2", "-1", "0", "1", "2"]);
    assert!(negative.contains("labels.csv: it has the labels -2 and -1"), "{negative}");
    let single = refused(&["-1", "1", "-1", "1", "1"]);
    assert!(single.contains("all 3 labelled nodes have the class 1"), "{single}");
    let none = refused(&["-1", "-1", "NA", "-1", "nan"]);
    assert!(none.contains("no node has a label"), "{none}");
    let ids: Vec<String> = (0..300).map(|id| format!("user-{id}")).collect();
    let ids = refused(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(ids.contains("300 classes for 300 labelled nodes"), "{ids}");
    assert!(ids.contains("are these ids, or a regression target?"), "{ids}");
}

#[test]
fn a_short_list_of_labels_is_refused() {
    let dir = ring(&["0", "1", "0", "1", "0", "1"]);
    write(dir.path(), "labels.csv", "label\n0\n1\n0\n");
    let found = load::open(dir.path(), &Options::default()).expect_err("short").to_string();
    assert!(found.contains("labels.csv: it has 3 rows; expected 6, one per node"), "{found}");
}

#[test]
fn a_node_of_the_split_without_a_label_is_named() {
    let dir = ring(&["0", "1", "-1", "1", "0", "1"]);
    write(dir.path(), "split.csv", "0,train\n2,train\n3,valid\n4,test\n");
    let found = load::open(dir.path(), &Options::default()).expect_err("unlabelled").to_string();
    assert!(found.contains("node 2 is in the training set but has no label"), "{found}");
}

/// An array of fp32 as `numpy.save` writes it.
fn npy(shape: [usize; 2], values: &[f32]) -> Vec<u8> {
    let [rows, columns] = shape;
    let header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

#[test]
fn a_feature_that_is_no_number_is_named_by_row_and_column() {
    let dir = ring(&["0", "1", "0", "1", "0", "1"]);
    let mut values = vec![1.0; 6 * 4];
    values[4 * 4 + 3] = f32::NAN;
    write(dir.path(), "features.npy", npy([6, 4], &values));
    let found = load::open(dir.path(), &Options::default()).expect_err("NaN").to_string();
    assert!(found.contains("`features` has NaN at row 4, column 3; expected a finite"), "{found}");
}
