//! `hither partition`: what it writes and tells.

use std::fs;

use crate::bad_inputs::refused;
use crate::train::Place;
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
    assert_eq!(cuts.len(), 5);
}

#[test]
fn flags_that_make_no_sense() {
    let place = Place::new();
    let graph = place.graph();
    let cases: [(&[&str], &str); 9] = [
        (&["--parts", "0"], "--parts"),
        (&["--parts", "401"], "at most one part per node"),
        (&["--method", "best"], "fennel"),
        (&["--imbalance", "0.5"], "--imbalance"),
        (&["--imbalance", "nan"], "--imbalance"),
        (&["--balance-train=maybe"], "yes or no"),
        (&["--method", "all", "-o", "x"], "--method all only compares"),
        (&["-o", "no/where/parts"], "no/where/parts"),
        (&["--seed", "-1"], "--seed"),
    ];
    for (more, told) in cases {
        refused(&[&["partition", &graph], more].concat(), told);
    }
    refused(&["partition"], "DATASET");
}
