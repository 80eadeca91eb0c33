//! `hither dataset`: what it tells, writes and draws.

use std::fs;

use crate::bad_inputs::refused;
use crate::train::Place;
use crate::{PathStr, hither, json_of, stdout_of};

/// A folder of tables with names, a weight per edge, repeated edges, a self-loop, an isolated node
/// and a node without a label.
pub fn named_tables(place: &Place) -> String {
    let dir = place.path("pages");
    fs::create_dir(&dir).expect("created");
    let people =
        ["ann", "bob", "cid", "dee", "eve", "fay", "gus", "hal", "ida", "joe", "kim", "leo"];
    let mut edges = String::from("# who follows whom, how much\n");
    for (at, name) in people.iter().enumerate().take(11) {
        edges += &format!("{name}\t{}\t1\n", people[(at + 1) % 11]);
    }
    edges += "ann\tbob\t2\nbob\tann\t1\ncid\tcid\t1\n";
    let (mut features, mut labels) = (String::from("id,a,b\n"), String::new());
    for (at, name) in people.iter().enumerate() {
        features += &format!("{name},{},{}\n", at % 2, at / 2);
        let label = match at {
            3 => "NA",
            at if at % 2 == 0 => "film, old",
            _ => "shop",
        };
        labels += &format!("{name},\"{label}\"\n");
    }
    fs::write(dir.join("edges.txt"), edges).expect("written");
    fs::write(dir.join("features.csv"), features).expect("written");
    fs::write(dir.join("labels.csv"), labels).expect("written");
    dir.str().to_owned()
}

#[test]
fn names_and_what_was_dropped_are_shown() {
    let place = Place::new();
    let pages = named_tables(&place);
    let info = json_of(&["dataset", "info", &pages, "--json"]);
    assert_eq!(info["class_names"], serde_json::json!(["film, old", "shop"]));
    assert_eq!(info["nodes_of_class"], serde_json::json!([6, 5]));
    let listed = serde_json::json!({"pairs": 14, "self_loops": 1, "repeated": 1, "reciprocal": 1});
    assert_eq!(info["listed"], listed);
    assert_eq!((&info["isolated_nodes"], &info["unlabelled_nodes"]), (&1.into(), &1.into()));
    assert_eq!(
        info["notes"][0],
        "column 3 of edges.txt is not used; --edge-weights reads it as weights"
    );
    let text = stdout_of(&["dataset", "info", &pages]);
    assert!(text.contains("film, old         6"), "{text}");
    assert!(text.contains("edges      11, from 14 listed pairs: 1 self-loop dropped"), "{text}");
    // Through our own layout, with one note about it.
    let path = place.path("pages.graph.safetensors");
    let output = hither(&["dataset", "convert", &pages, "-o", path.str()]);
    let notes = String::from_utf8_lossy(&output.stderr);
    let expected = "note: pages: 1 repeated edge dropped; 1 self-loop dropped; 1 pair of opposite \
                    edges merged: directions are ignored; 1 node without edges; 1 node without a \
                    label; column 3 of edges.txt is not used; --edge-weights reads it as weights; the \
                    split is drawn by seed 0: 60 % training, 20 % validation and 20 % test nodes\n";
    assert!(notes.contains(expected), "{notes}");
    let again = json_of(&["dataset", "info", path.str(), "--json"]);
    assert_eq!(again["class_names"], info["class_names"]);
    assert_eq!(again["notes"], serde_json::json!([]), "a stored split is not drawn");
    let drawn = stdout_of(&["dataset", "info", &pages, "--seed", "7"]);
    assert!(drawn.contains("note       the split is drawn by seed 7"), "{drawn}");
}

#[test]
fn a_list_of_edges_alone_is_described_and_partitioned_but_not_trained_on() {
    let place = Place::new();
    let path = place.path("soc.txt");
    let ring: String = (0..60).map(|node| format!("{node} {}\n", (node + 1) % 60)).collect();
    fs::write(&path, format!("% sym\n{ring}")).expect("written");
    let text = stdout_of(&["dataset", "info", path.str()]);
    assert!(text.contains("features   none\nlabels     none\n"), "{text}");
    let parts = place.path("soc.parts");
    let words = ["--parts", "3", "--method", "ldg", "-o"];
    stdout_of(&[&["partition", path.str()], &words[..], &[parts.str()]].concat());
    assert_eq!(fs::read_to_string(parts).expect("parts").lines().count(), 60);
    let cuts = json_of(&["partition", path.str(), "--method", "all", "--json"]);
    assert_eq!(cuts.as_array().map(Vec::len), Some(6), "all but the one by label");
    refused(&["partition", path.str(), "--method", "label"], "has no labels");
    refused(&["train", path.str()], "features.csv (or features.npy) is missing");
    refused(&["dataset", "convert", path.str(), "-o", "x"], "features.csv");
}

#[test]
fn an_ignored_split_index_is_refused() {
    let place = Place::new();
    let graph = place.graph();
    for command in [&["dataset", "info"][..], &["partition"], &["train"]] {
        let words = [command, &[&graph, "--split-index", "5"]].concat();
        refused(&words, "there is no split 5: its layout has no numbered splits");
    }
}

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
