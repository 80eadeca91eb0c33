//! The page of the metrics port in a real browser, while requests come.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::bed::{MODEL, Server, hither};

#[test]
fn the_page_shows_throughput_latency_queue_and_stages() {
    if std::env::var_os("HITHER_SKIP_BROWSER").is_some_and(|v| v == "1") {
        eprintln!("HITHER_SKIP_BROWSER=1: the server's page was not opened in a browser");
        return;
    }
    let server = Server::start("", &[]);
    let url = format!("grpc://{}", server.grpc);
    let words =
        ["load", &url, "--samples", "8", "--rate", "200", "--window", "120s", "--threads", "1"];
    let mut load = hither(&words);
    let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/report/check-serve.mjs");
    let page = format!("http://{}/", server.metrics);
    let output = Command::new("node").arg(checker).args([&page, MODEL]).output();
    let _ = load.kill();
    let _ = load.wait();
    let output = output.expect("node is missing: run ./test.sh, which installs it");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
}
