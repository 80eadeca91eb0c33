//! `hither train`: everything that is refused.

use std::fs;

use crate::bad_inputs::refused;
use crate::train::{Place, json, read};
use crate::{PathStr, hither, stdout_of};

#[test]
fn directories_that_are_not_ours_stay() {
    let place = Place::new();
    let out = place.path("out");
    let own = |more: &[&str]| place.train(&[&["-o", out.str()], more].concat());
    let text = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let is_refused = |words: Vec<String>, told: &str| {
        let text = text(&words);
        refused(&text.split('\n').collect::<Vec<_>>(), told);
    };
    fs::create_dir(&out).expect("made");
    fs::write(out.join("notes.txt"), "mine").expect("written");
    is_refused(own(&[]), "is not empty");
    is_refused(own(&["--resume"]), "holds no run to resume");
    stdout_of(&own(&["--force"]));
    is_refused(own(&[]), "--resume continues it, --force replaces it");
    is_refused(own(&["--resume", "--lr", "0.5"]), "its lr is 0.01, not 0.5");
    is_refused(own(&["--resume", "--mode", "ggs"]), "its mode is \"llcg\", not \"ggs\"");
    is_refused(own(&["--resume", "--parts", "4"]), "its parts is 3, not 4");
    stdout_of(&own(&["--force", "--lr", "0.5"]));
    assert_eq!(read(out.join("notes.txt")), b"mine");
    // Damaged files of a run are told, or done again.
    let words = own(&["--resume", "--lr", "0.5"]);
    fs::write(out.join("summary.json"), "{").expect("written");
    stdout_of(&words);
    assert_eq!(json(out.join("summary.json"))["runs"].as_array().map(Vec::len), Some(1));
    fs::remove_file(out.join("summary.json")).expect("removed");
    fs::write(out.join("checkpoint.safetensors"), "not tensors").expect("written");
    is_refused(words, "checkpoint.safetensors");
}

#[test]
fn flags_that_make_no_sense() {
    let place = Place::new();
    let (graph, out) = (place.graph(), place.path("out"));
    let cases: &[(&[&str], &str)] = &[
        (&["--mode", "best"], "psgd-pa"),
        (&["--model", "rnn"], "appnp"),
        (&["--model", "sage,rnn"], "no layer is named `rnn`"),
        (&["--model", "linear,propagate"], "propagation"),
        (&["--layers", "0"], "--layers"),
        (&["--layers", "65"], "--layers"),
        (&["--hidden", "0"], "--hidden"),
        (&["--hidden", "-3"], "--hidden"),
        (&["--model", "gat", "--heads", "7"], "64 hidden units cannot be shared by 7 heads"),
        (&["--norm", "left"], "symmetric or mean"),
        (&["--dropout", "1"], "--dropout"),
        (&["--dropout", "-0.1"], "--dropout"),
        (&["--alpha", "2"], "--alpha"),
        (&["--parts", "0"], "--parts"),
        (&["--parts", "401"], "401 parts"),
        (&["--parts", "99999999"], "--parts"),
        (&["--partition", "best"], "fennel"),
        (&["--partition-file", "absent.parts"], "absent.parts"),
        (&["--partition-file", "a", "--partition", "ldg"], "--partition"),
        (&["--copies", "1.5"], "--copies"),
        (&["--local-steps", "0"], "--local-steps"),
        (&["--rho", "0"], "--rho"),
        (&["--rho", "nan"], "--rho"),
        (&["--rho", "2", "--rounds", "100"], "lower one of them"),
        (&["--lr", "0"], "--lr"),
        (&["--lr", "inf"], "--lr"),
        (&["--lr", "-1"], "--lr"),
        (&["--server-lr", "0"], "--server-lr"),
        (&["--batch", "0"], "or `full`"),
        (&["--batch", "some"], "or `full`"),
        (&["--fanout", "0"], "or `all`"),
        (&["--fanout", "5,"], "or `all`"),
        (&["--fanout", "5,all"], "or `all`"),
        (&["--fanout", "15,10,5"], "--fanout has 3 numbers, but the model has 2 graph layers"),
        (&["--model", "gcn,linear", "--server-fanout", "5,3"], "has 1 graph layer;"),
        (&["--server-batch", "-1"], "or `full`"),
        (&["--server-fanout", "few"], "or `all`"),
        (&["--server-steps", "-1"], "or `auto`"),
        (&["--server-share", "-1"], "--server-share"),
        (&["--link-gbit", "0"], "--link-gbit"),
        (&["--machine", "10"], "two numbers such as 40,80"),
        (&["--mode", "server-only"], "give a number of --server-steps"),
        (&["--optimiser", "lbfgs"], "adam and sgd"),
        (&["--weight-decay", "-1"], "--weight-decay"),
        (&["--rounds", "0"], "--rounds"),
        (&["--eval-every", "0"], "--eval-every"),
        (&["--patience", "0"], "--patience"),
        (&["--runs", "0"], "--runs"),
        (&["--seed", "x"], "--seed"),
        (&["--seed", "18446744073709551615", "--runs", "2"], "is too large for 2 runs"),
        (&["--checkpoint-every", "0"], "--checkpoint-every"),
        (&["--format", "excel"], "planetoid"),
    ];
    for (more, told) in cases.iter().copied() {
        refused(&[&["train", &graph, "-o", out.str()], more].concat(), told);
    }
    assert!(!out.exists(), "nothing is written before all is known to be right");
    refused(&["train"], "DATASET");
    refused(&["train", "compare"], "DATASET");
    refused(&["train", place.path("absent.npz").str()], "absent.npz");
    refused(&["train", &graph, "--resume"], "--output");
    refused(&["train", "compare", &graph, "--modes", "llcg,best"], "no mode is named `best`");
    refused(&["train", "compare", &graph, "--modes", ""], "no mode");
    refused(
        &["train", "compare", &graph, "--modes", "single,server-only"],
        "use `train compare` with llcg",
    );
    refused(&["train", &graph, "--lr", "1000", "--optimiser", "sgd", "--rounds", "40"], "diverged");
    let output = hither(&["train", &graph, "compare", &graph]);
    assert_eq!(output.status.code(), Some(2));
}

/// The script would start several ranks of a program that cannot join them.
#[cfg(not(feature = "mpi"))]
#[test]
fn a_program_without_mpi_writes_no_script_for_ranks() {
    let place = Place::new();
    let (graph, parts, out) = (place.graph(), place.path("parts"), place.path("out"));
    stdout_of(&["partition", &graph, "--parts", "2", "--write", parts.str()]);
    let words = ["submit", "train", parts.str(), "-o", out.str()];
    refused(&words, "built without MPI");
    refused(&words, "--features mpi");
}
