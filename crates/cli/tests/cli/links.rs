//! Links: from a table of interactions to recommendations and to a model that is run.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::bad_inputs::refused;
use crate::train::{Place, json};
use crate::{PathStr, command, json_of, stdout_of};

fn shop() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/shop").str().to_owned()
}

/// Trains on the shop with some more words, and returns the run.
fn trained(place: &Place, more: &[&str]) -> String {
    let run = place.path("shop").str().to_owned();
    let words =
        ["train", &shop(), "--batch", "64", "--negatives", "20", "--rounds", "6", "-o", &run];
    stdout_of(&[&words[..], more].concat());
    run
}

#[test]
fn a_trained_shop_recommends_and_serves_the_same_scores() {
    let place = Place::new();
    let run = trained(&place, &[]);
    let summary = json(Path::new(&run).join("summary.json"));
    assert_eq!(summary["runs"][0]["header"]["metric"], "recall@3");
    let first = stdout_of(&["predict", &run, &shop(), "--top", "2"]);
    let mut lines = first.lines();
    assert_eq!(lines.next(), Some("user,rank,item,score"));
    let all: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(all.len(), 2 * 36);
    // No known link is recommended.
    let known = fs::read_to_string(Path::new(&shop()).join("interactions.csv")).expect("read");
    for row in &all {
        assert!(!known.contains(&format!("{},{}\n", row[0], row[2])), "{row:?}");
    }
    let list = place.path("users");
    fs::write(&list, "zoe\n").expect("written");
    let zoe = stdout_of(&["predict", &run, &shop(), "--top", "2", "--nodes", list.str()]);
    let of_zoe: Vec<&str> = first.lines().filter(|line| line.starts_with("zoe,")).collect();
    assert_eq!(zoe.lines().skip(1).collect::<Vec<_>>(), of_zoe);
    // The model of the embeddings gives the same pair the product of its rows.
    let model = place.path("model");
    stdout_of(&["model", "from-embeddings", &run, "-o", model.str()]);
    let rows = fs::read_to_string(Path::new(&run).join("nodes.csv")).expect("read");
    let row = |table: &str, name: &str| {
        let line = rows.lines().find(|line| {
            line.starts_with(&format!("{table},")) && line.ends_with(&format!(",{name}"))
        });
        line.and_then(|line| line.split(',').nth(1)).expect("a row").to_owned()
    };
    let requests = place.path("requests.csv");
    let pair = &all[0];
    let (user, item) = (row("user", pair[0]), row("item", pair[2]));
    fs::write(&requests, format!("d0,user,item\n0,{user},{item}\n7,{user},{item}\n"))
        .expect("written");
    let scores = stdout_of(&["model", "run", model.str(), "--inputs", requests.str()]);
    let scores: Vec<f32> =
        scores.lines().skip(1).map(|line| line.parse().expect("a score")).collect();
    // Training held some links out of its graph, so that its rows differ a little from those of `predict`.
    assert_eq!(scores[0], scores[1], "the dense feature must not count");
    let embeddings = place.path("all.safetensors");
    stdout_of(&["predict", &run, &shop(), "-o", embeddings.str()]);
    let again = place.path("again");
    stdout_of(&["model", "from-embeddings", embeddings.str(), "-o", again.str()]);
    let scores = stdout_of(&["model", "run", again.str(), "--inputs", requests.str()]);
    let score: f32 = scores.lines().nth(1).expect("a line").parse().expect("a score");
    let said: f32 = pair[3].parse().expect("a score");
    assert!((score - said).abs() < 1e-4, "{score} is not {said}");
}

