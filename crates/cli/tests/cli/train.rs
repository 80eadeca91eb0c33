//! `hither train`: what it writes, and that a killed run goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

use crate::bad_inputs::refused;
use crate::dataset::named_tables;
use crate::{PathStr, command, hither, json_of, stdout_of};

/// A directory with a small graph.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Self {
        let place = Self(TempDir::new().expect("a temporary directory"));
        let graph = place.path("small.graph.safetensors");
        stdout_of(&[
            "dataset",
            "generate",
            "--family",
            "cut-homophily",
            "--nodes",
            "400",
            "--classes",
            "4",
            "--communities",
            "8",
            "--degree",
            "8",
            "--features",
            "12",
            "-o",
            graph.str(),
        ]);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn graph(&self) -> String {
        self.path("small.graph.safetensors").str().to_owned()
    }

    /// `hither train` on the graph.
    pub fn train(&self, more: &[&str]) -> Vec<String> {
        self.words(&["train"], more)
    }

    fn compare(&self, more: &[&str]) -> Vec<String> {
        self.words(&["train", "compare"], more)
    }

    fn words(&self, command: &[&str], more: &[&str]) -> Vec<String> {
        let graph = self.graph();
        let small = "--parts 3 --rounds 6 --local-steps 3 --batch 32 --hidden 8 --server-batch 32";
        let words = command.iter().copied().chain([&graph[..]]).chain(small.split(' '));
        // Of a flag that is given twice the last would not win, but be refused.
        let mut words: Vec<String> = words.map(str::to_owned).collect();
        for flag in more.iter().filter(|word| word.starts_with("--")) {
            if let Some(at) = words.iter().position(|word| word == flag) {
                words.drain(at..at + 2);
            }
        }
        // What a mode does not use is refused.
        let without = ["ggs", "psgd-pa", "psgd-sa", "single,psgd-pa", "single,psgd-sa"];
        if without.iter().any(|mode| more.contains(mode))
            && let Some(at) = words.iter().position(|word| word == "--server-batch")
        {
            words.drain(at..at + 2);
        }
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    }
}

pub fn read(path: impl AsRef<Path>) -> Vec<u8> {
    fs::read(path.as_ref()).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

pub fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&read(path)).expect("JSON")
}

/// The lines of metrics.jsonl, without what differs between equal runs.
fn metrics(dir: &Path) -> Vec<Value> {
    let text = String::from_utf8(read(dir.join("metrics.jsonl"))).expect("text");
    let line = |line: &str| {
        let mut row: Value = serde_json::from_str(line).expect("a line of JSON");
        let row_map = row.as_object_mut().expect("an object");
        row_map.retain(|key, _| !key.ends_with("_s"));
        row
    };
    text.lines().map(line).collect()
}

