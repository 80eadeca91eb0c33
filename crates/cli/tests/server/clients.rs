//! Triton's clients, unchanged.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::bed::{Server, fixture, repository};

/// Where `test.sh` installs the clients.
fn installed(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target directory");
    let path = target.join("clients").join(name);
    assert!(path.exists(), "{} is missing: run ./test.sh, which installs it", path.display());
    path
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn triton_clients_get_the_answers_of_pytorch() {
    let repository = repository();
    let models = repository.path().to_str().expect("a path");
    let server = Server::start(&[models, "--allow-control", "--shared-memory"]);
    let output = Command::new(installed("venv/bin/python"))
        .arg(root().join("e2e/server/clients.py"))
        .args([&server.http, &server.grpc, &server.metrics])
        .arg(fixture("dlrm.expected.safetensors"))
        .output()
        .expect("python starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.lines().count() > 150, "{text}");
}

#[test]
fn the_demo_prints_requests_that_work() {
    let server = Server::start(&["--demo"]);
    let text = demo_text(&server);
    for line in ["curl -s", "python3 -c"] {
        let start = text.find(line).unwrap_or_else(|| panic!("no {line} in\n{text}"));
        let end = text[start..].find("\n\n").map_or(text.len(), |end| start + end);
        let venv = installed("venv/bin");
        let path = format!("{}:{}", venv.display(), std::env::var("PATH").unwrap_or_default());
        let output = Command::new("sh").args(["-c", &text[start..end]]).env("PATH", path).output();
        let output = output.expect("sh starts");
        let found = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && found.contains("0."), "{line}: {found}\n{errors}");
    }
}

/// What the demo printed: its output goes to a file, as the pipe belongs to the log.
fn demo_text(server: &Server) -> String {
    std::fs::read_to_string(&server.output).expect("the output")
}

#[test]
fn perf_analyzer_measures_it() {
    let server = Server::start(&["--demo", "--shared-memory"]);
    let tool = installed("perf_analyzer");
    let binary = tool.join("bin/perf_analyzer");
    let libraries = tool.join("nvidia/cuda_runtime/lib");
    let samples: Vec<_> = (0..64)
        .map(|sample: usize| {
            let ids: Vec<usize> =
                (0..26).map(|table| (sample * 7919 + table * 104729) % 10_000).collect();
            json!({ "dense": vec![sample as f64 / 64.0; 13], "sparse": ids })
        })
        .collect();
    let data = server.output.with_extension("json");
    std::fs::write(&data, json!({ "data": samples }).to_string()).expect("written");
    let ways = [
        ("grpc", &server.grpc, "none"),
        ("http", &server.http, "none"),
        ("grpc", &server.grpc, "system"),
        ("http", &server.http, "system"),
    ];
    for (protocol, address, shared_memory) in ways {
        let csv = server.output.with_extension(format!("{protocol}-{shared_memory}"));
        let output = Command::new(&binary)
            .args(["-m", "demo", "-i", protocol, "-u", address, "-b", "16"])
            .args(["--shared-memory", shared_memory])
            .args(["--concurrency-range", "2", "-p", "500", "-s", "999", "-r", "3", "-f"])
            .arg(&csv)
            .arg("--input-data")
            .arg(&data)
            .env("LD_LIBRARY_PATH", &libraries)
            .output()
            .expect("perf_analyzer starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{protocol}: {text}\n{errors}");
        let table = std::fs::read_to_string(&csv).expect("its table");
        let rate: f64 = table
            .lines()
            .nth(1)
            .and_then(|row| row.split(',').nth(1)?.parse().ok())
            .expect("a rate");
        assert!(rate > 10.0, "{table}");
    }
    let samples = server.metric(r#"nv_inference_count{model="demo",version="1"}"#);
    let requests = server.metric(r#"nv_inference_request_success{model="demo",version="1"}"#);
    assert!(samples >= 16.0 * 20.0 && samples == 16.0 * requests, "{samples} in {requests}");
}