#[test]
fn links_are_learnt_over_parts_and_resumed() {
    let place = Place::new();
    let words = ["--mode", "llcg", "--parts", "2", "--server-steps", "3"];
    let run = trained(&place, &words);
    let model = fs::read(Path::new(&run).join("model.safetensors")).expect("a model");
    fs::remove_dir_all(&run).expect("removed");
    let start = [&words[..], &["--rounds", "3"]].concat();
    let words_of = |more: &[&str]| {
        let base = ["train", &shop(), "--batch", "64", "--negatives", "20", "-o", &run];
        [&base[..], more].concat().iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    stdout_of(&words_of(&start));
    stdout_of(&words_of(&[&words[..], &["--rounds", "6", "--resume"]].concat()));
    assert_eq!(fs::read(Path::new(&run).join("model.safetensors")).expect("a model"), model);
    let outcome = json(Path::new(&run).join("summary.json"));
    assert!(outcome["up_bytes_per_round"].as_f64().expect("bytes") > 0.0);
}

#[test]
fn without_validation_links_the_last_model_is_kept() {
    let words = ["train", &shop(), "--batch", "64"];
    let more = ["--valid-share", "0", "--rounds", "3", "--json"];
    let output = command(&[&words[..], &more].concat()).output().expect("runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("the last round's model is kept") && !told.contains("best"), "{told}");
    let outcome: Value = serde_json::from_slice(&output.stdout).expect("json");
    assert!(outcome["valid"].is_null(), "{outcome}");
    assert_eq!(outcome["best_round"]["mean"], 3.0);
    assert!(outcome["runs"][0]["summary"]["valid"].is_null(), "{outcome}");
}

#[test]
fn links_of_any_graph_are_learnt() {
    let place = Place::new();
    let graph = place.graph();
    let words =
        ["train", &graph, "--task", "links", "--rounds", "2", "--parts", "2", "--batch", "256"];
    for model in ["sage", "lightgcn"] {
        let outcome = json_of(&[&words[..], &["--model", model, "--json"]].concat());
        assert_eq!(outcome["runs"][0]["header"]["metric"], "mrr", "{model}");
        let test = outcome["test"]["mean"].as_f64().expect("a score");
        assert!(test > 0.05 && test < 1.0, "{model}: {test}");
    }
}

#[test]
fn what_links_do_not_do_is_refused() {
    let place = Place::new();
    let (graph, shop) = (place.graph(), shop());
    refused(&["train", &shop, "--mode", "ggs"], "learns labels of nodes only");
    refused(&["train", &shop, "--parts", "2", "--partition", "auto"], "auto probes gradients");
    refused(&["train", &shop, "--task", "nodes", "--model", "sage"], "has users and items");
    refused(&["train", &shop, "--model", "sage"], "has no features");
    refused(&["train", &shop, "--metric", "accuracy"], "is a score of labels");
    refused(&["train", &shop, "--metric", "recall@0"], "recall@K");
    refused(&["train", &shop, "--loss", "hinge"], "softmax, bpr and bce");
    refused(&["train", &graph, "--model", "lightgcn"], "give --task links");
    refused(&["train", &graph, "--metric", "mrr"], "is a score of links");
    refused(&["train", &graph, "--class-weights", "1,2"], "2 numbers");
    let run = trained(&place, &[]);
    refused(&["predict", &run, &graph], "has a row for each of 66");
    refused(
        &["dataset", "convert", &shop, "-o", place.path("x.graph.safetensors").str()],
        "user–item",
    );
    let parts = place.path("parts");
    refused(&["partition", &shop, "--parts", "2", "--write", parts.str()], "a user–item graph");
    let about = stdout_of(&["dataset", "info", &shop]);
    assert!(about.contains("between 36 users and 30 items"), "{about}");
    let model = format!("{run}/model.safetensors");
    let words =
        ["model", "from-embeddings", &model, "-o", place.path("m").str()].map(str::to_owned);
    refused(&words.each_ref().map(String::as_str), "it holds only `embedding.weight`");
}

/// What users of other libraries look for: schedules, clipping, weights of classes, scores, splits.
#[test]
fn options_of_other_libraries_change_what_is_learnt() {
    let place = Place::new();
    let graph = place.graph();
    let loss = |more: &[&str]| {
        let out = place.path("out").str().to_owned();
        let words = ["train", &graph, "--rounds", "3", "--parts", "2", "-o", &out, "--force"];
        stdout_of(&[&words[..], more].concat());
        let lines = fs::read_to_string(Path::new(&out).join("metrics.jsonl")).expect("read");
        let last: serde_json::Value =
            serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON");
        last["loss"].as_f64().expect("a loss")
    };
    let plain = loss(&[]);
    for more in [
        &["--lr-schedule", "cosine"][..],
        &["--lr-schedule", "step:1,0.1"],
        &["--clip", "0.01"],
        &["--class-weights", "1,2,3,4"],
        &["--stratify"],
    ] {
        assert_ne!(loss(more), plain, "{more:?}");
    }
    let words =
        ["train", &graph, "--rounds", "1", "--parts", "2", "--json", "--metric", "f1-macro"];
    assert_eq!(json_of(&words)["runs"][0]["header"]["metric"], "f1-macro");
    let split = place.path("split.csv");
    let sets: String =
        (0..400).map(|n| format!("{n},{}\n", ["train", "valid", "test"][n % 3])).collect();
    fs::write(&split, format!("node,set\n{sets}")).expect("written");
    let words = ["train", &graph, "--dry-run", "--json", "--split-file", split.str()];
    assert_eq!(json_of(&words)[0]["train_nodes"], 134);
    fs::write(&split, "0,train\n400,test\n").expect("written");
    refused(&["train", &graph, "--split-file", split.str()], "split.csv:2: `400`");
}
