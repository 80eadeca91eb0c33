//! `hither load` against `hither serve`.

use serde_json::Value;
use tempfile::TempDir;

use crate::bed::{Server, done, hither};

const SHORT: &[&str] = &[
    "--warmup",
    "100ms",
    "--window",
    "200ms",
    "--windows",
    "2",
    "--windows-max",
    "4",
    "--threads",
    "1",
];

#[test]
fn both_protocols_and_loops_are_measured() {
    let server = Server::start("", &[]);
    let dir = TempDir::new().expect("a temporary directory");
    for (i, (url, levels)) in [
        (format!("http://{}", server.http), ["--concurrency", "1,2"]),
        (format!("grpc://{}", server.grpc), ["--rate", "50:100:50"]),
    ]
    .iter()
    .enumerate()
    {
        let out = dir.path().join(i.to_string());
        let own =
            ["load", url, "--samples", "2", "--slo", "10s", "-o", out.to_str().expect("text")];
        let output = done(hither(&[&own[..], levels, SHORT].concat()));
        let table = String::from_utf8_lossy(&output.stdout);
        assert!(table.contains("p99.9 ms"), "{table}");
        let json = std::fs::read(out.join("load.json")).expect("load.json");
        let json: Value = serde_json::from_slice(&json).expect("JSON");
        assert_eq!(json["model"], "identity");
        for level in json["levels"].as_array().expect("levels") {
            assert!(level["answered"].as_u64() > Some(0), "{level}");
            assert_eq!(level["answered"], level["requests"], "{level}");
            assert!(level["latency"]["p50_us"].as_f64() > Some(0.0), "{level}");
            assert_eq!(level["good_per_s"], level["answered_per_s"], "all are good within 10 s");
            assert!(level["server"]["compute_infer_us"].as_f64() > Some(0.0), "{level}");
        }
        let csv = std::fs::read_to_string(out.join("load.csv")).expect("load.csv");
        let head = ["Concurrency", "Request Rate"][i];
        let perf_analyzer = format!(
            "{head},Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,\
             Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,\
             p50 latency,p90 latency,p95 latency,p99 latency,"
        );
        assert!(csv.starts_with(&perf_analyzer), "{csv}");
        assert_eq!(csv.lines().count(), 3);
        assert!(out.join("load.html").exists());
    }
}

#[test]
fn every_form_of_ids_is_taken() {
    for config in ["inputs = \"joined\"\n", "inputs = \"per-table\"\n"] {
        let server = Server::start(config, &[]);
        let url = format!("grpc://{}", server.grpc);
        let words = ["load", &url, "--samples", "3", "--id-bits", "32", "--json"];
        let output = done(hither(&[&words[..], SHORT].concat()));
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(json["levels"][0]["failed"], 0, "{config}: {json}");
        assert!(json["levels"][0]["answered"].as_u64() > Some(0), "{config}: {json}");
    }
}

#[test]
fn ids_come_from_a_file() {
    let server = Server::start("", &[]);
    let dir = TempDir::new().expect("a temporary directory");
    let ids = dir.path().join("ids.txt");
    let url = format!("http://{}", server.http);
    let words = ["load", &url, "--samples", "2", "--json", "--ids", ids.to_str().expect("text")];
    std::fs::write(&ids, "1\n2\n3\n49\n").expect("it is written");
    let output = done(hither(&[&words[..], SHORT].concat()));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["levels"][0]["failed"], 0, "{json}");
    std::fs::write(&ids, "1\n50\n").expect("it is written");
    let output = hither(&[&words[..], SHORT].concat()).output().expect("it starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("50"), "{error}");
}

#[test]
fn a_search_ends_with_a_rate() {
    let server = Server::start("", &[]);
    let url = format!("grpc://{}", server.grpc);
    let quick = ["--warmup", "10ms", "--window", "50ms", "--windows", "1", "--windows-max", "1"];
    let words = ["load", &url, "--search", "--slo", "500ms", "--precision", "1", "--json"];
    let output = done(hither(&[&words[..], &quick[..]].concat()));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(json["search"]["rate"].as_f64() > Some(0.0), "{json}");
    // One that no server keeps is a negative answer, not an error.
    let words = ["load", &url, "--search", "--slo", "1us", "--precision", "5"];
    let output = hither(&[&words[..], &quick[..]].concat()).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("No rate kept p99 within"));
}

#[test]
fn what_cannot_be_measured_is_one_clear_error() {
    let refused = |words: &[&str], expected: &str| {
        let output = hither(words).output().expect("the program starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(expected), "{words:?}: {error}");
    };
    refused(&["load", "http://127.0.0.1:1"], "is the server running?");
    refused(&["load", "https://127.0.0.1:1"], "--tls-ca");
    refused(&["load", "https://127.0.0.1:1", "--tls-ca", "/no/such.pem"], "/no/such.pem: ");
    refused(&["load", "http://x:1", "--rate", "0"], "is not a number above 0");
    refused(&["load", "http://x:1", "--search"], "--slo");
    let server = Server::start("", &[]);
    let url = format!("http://{}", server.http);
    refused(&["load", &url, "--model", "nosuch"], "unknown model: 'nosuch'");
    refused(&["load", &url, "--samples", "65"], "batch-size must be <= 64");
    refused(&["load", &url, "--tables", "2"], "tables do not share evenly");
}
