//! Starting, stopping, restarting, and who may ask.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bed::{Server, hither, raw_request, repository, request, sample};

#[test]
fn a_request_in_json_is_answered_and_a_stop_lets_it_end() {
    let models = repository();
    let mut server = Server::start(&[models.path().to_str().unwrap()]);
    let (status, answer) = server.post("/v2/models/dlrm/infer", &sample());
    assert_eq!(status, 200, "{answer}");
    let score = answer["outputs"][0]["data"][0].as_f64().unwrap();
    assert!((0.0..1.0).contains(&score) && answer["outputs"][0]["shape"] == json!([1, 1]));
    assert_eq!(server.get("/v2/health/ready").0, 200);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_kept_connection_does_not_hold_up_the_end() {
    let models = repository();
    let mut server = Server::start(&[models.path().to_str().unwrap()]);
    let _idle = std::net::TcpStream::connect(&server.http).unwrap();
    let mut half = std::net::TcpStream::connect(&server.http).unwrap();
    half.write_all(b"GET /v2 HTTP/1.1\r\n").unwrap();
    server.get("/v2");
    server.signal("TERM");
    let start = Instant::now();
    assert_eq!(server.wait(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_timeout_of_the_request_is_kept() {
    let models = repository();
    // A batch that waits a second for more: the request's own time is over first.
    std::fs::write(models.path().join("dlrm/config.toml"), "[batching]\nwindow_us = 1000000\n")
        .unwrap();
    let server = Server::start(&[models.path().to_str().unwrap()]);
    let mut asked = sample();
    asked["parameters"] = json!({ "timeout": 20_000 });
    asked["id"] = json!("late");
    let start = Instant::now();
    let (status, answer) = server.post("/v2/models/dlrm/infer", &asked);
    assert!(start.elapsed() < Duration::from_millis(900));
    assert_eq!(
        (status, &answer["error"]),
        (503, &json!("[request id: late] Request timeout expired"))
    );
    assert_eq!(
        server.metric(r#"hither_requests_refused{model="dlrm",version="1",reason="timeout"}"#),
        1.0
    );
}

#[test]
fn requests_gather_in_a_window() {
    let models = repository();
    let config = "[batching]\nwindow_us = 300000\nsamples_preferred = [4]\n";
    std::fs::write(models.path().join("dlrm/config.toml"), config).unwrap();
    let server = Server::start(&[models.path().to_str().unwrap()]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(server.post("/v2/models/dlrm/infer", &sample()).0, 200));
        }
    });
    let batches = server.metric(r#"nv_inference_exec_count{model="dlrm",version="1"}"#);
    assert_eq!(batches, 1.0, "four requests in one batch");
}

#[test]
fn a_token_is_asked_for_but_not_by_health() {
    let models = repository();
    let token = models.path().join(".token");
    std::fs::write(&token, "secret\n").unwrap();
    let server =
        Server::start(&[models.path().to_str().unwrap(), "--token-file", token.to_str().unwrap()]);
    let (status, answer) = server.get("/v2");
    assert_eq!(status, 401, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("Bearer"));
    assert_eq!(server.get("/v2/health/ready").0, 200);
    for (given, expected) in [("secret", 200), ("Secret", 401), ("secre", 401)] {
        let header = format!("Authorization: Bearer {given}");
        assert_eq!(request(&server.http, "GET", "/v2", &[&header], b"").0, expected, "{given}");
    }
    std::fs::write(&token, "renewed\n").unwrap();
    server.signal("HUP");
    let header = "Authorization: Bearer renewed";
    server.wait_for("the new token", |server| {
        request(&server.http, "GET", "/v2", &[header], b"").0 == 200
    });
    let header = "Authorization: Bearer secret";
    assert_eq!(request(&server.http, "GET", "/v2", &[header], b"").0, 401, "the old one has gone");
}

#[test]
fn settings_come_from_a_file_then_the_environment_then_flags() {
    let models = repository();
    let file = models.path().join(".serve.toml");
    let text = format!("model_repository = {:?}\nrequest_bytes_max = 1\n", models.path());
    std::fs::write(&file, text).unwrap();
    let body = sample();
    let asked = |args: &[&str], variable: Option<&str>| {
        let server = Server::start_with(args, |command| {
            if let Some(value) = variable {
                command.env("HITHER_REQUEST_BYTES_MAX", value);
            }
        });
        server.post("/v2/models/dlrm/infer", &body).0
    };
    let config = ["--config", file.to_str().unwrap()];
    assert_eq!(asked(&config, None), 413, "the file's limit");
    assert_eq!(asked(&config, Some("100000")), 200, "the environment's");
    let flag = [&config[..], &["--request-bytes-max", "2"]].concat();
    assert_eq!(asked(&flag, Some("100000")), 413, "the flag's");
}

#[test]
fn a_killed_server_serves_a_large_model_again_at_once() {
    let dir = TempDir::new().unwrap();
    let model = dir.path().join("large/1");
    large_model(&model, 10 << 30);
    let config = "pages = \"mapped\"\nids_per_bag = 1\n";
    std::fs::write(dir.path().join("large/config.toml"), config).unwrap();
    let asked = json!({ "inputs": [
        { "name": "dense", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 0.25] },
        { "name": "sparse", "datatype": "INT64", "shape": [1, 1], "data": [12_345_678] },
    ] });
    let path = dir.path().to_str().unwrap();
    let server = Server::start(&[path]);
    let (status, first) = server.post("/v2/models/large/infer", &asked);
    assert_eq!(status, 200, "{first}");
    server.signal("KILL");
    drop(server);
    // The best of some, because other programs may have the processor meanwhile.
    let times = (0..5).map(|_| {
        let start = Instant::now();
        let server = Server::start(&[path]);
        let (status, again) = server.post("/v2/models/large/infer", &asked);
        assert_eq!((status, &again["outputs"]), (200, &first["outputs"]));
        server.signal("KILL");
        start.elapsed()
    });
    let best = times.min().unwrap();
    assert!(best < Duration::from_secs(1), "{best:?} from start to answer");
}

/// A model whose one table is a hole in its file.
fn large_model(dir: &std::path::Path, bytes: u64) {
    let (rows, dim) = (bytes / 64, 16);
    std::fs::create_dir_all(dir).unwrap();
    let toml = format!(
        "name = \"large\"\ninteraction = \"dot\"\nsigmoid = true\nbottom = [2, {dim}]\n\
         top = [{}, 1]\n[[table]]\nname = \"t0\"\nrows = {rows}\ndim = {dim}\n\
         dtype = \"fp32\"\npooling = \"sum\"\n",
        dim + 1
    );
    std::fs::write(dir.join("model.toml"), toml).unwrap();
    let mut offset = 0u64;
    let mut header = serde_json::Map::new();
    for (name, shape) in [
        ("bot_l.0.weight", vec![dim, 2]),
        ("bot_l.0.bias", vec![dim]),
        ("top_l.0.weight", vec![1, dim + 1]),
        ("top_l.0.bias", vec![1]),
        ("emb_l.0.weight", vec![rows, dim]),
    ] {
        let end = offset + shape.iter().product::<u64>() * 4;
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [offset, end] });
        header.insert(name.into(), entry);
        offset = end;
    }
    let mut header = Value::Object(header).to_string();
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    let mut file = std::fs::File::create(dir.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let weights = vec![0.125f32; 2 * dim as usize];
    file.write_all(&weights.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    file.set_len(8 + header.len() as u64 + offset).unwrap();
}

#[test]
fn repositories_with_nothing_to_serve_are_refused_with_a_hint() {
    let dir = TempDir::new().unwrap();
    let said = |what: &str| {
        let output =
            hither().arg("serve").arg(dir.path()).args(["--http-port", "0"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(what), "{what} in {text}");
    };
    said("has no models");
    std::fs::create_dir(dir.path().join("m")).unwrap();
    said("has no version");
    std::fs::write(dir.path().join("m/config.pbtxt"), "backend: \"python\"").unwrap();
    said("config.pbtxt, which Triton reads");
    std::fs::write(dir.path().join("m/config.toml"), "max_batch_sise = 8\n").unwrap();
    std::fs::create_dir(dir.path().join("m/1")).unwrap();
    said("config.toml:1: unknown field `max_batch_sise`");
    std::fs::write(dir.path().join("m/config.toml"), "max_batch_size = 0\n").unwrap();
    said("max_batch_size = 0: must be at least 1");
    std::fs::remove_file(dir.path().join("m/config.toml")).unwrap();
    said("it has no model.toml");
}

#[test]
fn answers_name_the_trace_of_their_request() {
    let models = repository();
    let server =
        Server::start(&[models.path().to_str().unwrap(), "--log", "debug", "--log-format", "json"]);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let header = format!("traceparent: {trace}");
    let mut asked = sample();
    asked["id"] = json!("traced");
    let body = asked.to_string();
    let (status, head, _) =
        raw_request(&server.http, "POST", "/v2/models/dlrm/infer", &[&header], body.as_bytes());
    assert_eq!(status, 200);
    assert!(head.contains(trace), "{head}");
    let line = server.log.lock().unwrap().iter().find(|line| line.contains("traced")).unwrap();
    let line: Value = serde_json::from_str(&line).expect("a line of JSON");
    assert_eq!(
        (&line["id"], &line["trace"], &line["message"]),
        (&json!("traced"), &json!(trace), &json!("answered"))
    );
}

/// Writes a new certificate that signs itself, and its key.
fn certificate(cert: &str, key: &str) {
    certificate_with(cert, key, &[]);
}

fn certificate_with(cert: &str, key: &str, more: &[&str]) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert])
        .args(more)
        .output()
        .expect("openssl starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn both_protocols_can_be_encrypted() {
    let models = repository();
    let (cert, key) = (models.path().join(".cert.pem"), models.path().join(".key.pem"));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let file = |name: &str| models.path().join(name).to_str().unwrap().to_owned();
    let (authority, signer) = (&file(".ca.pem"), &file(".ca.key"));
    certificate(authority, signer);
    let signed = ["-CA", authority, "-CAkey", signer, "-addext", "basicConstraints=CA:FALSE"];
    certificate_with(cert, key, &signed);
    let server =
        Server::start(&[models.path().to_str().unwrap(), "--tls-cert", cert, "--tls-key", key]);
    let asked = |http: &str, address: &str, path: &str| {
        let output = Command::new("curl")
            .args(["-sS", "--cacert", authority, http, "-o", "/dev/null", "-w", "%{http_code}"])
            .arg(format!("https://{address}{path}"))
            .output()
            .expect("curl starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(asked("--http1.1", &server.http, "/v2/models/dlrm"), "200");
    // A gRPC port answers HTTP/2; without gRPC's content type it says so.
    assert_eq!(asked("--http2", &server.grpc, "/v2"), "200");
    assert_eq!(server.metric("hither_requests_unknown_model"), 0.0, "metrics stay plain");
    for url in [format!("https://{}", server.http), format!("grpcs://{}", server.grpc)] {
        let load = |words: &[&str]| {
            let mut command = hither();
            command.args(["load", &url, "--model", "dlrm", "--concurrency", "1", "--pooling", "2"]);
            command.args(["--warmup", "10ms", "--window", "100ms", "--windows", "1"]).args(words);
            command.output().expect("hither starts")
        };
        let output = load(&["--tls-ca", authority]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = load(&[]);
        assert_eq!(output.status.code(), Some(2), "no authority is known");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--tls-ca"));
    }
    let output = hither().args(["serve", "--demo", "--tls-cert", cert]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--tls-cert needs --tls-key"));
}

/// A call of the health service that goes on until the server ends it. Returns when the first answer is here.
fn watch_health(server: &Server, answers: &Path) -> Child {
    let mut watch = Command::new("curl")
        .args(["-sS", "--http2-prior-knowledge", "--data-binary", "@-", "--no-buffer"])
        .arg("-o")
        .arg(answers)
        .args(["-H", "content-type: application/grpc", "-H", "te: trailers"])
        .arg(format!("http://{}/grpc.health.v1.Health/Watch", server.grpc))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("curl starts");
    watch.stdin.take().expect("a pipe").write_all(&[0; 5]).expect("an empty message");
    let has_answer = || std::fs::metadata(answers).is_ok_and(|file| file.len() > 0);
    server.wait_for("the first state", |_| has_answer());
    watch
}

#[test]
fn a_stop_closes_the_port_ends_watches_and_answers_what_has_begun() {
    let models = repository();
    std::fs::write(models.path().join("dlrm/config.toml"), "[batching]\nwindow_us = 1500000\n")
        .unwrap();
    let mut server = Server::start(&[models.path().to_str().unwrap(), "--drain-s", "50"]);
    let watch = watch_health(&server, &models.path().join(".watch"));
    let waiting = r#"nv_inference_pending_request_count{model="dlrm",version="1"}"#;
    let start = std::thread::scope(|scope| {
        let begun = scope.spawn(|| server.post("/v2/models/dlrm/infer", &sample()).0);
        server.wait_for("a request that waits", |server| server.metric(waiting) == 1.0);
        server.signal("TERM");
        let start = Instant::now();
        let refused = || std::net::TcpStream::connect(&server.http).is_err();
        server.wait_for("the port closes", |_| refused());
        assert!(!begun.is_finished(), "the port closed only after the last answer");
        assert_eq!(begun.join().expect("a status"), 200, "it had begun");
        start
    });
    assert_eq!(server.wait(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(20), "a watch held up the end");
    let watched = watch.wait_with_output().expect("curl ends");
    assert!(watched.status.success(), "{}", String::from_utf8_lossy(&watched.stderr));
}

#[test]
fn models_are_changed_only_by_those_who_may() {
    let models = repository();
    let path = models.path().to_str().unwrap();
    let (token, control) = (models.path().join(".token"), models.path().join(".control"));
    std::fs::write(&token, "secret").unwrap();
    std::fs::write(&control, "other").unwrap();
    let (token, control) = (token.to_str().unwrap(), control.to_str().unwrap());
    let post = |server: &Server, what: &str, given: &str| {
        let header = format!("Authorization: Bearer {given}");
        let path = format!("/v2/repository/models/dlrm/{what}");
        request(&server.http, "POST", &path, &[&header], b"")
    };
    let closed = Server::start(&[path, "--token-file", token]);
    let (status, answer) = post(&closed, "unload", "secret");
    assert_eq!(status, 403, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("--allow-control"), "{answer}");
    let open = Server::start(&[path, "--token-file", token, "--control-token-file", control]);
    assert_eq!(post(&open, "unload", "secret").0, 401);
    assert_eq!(post(&open, "unload", "other").0, 200);
    assert_eq!(post(&open, "load", "other").0, 200);
}

#[test]
fn a_score_that_is_not_finite_is_refused_and_counted() {
    let models = repository();
    let server = Server::start(&[models.path().to_str().unwrap()]);
    let mut asked = sample();
    asked["inputs"][0]["data"] = json!(vec![1e39; 13]);
    asked["id"] = json!("odd");
    let (status, answer) = server.post("/v2/models/dlrm/infer", &asked);
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(status == 400 && error.contains("[request id: odd] the score of sample 0"), "{answer}");
    let refused = r#"hither_not_finite_requests{model="dlrm",version="1"}"#;
    assert_eq!(server.metric(refused), 1.0);
    std::fs::write(models.path().join("dlrm/config.toml"), "allow_not_finite = true\n").unwrap();
    server.signal("HUP");
    server.wait_for("the switch", |server| server.post("/v2/models/dlrm/infer", &asked).0 == 200);
}

#[test]
fn certificates_are_read_again_and_clients_may_have_to_show_theirs() {
    let models = repository();
    let file = |name: &str| models.path().join(name).to_str().unwrap().to_owned();
    let (cert, key, old) = (file(".cert.pem"), file(".key.pem"), file(".old.pem"));
    certificate(&cert, &key);
    std::fs::copy(&cert, &old).unwrap();
    let (authority, signer) = (file(".ca.pem"), file(".ca.key"));
    certificate(&authority, &signer);
    let client = (file(".client.pem"), file(".client.key"));
    let signed = ["-CA", &authority, "-CAkey", &signer, "-addext", "basicConstraints=CA:FALSE"];
    certificate_with(&client.0, &client.1, &signed);
    let models = models.path().to_str().unwrap();
    let identity = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &authority];
    let server = Server::start(&[&[models][..], &identity].concat());
    let asked = |authority: &str, shown: &[&str]| {
        let output = Command::new("curl")
            .args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", authority])
            .args(shown)
            .arg(format!("https://{}/v2", server.http))
            .output()
            .expect("curl starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = ["--cert", &client.0, "--key", &client.1];
    assert_eq!(asked(&cert, &shown), "200");
    assert_eq!(asked(&cert, &[]), "000", "no certificate of the client");
    certificate(&cert, &key);
    server.signal("HUP");
    server.wait_for("the new certificate", |_| asked(&cert, &shown) == "200");
    assert_eq!(asked(&old, &shown), "000", "the old one has gone");
}

#[test]
fn an_open_server_is_warned_of_and_keeps_its_metrics_to_itself() {
    let models = repository();
    let server = Server::start(&[models.path().to_str().unwrap(), "--host", "0.0.0.0"]);
    assert!(server.http.starts_with("0.0.0.0:"), "{}", server.http);
    assert!(server.metrics.starts_with("127.0.0.1:"), "{}", server.metrics);
    let warnings = server.before.iter().filter(|line| line.contains("WARN")).count();
    assert_eq!(warnings, 1, "{:?}", server.before);
    let output = hither()
        .args(["serve", "--demo", "--host", "0.0.0.0", "--shared-memory"])
        .args(["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"])
        .output()
        .expect("hither starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--shared-memory"));
}