#[test]
fn a_run_writes_its_files() {
    let place = Place::new();
    let out = place.path("out");
    let table = stdout_of(&place.train(&["-o", out.str()]));
    assert!(table.contains("llcg") && table.contains("3 parts by "), "{table}");

    let rows = metrics(&out);
    assert_eq!(rows.len(), 6);
    for (row, round) in rows.iter().zip(1..) {
        assert_eq!(
            (&row["run"], &row["seed"], &row["mode"]),
            (&1.into(), &0.into(), &"llcg".into())
        );
        assert_eq!((&row["round"], &row["local_steps"]), (&round.into(), &3.into()));
        assert!(row["valid"].is_f64() && row["kept"].is_f64());
        assert!(row["work"]["slowest"]["sums"].as_u64() > Some(0));
        assert!(row["path"]["workers_s"].as_f64() > Some(0.0));
    }
    // 12 × 8 twice and a bias, 8 × 4 twice and a bias; three workers.
    let parameters = 2 * 12 * 8 + 8 + 2 * 8 * 4 + 4;
    assert_eq!(rows[0]["model_up_bytes"], 3 * 4 * parameters);
    assert_eq!(rows[0]["model_down_bytes"], 3 * 4 * parameters);

    let summary = json(out.join("summary.json"));
    assert_eq!(summary["runs"][0]["header"]["parameters"], parameters);
    assert_eq!(summary["runs"][0]["summary"]["test"], summary["test"]["mean"]);
    assert!(summary["test"]["std"].is_null());
    assert_eq!(summary["settings"]["local-steps"], 3);

    // The classes add up to the score, and the page shows them.
    let classes = summary["runs"][0]["summary"]["classes"].as_array().expect("scores of classes");
    let sum = |key: &str| classes.iter().filter_map(|class| class[key].as_f64()).sum::<f64>();
    assert_eq!((classes.len(), sum("nodes")), (4, sum("predicted")));
    let test = summary["test"]["mean"].as_f64().expect("a score");
    assert!((sum("correct") / sum("nodes") - test).abs() < 1e-9, "{classes:?}");

    let page = String::from_utf8(read(out.join("report.html"))).expect("text");
    assert!(page.contains("</html>") && page.contains("id=\"classes\""));
    for tensors in ["model.safetensors", "embeddings.safetensors", "checkpoint.safetensors"] {
        assert!(read(out.join(tensors)).len() > 1000, "{tensors}");
    }
    let left = fs::read_dir(&out).expect("the directory").count();
    assert_eq!(left, 10, "nothing else is left there");
    let workers = fs::read_dir(out.join("checkpoint.workers")).expect("the workers' folder");
    assert_eq!(workers.count(), 3, "one file per worker, of the last round alone");
}

#[test]
fn the_scheduler_takes_the_profile() {
    let place = Place::new();
    let out = place.path("out");
    stdout_of(&place.train(&["-o", out.str()]));
    let profile = out.join("profile.json");
    let name = json(&profile)["name"].as_str().expect("a name").to_owned();
    assert_eq!(name, "sage-sage@cut-homophily:llcg");
    let trace = place.path("trace.csv");
    let rows = format!("job,gpus,submit_s,iterations,model\na,4,0,1000,{name}\n");
    fs::write(&trace, rows).expect("the trace is written");
    let run = json_of(&["simulate", trace.str(), "--profiles", profile.str(), "--json"]);
    assert_eq!(run["runs"][0]["finished"], 1);
}

#[test]
fn threads_do_not_matter() {
    let place = Place::new();
    let (one, two) = (place.path("one"), place.path("two"));
    for mode in ["llcg", "llcg-stale", "ggs", "psgd-sa"] {
        for (out, threads) in [(&one, "1"), (&two, "2")] {
            let more = ["--mode", mode, "--threads", threads, "-o", out.str(), "--force"];
            stdout_of(&place.train(&more));
        }
        for file in ["model.safetensors", "embeddings.safetensors"] {
            assert!(read(one.join(file)) == read(two.join(file)), "{mode}: {file}");
        }
        assert_eq!(metrics(&one), metrics(&two));
    }
}

