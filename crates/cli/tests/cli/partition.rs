//! `hither partition`: what it writes and tells.

use std::fs;
use std::path::Path;

use crate::bad_inputs::refused;
use crate::train::{Place, json, read};
use crate::{PathStr, json_of, stdout_of};

#[test]
fn parts_are_written_and_told() {
    let place = Place::new();
    let path = place.path("parts");
    let words = ["partition", &place.graph(), "--parts", "4", "-o", path.str(), "--json"];
    let cuts = json_of(&words);
    let text = fs::read_to_string(&path).expect("the parts");
    let parts: Vec<usize> = text.lines().map(|line| line.parse().expect("a part")).collect();
    assert_eq!(parts.len(), 400);
    for part in 0..4 {
        let nodes = parts.iter().filter(|of| **of == part).count();
        assert_eq!(cuts[0]["parts"][part]["nodes"], nodes);
    }
    assert!(cuts[0]["cut-share"].as_f64() < Some(0.75));
    assert!(cuts[0]["train"]["imbalance"].as_f64() <= Some(62.0 / 60.0));
    stdout_of(&["partition", "--balance-train=no", &place.graph()]);
    stdout_of(&["partition", "--balance-train", &place.graph()]);
    let table = stdout_of(&["partition", &place.graph(), "--parts", "4"]);
    assert!(table.contains("metis") && table.contains("boundary nodes"), "{table}");
}

/// Training on the folder gives the same model and the same outputs, in the order of the dataset.
#[test]
fn a_graph_written_by_part_trains_the_same() {
    let place = Place::new();
    let graph = place.graph();
    let dir = place.path("by-part");
    let words = ["partition", &graph, "--parts", "3", "--write", dir.str()];
    stdout_of(&words);
    refused(&words, "--force");
    stdout_of(&[&words[..], &["--force"]].concat());
    let mut names: Vec<_> = fs::read_dir(&dir).expect("the folder").flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    let names: Vec<_> = names.iter().map(fs::DirEntry::file_name).collect();
    assert_eq!(names, ["parts.safetensors", "whole.graph.safetensors"]);

    let (one, other) = (place.path("one"), place.path("other"));
    // Batches that reach less than half of the nodes, so that no sum runs over all of them.
    let small = "--rounds 3 --local-steps 3 --batch 32 --hidden 8 --fanout 5,3 \
                 --server-steps 2 --server-batch 16 --server-fanout 3";
    let train = |data: &str, out: &str, more: &[&str]| {
        let words: Vec<&str> =
            ["train", data, "-o", out].into_iter().chain(small.split(' ')).collect();
        stdout_of(&[&words[..], more].concat());
    };
    train(&graph, one.str(), &["--parts", "3", "--partition", "metis"]);
    train(dir.str(), other.str(), &[]);
    for file in ["model.safetensors", "predictions.csv", "embeddings.safetensors"] {
        assert!(read(one.join(file)) == read(other.join(file)), "{file} differs");
    }
    let header = |out: &Path| json(out.join("summary.json"))["runs"][0]["header"].clone();
    assert_eq!(header(&one), header(&other));

    let dir = dir.str();
    refused(&["train", dir, "--parts", "4"], "has 3 parts, but --parts is 4");
    refused(&["train", dir, "--partition", "ldg"], "is already partitioned");
    refused(&["train", dir, "--draw-split"], "its parts go with the split");
    let info = stdout_of(&["dataset", "info", dir]);
    assert!(info.contains("400"), "{info}");
    // Part numbers are in the order of the dataset, whatever the order of the folder.
    let parts = place.path("parts");
    stdout_of(&["partition", dir, "--method", "label", "--parts", "2", "-o", parts.str()]);
    let again = json_of(&["train", &graph, "--partition-file", parts.str(), "--dry-run", "--json"]);
    assert!(again[0]["cut_share"].as_f64() > Some(0.0));
}

#[test]
fn methods_are_compared() {
    let place = Place::new();
    let cuts = json_of(&["partition", &place.graph(), "--method", "all", "--json"]);
    let cuts = cuts.as_array().expect("one a method");
    let share = |name: &str| {
        let cut = cuts.iter().find(|cut| cut["method"] == name).expect(name);
        cut["cut-share"].as_f64().expect("a share")
    };
    assert!(share("metis") < share("random") && share("ldg") < share("random"));
    assert!(share("metis-even") < share("random"));
    assert_eq!(cuts.len(), 7);
}

#[test]
fn flags_that_make_no_sense() {
    let place = Place::new();
    let graph = place.graph();
    let cases: [(&[&str], &str); 10] = [
        (&["--parts", "0"], "--parts"),
        (&["--parts", "401"], "at most one part per node"),
        (&["--method", "best"], "fennel"),
        (&["--imbalance", "0.5"], "--imbalance"),
        (&["--imbalance", "nan"], "--imbalance"),
        (&["--balance-train=maybe"], "yes or no"),
        (&["--method", "all", "-o", "x"], "--method all only compares"),
        (&["--method", "all", "--write", "x"], "--method all only compares"),
        (&["-o", "no/where/parts"], "no/where/parts"),
        (&["--seed", "-1"], "--seed"),
    ];
    for (more, told) in cases {
        refused(&[&["partition", &graph], more].concat(), told);
    }
    refused(&["partition"], "DATASET");
}
