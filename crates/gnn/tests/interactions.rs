//! Readers of user–item graphs: both layouts, and what is wrong with them in one line.

use std::fs;
use std::path::Path;

use hither_gnn::load::{self, Options};
use hither_gnn::{Dataset, Error};
use proptest::prelude::*;
use tempfile::TempDir;

fn folder(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().expect("a directory");
    for (name, text) in files {
        fs::write(dir.path().join(name), text).expect("written");
    }
    dir
}

fn open(path: &Path) -> Result<Dataset, Error> {
    load::open(path, &Options::default())
}

fn refused(files: &[(&str, &str)]) -> String {
    let dir = folder(files);
    let error = open(dir.path()).expect_err("refused").to_string();
    error.replace(&dir.path().display().to_string(), "DIR")
}

#[test]
fn lists_of_items_by_user_are_read() {
    let dir = folder(&[("train.txt", "0 0 2 1\n1 2\n2\n"), ("test.txt", "0 3\n1 0 0\n\n")]);
    let data = open(dir.path()).expect("read");
    let links = data.links.as_ref().expect("links");
    assert_eq!((links.users, data.graph.nodes(), data.graph.edges()), (Some(3), 7, 4));
    assert_eq!(data.graph.neighbours(0), [3, 4, 5]);
    assert_eq!(links.test.iter().collect::<Vec<_>>(), [(0, &[6][..]), (1, &[3][..])]);
    // Users and items are numbered apart.
    assert_eq!((data.node_name(1), data.node_name(5)), ("1".into(), "2".into()));
}

#[test]
fn tables_of_interactions_are_read_by_name() {
    let table = "when,user,item\n1,ann,cup\n2,bob,pot\n3,ann,pot\n3,ann,pot\n";
    let dir = folder(&[("sales.csv", table)]);
    let data = open(&dir.path().join("sales.csv")).expect("read");
    let links = data.links.as_ref().expect("links");
    assert_eq!((links.users, data.graph.nodes(), data.graph.edges()), (Some(2), 4, 3));
    assert_eq!((data.node_name(0), data.node_name(3)), ("ann".into(), "pot".into()));
    assert_eq!(data.graph.listed().repeated, 1);
    assert!(data.notes[0].contains("only the columns of users and items"), "{:?}", data.notes);
    let both = folder(&[
        ("train.csv", "user_id,item_id\nann,cup\nbob,pot\n"),
        ("test.csv", "item_id,user_id\npot,ann\ncup,ann\n"),
    ]);
    let data = open(both.path()).expect("read");
    let links = data.links.as_ref().expect("links");
    assert_eq!(links.test.iter().collect::<Vec<_>>(), [(0, &[3][..])]);
    assert!(data.notes[0].contains("1 test interactions"), "{:?}", data.notes);
}

#[test]
fn wrong_interactions_end_in_one_line() {
    let test = ("test.txt", "0 1\n");
    let cases = [
        (refused(&[("train.txt", "0 1\n1 x\n"), test]), "DIR/train.txt:2: `x`: expected"),
        (refused(&[("train.txt", "0 1\n-1 2\n"), test]), "DIR/train.txt:2: `-1`: expected"),
        (refused(&[("train.txt", "0\n"), ("test.txt", "")]), "DIR/train.txt: it holds no"),
        (refused(&[("train.txt", "0 900000000\n"), test]), "the largest item number is 900000000"),
        (refused(&[("train.txt", "0 99999999999\n"), test]), "DIR/train.txt:1: `99999999999`"),
        (refused(&[("interactions.csv", "user,item\nann\n")]), "interactions.csv:2: the item is"),
        (refused(&[("interactions.csv", "user,item\n,cup\n")]), "interactions.csv:2: the user is"),
        (refused(&[("interactions.csv", "user,item\n")]), "it holds no interactions"),
    ];
    for (said, expected) in cases {
        assert!(said.contains(expected) && !said.contains('\n'), "{said}\nexpected: {expected}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(train in any::<Vec<u8>>(), table in "[a-z0-9,\" \n]{0,60}") {
        let dir = TempDir::new().expect("a directory");
        fs::write(dir.path().join("train.txt"), &train).expect("written");
        fs::write(dir.path().join("test.txt"), &train).expect("written");
        let _ = open(dir.path());
        let file = dir.path().join("sales.csv");
        fs::write(&file, format!("user,item\n{table}")).expect("written");
        let _ = open(&file);
    }
}
