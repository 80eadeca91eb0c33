//! `hither predict`: a trained model on the same and on another graph.

use std::fs;
use std::path::Path;

use crate::bad_inputs::refused;
use crate::dataset::named_tables;
use crate::train::Place;
use crate::{PathStr, stdout_of};

/// A graph whose nodes and classes have names, and a run on it.
fn trained(place: &Place) -> (String, String) {
    let (graph, run) = (named_tables(place), place.path("run").str().to_owned());
    stdout_of(&["train", &graph, "--rounds", "3", "--parts", "2", "-o", &run]);
    (graph, run)
}

#[test]
fn predictions_are_those_of_training() {
    let place = Place::new();
    let (graph, run) = trained(&place);
    let written = fs::read_to_string(Path::new(&run).join("predictions.csv")).expect("written");
    let said = stdout_of(&["predict", &run, &graph]);
    assert_eq!(said.lines().count(), written.lines().count());
    for (said, written) in said.lines().zip(written.lines()) {
        assert!(written.starts_with(&format!("{said},")), "{said}\n{written}");
    }
    // Some nodes by name, in the order of the list.
    let list = place.path("list");
    fs::write(&list, "# two\ndee\n\nbob\n").expect("written");
    let some = stdout_of(&["predict", &run, &graph, "--nodes", list.str(), "--batch", "1"]);
    let line = |start: &str| said.lines().find(|line| line.starts_with(start)).expect("a line");
    assert_eq!(some.lines().collect::<Vec<_>>(), [line("node,"), line("dee,"), line("bob,")]);
}

#[test]
fn a_graph_without_labels_gets_the_classes_of_the_model() {
    let place = Place::new();
    let (graph, run) = trained(&place);
    let labelled = stdout_of(&["predict", &run, &graph]);
    fs::remove_file(Path::new(&graph).join("labels.csv")).expect("removed");
    let without = stdout_of(&["predict", &run, &graph]);
    assert_eq!(without.lines().count(), 13);
    for (without, labelled) in without.lines().zip(labelled.lines()).skip(1) {
        assert!(without.ends_with(',') && labelled.starts_with(without), "{without}\n{labelled}");
    }
    // Tensors have a row per node.
    for (file, shape) in [("outputs.npy", "(12, 2,"), ("outputs.safetensors", "[12,2]")] {
        let path = place.path(file);
        stdout_of(&["predict", &run, &graph, "-o", path.str()]);
        let bytes = fs::read(&path).expect("written");
        assert!(String::from_utf8_lossy(&bytes).contains(shape), "{file}");
        refused(&["predict", &run, &graph, "-o", path.str()], "--force");
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let place = Place::new();
    let (graph, run) = trained(&place);
    let other = place.graph();
    refused(&["predict", &run, &other], "has 12 features per node, but");
    refused(&["predict", &graph, &graph], "model.safetensors");
    refused(&["predict", &other, &graph], "only models of `hither train` do");
    refused(&["predict", &run, &graph, "-o", "x.jsonl"], "expected .csv, .npy or .safetensors");
    let list = place.path("list");
    fs::write(&list, "nobody\n").expect("written");
    refused(
        &["predict", &run, &graph, "--nodes", list.str()],
        "line 1: pages has no node `nobody`",
    );
    fs::write(&list, "# none\n").expect("written");
    refused(&["predict", &run, &graph, "--nodes", list.str()], "lists no nodes");
}
