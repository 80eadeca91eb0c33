//! `hither dataset`: what it tells, writes and draws.

use std::fs;

use crate::bad_inputs::refused;
use crate::train::Place;
use crate::{PathStr, json_of, stdout_of};

#[test]
fn a_dataset_is_described() {
    let place = Place::new();
    let info = json_of(&["dataset", "info", &place.graph(), "--json"]);
    assert_eq!((&info["name"], &info["nodes"]), (&"cut-homophily".into(), &400.into()));
    assert_eq!(info["features"]["dim"], 12);
    assert_eq!(info["features"]["bytes"], 400 * 12 * 4);
    assert_eq!(
        (&info["train"], &info["valid"], &info["test"]),
        (&240.into(), &80.into(), &80.into())
    );
    let classes = info["nodes_of_class"].as_array().expect("counts");
    assert_eq!(classes.iter().filter_map(|count| count.as_u64()).sum::<u64>(), 400);
    let (edges, mean) = (info["edges"].as_f64(), info["degree"]["mean"].as_f64());
    assert_eq!(mean, edges.map(|edges| 2.0 * edges / 400.0));
    let homophily = info["homophily"].as_f64().expect("a share");
    assert!((0.2..0.7).contains(&homophily), "{homophily}");
    let text = stdout_of(&["dataset", "info", &place.graph()]);
    assert!(text.contains("nodes      400") && text.contains("scored by accuracy"), "{text}");
}

#[test]
fn the_same_seed_draws_the_same_graph() {
    let place = Place::new();
    let draw = |name: &str, more: &[&str]| {
        let path = place.path(name);
        let words = ["dataset", "generate", "--family", "noisy-features", "--nodes", "3000", "-o"];
        stdout_of(&[&words[..], &[path.str()], more].concat());
        fs::read(path).expect("the graph")
    };
    let one = draw("one", &["--seed", "3", "--threads", "1"]);
    assert!(one == draw("two", &["--seed", "3", "--threads", "2"]));
    assert!(one != draw("other", &["--seed", "4"]));
}

#[test]
fn our_own_form_is_converted_to_itself() {
    let place = Place::new();
    let again = place.path("again.graph.safetensors");
    stdout_of(&["dataset", "convert", &place.graph(), "-o", again.str()]);
    assert!(fs::read(place.graph()).expect("one") == fs::read(&again).expect("the other"));
    // A split of its own is drawn by the seed.
    let (three, four) = (place.path("3"), place.path("4"));
    for (path, seed) in [(&three, "3"), (&four, "4")] {
        let words = ["--draw-split", "--seed", seed, "-o", path.str()];
        stdout_of(&[&["dataset", "convert", &place.graph()], &words[..]].concat());
    }
    assert!(fs::read(three).expect("one") != fs::read(four).expect("the other"));
}

#[test]
fn what_is_no_dataset_is_refused() {
    let place = Place::new();
    let out = place.path("out");
    let whole = fs::read(place.graph()).expect("the graph");
    let files = [
        ("empty", &b""[..], "empty"),
        ("text", b"hello\n", "text"),
        ("cut.graph.safetensors", &whole[..whole.len() / 2], "cut.graph.safetensors"),
    ];
    for (name, content, told) in files {
        let path = place.path(name);
        fs::write(&path, content).expect("written");
        refused(&["dataset", "info", path.str()], told);
        refused(&["dataset", "convert", path.str(), "-o", out.str()], told);
        refused(&["train", path.str(), "-o", out.str()], told);
        refused(&["partition", path.str(), "-o", out.str()], told);
    }
    assert!(!out.exists(), "nothing is written");
    refused(&["dataset", "info", place.path("absent").str()], "absent");
    refused(&["dataset", "info", &place.graph(), "--format", "shchur"], "small.graph.safetensors");
    let generate = |more: &[&str], told: &str| {
        let words = ["dataset", "generate", "--family", "cut-homophily", "-o"];
        refused(&[&words[..], &[out.str()], more].concat(), told);
    };
    generate(&["--nodes", "0"], "--nodes");
    generate(&["--nodes", "100"], "100 nodes are too few");
    generate(&["--classes", "1"], "--classes");
    generate(&["--leaving", "2"], "--leaving");
    generate(&["--degree", "1000000", "--nodes", "2000"], "degree");
    generate(&["--communities", "1"], "leaving");
    generate(&["--train", "0.9", "--valid", "0.9"], "train is 0.9 and valid is 0.9; expected");
    refused(&["dataset", "generate", "--family", "easy", "-o", "x"], "noisy-features");
    refused(&["dataset", "generate", "-o", "x"], "--family");
}
