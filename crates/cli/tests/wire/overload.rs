//! More than the server can take: the surplus is refused at once, memory stays, and it recovers.
//! `bench/server/overload.py` measures the same for a minute; here only behaviour is asserted.

use serde_json::Value;

use crate::bed::{Server, done, hither};

/// A model that takes long enough per request for a client on the same machine to overload it.
const HEAVY: &[&str] = &[
    "--tables",
    "8",
    "--rows",
    "1000",
    "--dim",
    "64",
    "--bottom",
    "64-512-64",
    "--top",
    "2048-2048-1024-1",
];
/// Requests that may wait.
const QUEUE: &str =
    "max_batch_size = 64\nids_per_bag = 4\n[batching]\nqueue_requests_max = 16\nsamples_max = 64\n";

fn load(server: &Server, words: &[&str]) -> Value {
    let url = format!("grpc://{}", server.grpc);
    let own = ["load", &url, "--samples", "32", "--json", "--threads", "1", "--warmup", "300ms"];
    let output = done(hither(&[&own[..], words].concat()));
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    value["levels"][0].clone()
}

#[test]
fn surplus_is_refused_and_the_server_recovers() {
    let server = Server::with_model(HEAVY, QUEUE, &[]);
    let capacity =
        load(&server, &["--concurrency", "8", "--window", "500ms", "--windows-max", "4"]);
    let capacity = capacity["answered_per_s"].as_f64().expect("a rate");
    let before = server.resident_bytes();

    let rate = format!("{:.0}", 3.0 * capacity);
    let long = ["--rate", &rate, "--window", "500ms", "--windows", "4", "--windows-max", "4"];
    let over = load(&server, &long);
    let count = |name: &str| over[name].as_u64().expect("a number");
    assert!(count("refused") > 0, "{over}");
    assert!(count("answered") > 0, "{over}");
    assert_eq!((count("failed"), count("timed_out")), (0, 0), "{over}");
    // A queue of sixteen requests holds little; sixty-four megabytes would be a leak.
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");

    let rate = format!("{:.0}", (0.1 * capacity).max(2.0));
    let calm =
        load(&server, &["--rate", &rate, "--window", "1s", "--windows", "1", "--windows-max", "2"]);
    assert_eq!(calm["refused"], 0, "{calm}");
    assert!(calm["answered"].as_u64() > Some(0), "{calm}");
}
