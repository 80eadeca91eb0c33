//! `hither tune`: what it writes can be read back, and does not depend on threads.

use std::fs;

use crate::bad_inputs::refused;
use crate::{Bench, PathStr, json_of, stdout_of};

const GENERATOR: &str = "jobs = 60\nload = 1.2\ngpus = 64\nduration = { median_s = 3000, sigma = 1 }\n\
    demand = { gpus = [1, 4, 8, 16], weights = [1, 2, 2, 1] }\n";

fn args(bench: &Bench, policy: &str, output: &str, more: &[&str]) -> Vec<String> {
    let generator = bench.write("workload.toml", GENERATOR);
    let cluster = bench.path("cluster.toml");
    let (generator, cluster) = (generator.str(), cluster.str());
    let words = ["tune", generator, "--cluster", cluster, "--policy", policy, "-o", output];
    words.iter().chain(more).map(|&word| word.to_owned()).collect()
}

#[test]
fn the_best_settings_are_read_back() {
    let bench = Bench::new();
    let (one, two) = (bench.path("one.toml"), bench.path("two.toml"));
    let tuned = |output: &str, threads: &str| {
        let more = ["--vary", "congestion=8", "--budget", "9", "--threads", threads];
        stdout_of(&args(&bench, "tiresias", output, &more))
    };
    let table = tuned(one.str(), "1");
    assert!(table.contains("as given"), "{table}");
    assert_eq!(table, tuned(two.str(), "2"));
    let text = fs::read_to_string(&one).expect("it was written");
    assert_eq!(text, fs::read_to_string(&two).expect("it was written"));
    assert!(
        text.starts_with("# tiresias tuned on workload.toml: 9 settings tried in 3 cells each.")
    );

    // The score in the file is what a simulation with the file gives against the defaults.
    let mean = |seed: u32, settings: &[&str]| {
        let (generator, cluster) = (bench.path("workload.toml"), bench.path("cluster.toml"));
        let seed = seed.to_string();
        let words =
            ["simulate", generator.str(), "--cluster", cluster.str(), "--policy", "tiresias"];
        let more = ["--congestion", "8", "--seed", &seed, "--json"];
        let all: Vec<&str> = words.iter().chain(&more).chain(settings).copied().collect();
        json_of(&all)["runs"][0]["jct_s"]["mean"].as_f64().expect("a number")
    };
    let ratio = |seed| mean(seed, &["--settings", one.str()]) / mean(seed, &[]);
    let score = (1001..=1003).map(|seed| ratio(seed).ln()).sum::<f64>() / 3.0;
    let told = text.lines().nth(1).and_then(|line| line.rsplit(' ').next()).expect("a score");
    assert!((score.exp() - told.parse::<f64>().expect("a number")).abs() < 1e-4, "{told}");
    assert!(score.exp() < 1.0, "nothing was better than the defaults");
}

#[test]
fn json_has_every_setting_that_was_tried() {
    let bench = Bench::new();
    let out = bench.path("gandiva.toml");
    let more = ["--budget", "5", "--seed", "7", "--json"];
    let told = json_of(&args(&bench, "gandiva", out.str(), &more));
    let tried = told["tried"].as_array().expect("a list");
    assert_eq!(tried.len(), 5);
    let scores: Vec<f64> = tried.iter().map(|t| t["score"].as_f64().expect("a number")).collect();
    assert_eq!(scores[0], 1.0);
    let least = scores.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(told["best"]["score"].as_f64(), Some(least));
}

#[test]
fn what_cannot_be_tuned_is_refused() {
    let bench = Bench::new();
    let out = bench.path("out.toml");
    let cannot = |policy: &str, more: &[&str], word: &str| {
        let words = args(&bench, policy, out.str(), more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        refused(&words, word);
    };
    cannot("fifo", &[], "no options to search");
    cannot("dally,fifo", &[], "one policy at a time");
    cannot("nobody", &[], "unknown policy");
    cannot("tiresias", &["--vary", "tiresias.placing=strict"], "--set");
    fs::write(&out, "").expect("it is written");
    cannot("tiresias", &[], "exists");
}