#[test]
fn a_killed_run_goes_on() {
    let place = Place::new();
    let more = |out: &Path| -> Vec<String> {
        let words = ["--rounds", "30", "--runs", "2", "--batch-norm", "--checkpoint-every", "2"];
        let mut words = place.train(&words);
        words.extend(["-o".to_owned(), out.str().to_owned()]);
        words
    };
    let (whole, killed) = (place.path("whole"), place.path("killed"));
    stdout_of(&more(&whole));

    // Killed again and again, whenever something more is there, until it comes through.
    let mut attempts = 0;
    loop {
        let mut words = more(&killed);
        words.push("--resume".into());
        let mut child = command(&words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let before = read_or_empty(&killed.join("metrics.jsonl")).len();
        let ended = loop {
            if let Some(status) = child.try_wait().expect("it can be asked") {
                break Some(status);
            }
            if read_or_empty(&killed.join("metrics.jsonl")).len() > before + 2000 {
                break None;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        if let Some(status) = ended {
            assert!(status.success());
            break;
        }
        // At any moment.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is late");
        std::thread::sleep(Duration::from_micros(u64::from(now.subsec_nanos()) % 5000));
        let _ = child.kill();
        child.wait().expect("it ends");
        attempts += 1;
        assert!(attempts < 100, "it never ends");
    }
    assert!(attempts > 0, "nothing was killed");
    let names = |dir: &Path| -> Vec<_> {
        let entries = fs::read_dir(dir).expect("the directory").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&whole), names(&killed), "nothing half written is left");
    for file in ["model.safetensors", "embeddings.safetensors", "run-2/model.safetensors"] {
        assert!(read(whole.join(file)) == read(killed.join(file)), "{file}");
    }
    assert_eq!(metrics(&whole), metrics(&killed));
    let (whole, killed) = (json(whole.join("summary.json")), json(killed.join("summary.json")));
    assert_eq!((&whole["test"], &whole["valid"]), (&killed["test"], &killed["valid"]));
}

fn read_or_empty(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_default()
}

#[test]
fn a_finished_run_is_only_told_again_and_a_longer_one_goes_on() {
    let place = Place::new();
    let (out, long) = (place.path("out"), place.path("long"));
    let short = place.train(&["--rounds", "4", "--seed", "5", "-o", out.str()]);
    let table = stdout_of(&short);
    let written = |file: &str| fs::metadata(out.join(file)).and_then(|m| m.modified()).ok();
    let before = written("model.safetensors");
    let again = [&short[..], &["--resume".to_owned()]].concat();
    assert_eq!(stdout_of(&again), table);
    assert_eq!(written("model.safetensors"), before, "what was done is not done again");

    let longer = ["--rounds", "9", "--runs", "2", "--seed", "5", "-o"];
    stdout_of(&place.train(&[&longer[..], &[long.str()]].concat()));
    stdout_of(&place.train(&[&longer[..], &[out.str(), "--resume"]].concat()));
    assert_eq!(metrics(&long), metrics(&out));
    for file in ["model.safetensors", "run-2/model.safetensors"] {
        assert!(read(long.join(file)) == read(out.join(file)), "{file}");
    }
}

/// Every run goes on from its own checkpoint, also while earlier ones write their rounds again.
#[test]
fn several_runs_are_lengthened_together() {
    let place = Place::new();
    let (out, long) = (place.path("out"), place.path("long"));
    let words = |rounds: &str, out: &Path| {
        place.train(&["--rounds", rounds, "--runs", "3", "-o", out.str()])
    };
    stdout_of(&words("4", &out));
    stdout_of(&[&words("7", &out)[..], &["--resume".to_owned()]].concat());
    stdout_of(&words("7", &long));
    assert_eq!(metrics(&long), metrics(&out));
    assert!(
        read(long.join("run-3/model.safetensors")) == read(out.join("run-3/model.safetensors"))
    );
}

/// A mode that cannot be trained is refused before the others have begun.
#[test]
fn a_comparison_is_checked_as_a_whole() {
    let place = Place::new();
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/shop");
    let out = place.path("out");
    let words = ["train", "compare", shop.str(), "--modes", "single,ggs", "-o", out.str()];
    refused(&words, "learns labels of nodes only");
    assert!(!out.exists());
}

#[test]
fn runs_have_seeds_and_cuts_of_their_own() {
    let place = Place::new();
    let out = place.path("out");
    let document = json_of(&place.train(&[
        "--runs",
        "3",
        "--seed",
        "7",
        "--partition",
        "random",
        "-o",
        out.str(),
        "--json",
    ]));
    let runs = document["runs"].as_array().expect("runs");
    let tests: Vec<f64> =
        runs.iter().map(|run| run["summary"]["test"].as_f64().expect("a score")).collect();
    let mean = tests.iter().sum::<f64>() / 3.0;
    let std = (tests.iter().map(|test| (test - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
    assert!((document["test"]["mean"].as_f64().expect("a mean") - mean).abs() < 1e-12);
    assert!((document["test"]["std"].as_f64().expect("a deviation") - std).abs() < 1e-12);
    let seeds: Vec<&Value> = runs.iter().map(|run| &run["summary"]["seed"]).collect();
    assert_eq!(seeds, [7, 8, 9]);
    assert_ne!(runs[0]["header"]["cut_share"], runs[1]["header"]["cut_share"]);
    assert!(read(out.join("model.safetensors")) != read(out.join("run-2/model.safetensors")));
    // One of them alone is the same.
    let alone = place.path("alone");
    stdout_of(&place.train(&["--seed", "8", "--partition", "random", "-o", alone.str()]));
    assert!(read(alone.join("model.safetensors")) == read(out.join("run-2/model.safetensors")));
}

#[test]
fn modes_are_compared_at_equal_work_of_the_server() {
    let place = Place::new();
    let (out, words) = (place.path("out"), ["--runs", "2", "-o"]);
    let document = json_of(&place.compare(&[&words[..], &[out.str(), "--json"]].concat()));
    let modes = document["modes"].as_array().expect("modes");
    let names: Vec<&str> = modes.iter().filter_map(|mode| mode["mode"].as_str()).collect();
    assert_eq!(names, ["single", "psgd-pa", "llcg", "ggs", "server-only"]);
    let steps = |mode: &str| -> Vec<Value> {
        let rows = metrics(&out.join(mode));
        assert_eq!(rows.len(), 12, "{mode}");
        rows.iter().map(|row| row["server_steps"].clone()).collect()
    };
    assert_eq!(steps("llcg"), steps("server-only"));
    assert_eq!(modes[0]["to_single"], 0.0);
    assert_eq!(modes[0]["total_bytes"], 0.0);
    // Six rounds of three workers, both directions, 4 bytes per parameter: 12 × 8 twice and a bias,
    // 8 × 4 twice and a bias. Correction sends nothing.
    let parameters = 2 * 12 * 8 + 8 + 2 * 8 * 4 + 4;
    for mode in [1, 2] {
        assert_eq!(modes[mode]["total_bytes"], f64::from(6 * 3 * 2 * 4 * parameters));
    }
    assert!(modes[3]["total_bytes"].as_f64() > modes[2]["total_bytes"].as_f64());
    assert!(out.join("report.html").exists());

    // Alone, a mode does the same.
    let alone = place.path("alone");
    stdout_of(&place.train(&["-o", alone.str()]));
    assert!(read(alone.join("model.safetensors")) == read(out.join("llcg/model.safetensors")));

    // What is done stays, modes can be added, and more rounds asked for.
    let written = |file: &str| fs::metadata(out.join(file)).and_then(|m| m.modified()).ok();
    let before = written("ggs/model.safetensors");
    let more = ["--modes", "llcg,ggs,server-only,psgd-sa", "--runs", "2", "-o", out.str()];
    let table = stdout_of(&place.compare(&[&more[..], &["--resume"]].concat()));
    assert!(table.contains("psgd-sa"), "{table}");
    assert_eq!(written("ggs/model.safetensors"), before);
    let longer = ["--modes", "llcg,server-only", "--rounds", "8", "-o", out.str()];
    stdout_of(&place.compare(&[&longer[..], &["--resume"]].concat()));
    assert_eq!(metrics(&out.join("server-only")).len(), 8);
}

#[test]
fn every_model_and_mode_trains() {
    let place = Place::new();
    let models = [("sage", "5,3"), ("gcn", "5"), ("gat", "all"), ("appnp", "3,2"), ("mlp", "1")];
    for (model, fanout) in models {
        let words = ["--model", model, "--fanout", fanout, "--server-fanout", fanout];
        let more = ["--rounds", "6", "--lr", "0.05", "--json", "-o"];
        let heads = if model == "gat" { &["--heads", "2"][..] } else { &[] };
        let out = place.path(model);
        let words = [&words[..], heads, &more, &[out.str()]].concat();
        let document = json_of(&place.train(&words));
        let losses: Vec<f64> =
            metrics(&out).iter().filter_map(|row| row["loss"].as_f64()).collect();
        assert!(losses[5] < 0.9 * losses[0], "{model}: {losses:?}");
        // Four classes of equal size; neighbours tell them apart, features hardly.
        let score = document["test"]["mean"].as_f64().expect("a score");
        assert!(score > 0.3, "{model}: {score}");
    }
    let words = ["--modes", "all", "--rounds", "2", "--batch", "full", "--server-batch", "full"];
    let document = json_of(&place.compare(&[&words[..], &["--json"]].concat()));
    assert_eq!(document["modes"].as_array().map(Vec::len), Some(7));
}

#[test]
fn parts_come_from_a_file() {
    let place = Place::new();
    let (parts, out) = (place.path("small.parts"), place.path("out"));
    let graph = place.graph();
    stdout_of(&["partition", &graph, "--parts", "5", "-o", parts.str()]);
    let words = ["train", &graph, "--rounds", "2", "--partition-file", parts.str(), "--json"];
    let document = json_of(&words);
    assert_eq!(document["runs"][0]["header"]["parts"], 5);
    assert_eq!(document["runs"][0]["header"]["partition"], "small.parts");
    let other = place.path("other.parts");
    fs::write(&other, "0\n1\n").expect("written");
    let words = ["train", &graph, "--partition-file", other.str(), "-o", out.str()];
    refused(&words, "it has 2 lines; expected 400, one per node");
    refused(
        &["train", &graph, "--partition-file", parts.str(), "--parts", "4"],
        "has 5 parts, but --parts is 4",
    );
}

#[test]
fn a_dry_run_writes_nothing() {
    let place = Place::new();
    let out = place.path("out");
    let text = stdout_of(&place.train(&["--dry-run"]));
    assert!(text.contains("400 nodes") && text.contains("3 by "), "{text}");
    assert!(text.contains("6 in 1 run, 3 local steps per round"), "{text}");
    assert!(
        text.contains("as many steps as 0.3 of the workers' work pays for")
            && text.contains("written     about"),
        "{text}"
    );
    let words = ["--json", "-o", out.str(), "--dry-run"];
    let document = json_of(&place.compare(&words));
    assert_eq!(document.as_array().map(Vec::len), Some(5));
    assert!(!out.exists());
}

fn notes(words: &[String]) -> String {
    let output = hither(words);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{notes}");
    notes
}

#[test]
fn predictions_have_the_names_of_nodes_and_classes() {
    let place = Place::new();
    let (pages, out) = (named_tables(&place), place.path("out"));
    let words = ["--rounds", "2", "--parts", "2", "--partition", "random", "-o", out.str()];
    stdout_of(&[&["train", &pages], &words[..]].concat());
    let text = fs::read_to_string(out.join("predictions.csv")).expect("predictions");
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!((rows.len(), rows[0]), (13, "node,predicted,probability,label,split"));
    assert!(rows[1].starts_with("ann,") && rows[1].contains(",\"film, old\","), "{text}");
    assert!(rows[4].starts_with("dee,") && rows[4].ends_with(",,"), "no label, no set: {text}");
    for set in ["train", "valid", "test"] {
        assert!(rows.iter().any(|row| row.ends_with(&format!(",{set}"))), "{set}: {text}");
    }
    // They are those of embeddings.safetensors, and a new run replaces them.
    let graph = place.train(&["--force", "-o", out.str()]);
    stdout_of(&graph);
    let text = fs::read_to_string(out.join("predictions.csv")).expect("predictions");
    let right = |set: &str| {
        let rows = text.lines().skip(1).map(|row| row.split(',').collect::<Vec<_>>());
        let rows: Vec<_> = rows.filter(|row| row[4] == set).collect();
        rows.iter().filter(|row| row[1] == row[3]).count() as f64 / rows.len() as f64
    };
    let summary = json(out.join("summary.json"));
    for set in ["valid", "test"] {
        let score = summary[set]["mean"].as_f64().expect("a score");
        assert!((right(set) - score).abs() < 1e-9, "{set}: {} is not {score}", right(set));
    }
}

#[test]
fn one_machine_trains_unless_workers_are_asked_for() {
    let place = Place::new();
    let graph = place.graph();
    let mode = |more: &[&str]| {
        let words = ["train", &graph, "--rounds", "1", "--json"];
        let run = json_of(&[&words[..], more].concat())["runs"][0]["header"].clone();
        (run["mode"].as_str().expect("a mode").to_owned(), run["parts"].as_u64())
    };
    assert_eq!(mode(&[]), ("single".into(), Some(1)));
    assert_eq!(mode(&["--parts", "3"]), ("llcg".into(), Some(3)));
    assert_eq!(mode(&["--server-steps", "1"]), ("llcg".into(), Some(8)));
    let parts = place.path("parts");
    stdout_of(&["partition", &graph, "--parts", "2", "--write", parts.str()]);
    let words = ["train", parts.str(), "--rounds", "1", "--json"];
    assert_eq!(json_of(&words)["runs"][0]["header"]["mode"], "llcg");
    // One machine takes the batch that it is given, whatever workers would take together.
    let (one, compared) = (place.path("one"), place.path("compared"));
    let words = ["train", &graph, "--rounds", "2", "--batch", "96", "-o", one.str()];
    stdout_of(&words);
    let words = ["train", "compare", &graph, "--rounds", "2", "--batch", "32", "--parts", "3"];
    stdout_of(&[&words[..], &["--modes", "single,llcg", "-o", compared.str()]].concat());
    let [one, together] =
        [one, compared.join("single")].map(|dir| read(dir.join("model.safetensors")));
    assert!(one == together);
}

#[test]
fn options_that_change_nothing_are_refused() {
    let place = Place::new();
    let graph = place.graph();
    let cases: &[(&[&str], &str)] = &[
        (&["--mode", "single", "--parts", "4"], "--parts is an option of modes with workers"),
        (&["--mode", "psgd-pa", "--server-steps", "2"], "--server-steps is an option of llcg"),
        (&["--mode", "psgd-pa", "--server-batch", "2"], "--server-batch is an option of llcg"),
        (&["--mode", "psgd-pa", "--server-fanout", "2"], "--server-fanout is an option of llcg"),
        (&["--copies", "0.2"], "--copies is an option of psgd-sa"),
        (&["--heads", "4"], "--heads is an option of gat"),
        (&["--alpha", "0.5"], "--alpha is an option of appnp"),
        (&["--norm", "mean"], "--norm is an option of gcn"),
        (&["--model", "sage,gcn", "--layers", "3"], "--layers is an option of families"),
        (&["--server-steps", "2", "--server-share", "0.5"], "--server-share is an option of"),
        (
            &["--mode", "server-only", "--server-steps", "2", "--batch", "9"],
            "--batch is an option of local",
        ),
        (
            &["--mode", "server-only", "--server-steps", "2", "--fanout", "9"],
            "--fanout is an option of local",
        ),
        (
            &["--mode", "server-only", "--server-steps", "2", "--rho", "1.1"],
            "--rho is an option of local",
        ),
        (&["--batch", "full", "--fanout", "3"], "--fanout has no effect with a full batch"),
        (&["--loss", "bpr"], "--loss is an option of links"),
        (&["--negatives", "5"], "--negatives is an option of links"),
        (&["--negatives-by", "links"], "--negatives-by is an option of links"),
        (&["--temperature", "0.2"], "--temperature is an option of links"),
        (&["--length-power", "0.2"], "--length-power is an option of links"),
        (&["--valid-share", "0.2"], "--valid-share is an option of links"),
        (&["--test-share", "0.2"], "--test-share is an option of links"),
        (&["--task", "links", "--loss", "bpr", "--temperature", "0.2"], "--loss softmax"),
        (&["--task", "links", "--model", "lightgcn", "--residual"], "does not use it"),
        (&["--task", "links", "--model", "lightgcn", "--dropout", "0.5"], "does not use it"),
        (&["--embeddings"], "--output"),
        (&["--checkpoint-every", "5"], "--output"),
    ];
    for (more, told) in cases.iter().copied() {
        refused(&[&["train", &graph], more].concat(), told);
    }
    // In a comparison it is enough that one mode uses them.
    notes(&place.compare(&["--modes", "single,psgd-sa", "--copies", "0.2"]));
    let words = ["--modes", "single,psgd-sa", "--alpha", "0.5"].map(str::to_owned);
    let words = [&["train", "compare", &graph].map(str::to_owned)[..], &words].concat();
    refused(&words.iter().map(String::as_str).collect::<Vec<_>>(), "--alpha is an option of appnp");
}

/// Ctrl-C ends a run as SIGTERM does: with a checkpoint, from which it goes on. So does a comparison.
#[test]
fn a_run_that_is_interrupted_leaves_a_checkpoint() {
    let place = Place::new();
    let graph = place.graph();
    let compare = ["compare", "--modes", "single"];
    for (signal, status, more, mode) in
        [("INT", 130, &[][..], ""), ("TERM", 143, &[], ""), ("TERM", 143, &compare, "single")]
    {
        let out = place.path(&format!("{signal}{mode}"));
        let words = [&["train"], more, &[&graph, "--checkpoint-every", "100000", "-o", out.str()]];
        let words = words.concat();
        let endless = [&words[..], &["--rounds", "100000"]].concat();
        let child = command(&endless).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let child = child.expect("the program starts");
        while read_or_empty(&out.join(mode).join("metrics.jsonl")).is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let kill = std::process::Command::new("kill");
        let sent = { kill }.args([&format!("-{signal}"), &child.id().to_string()]).status();
        assert!(sent.expect("kill starts").success());
        let output = child.wait_with_output().expect("it ends");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{told}");
        assert!(told.contains("stopped as asked after round"), "{told}");
        let rounds = (metrics(&out.join(mode)).len() + 2).to_string();
        stdout_of(&[&words[..], &["--rounds", &rounds, "--resume"]].concat());
        assert_eq!(metrics(&out.join(mode)).len().to_string(), rounds);
    }
}

/// A directory that cannot be made is told before the graph is read.
#[test]
fn outputs_are_tried_before_the_work() {
    let place = Place::new();
    let file = place.path("file");
    fs::write(&file, "x").expect("written");
    let absent = place.path("absent.npz");
    let out = file.join("out");
    let told = String::from_utf8_lossy(&hither(&["train", absent.str(), "-o", out.str()]).stderr)
        .into_owned();
    assert!(told.contains("cannot make the directory"), "{told}");
}

#[test]
fn a_score_that_cannot_rise_is_noted_and_the_last_round_kept() {
    let place = Place::new();
    let shop = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/shop");
    let out = place.path("shop");
    let words = ["train", shop.str(), "--metric", "recall@30", "--rounds", "5", "-o", out.str()];
    let told = String::from_utf8_lossy(&hither(&words).stderr).into_owned();
    assert!(told.contains("reached 100 %") && told.contains("the last, 5, is kept"), "{told}");
    assert_eq!(json(out.join("summary.json"))["best_round"]["mean"], 5.0);
}

#[test]
fn a_run_that_keeps_nothing_says_so_before_it_starts() {
    let place = Place::new();
    let without = notes(&place.train(&[]));
    assert!(without.contains("seed 0\n"), "{without}");
    assert!(without.contains("note: without -o DIR only the scores are kept"), "{without}");
    let with = notes(&place.train(&["-o", place.path("out").str()]));
    assert!(!with.contains("without -o"), "{with}");
    let compare = ["--modes", "single,psgd-pa", "--runs", "2", "--optimizer", "sgd"];
    let compared = notes(&place.compare(&compare));
    assert!(compared.contains("4 runs: 2 modes × 2 seeds\n"), "{compared}");
    assert!(compared.contains("the first run took 1 s; about "), "{compared}");
    assert_eq!(notes(&place.train(&["--quiet"])), "");
}
