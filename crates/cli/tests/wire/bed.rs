//! A server on free ports with a small model, ended with its test.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hither_load::drive::runtime;
use hither_load::wire::{Connections, Prepared, Reply};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The model of most tests: `dense` [-1, 4] and `sparse` [-1, 3], one id in each of three tables of 50
/// rows. The transcript's model takes the same.
pub const MODEL: &str = "identity";
pub const ROWS: i64 = 50;

/// A model in our own form, small enough to be made for every test.
const SPEC: &[&str] =
    &["--tables", "3", "--rows", "50", "--dim", "8", "--bottom", "4-8-8", "--top", "8-1"];

pub struct Server {
    child: Child,
    pub http: String,
    pub grpc: String,
    pub metrics: String,
    /// Everything that it printed so far.
    log: Arc<Mutex<String>>,
    _dir: TempDir,
}

pub fn hither<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hither"));
    // The tester's own settings must not decide the outcome.
    for name in ["HITHER_SEED", "HITHER_THREADS", "HITHER_QUIET", "HITHER_TOKEN"] {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs a command that must succeed.
pub fn done(mut command: Command) -> Output {
    let output = command.output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stderr}", output.status);
    output
}

impl Server {
    /// Serves the small model with further lines of config.toml and further words of the command.
    pub fn start(config: &str, words: &[&str]) -> Self {
        Self::with_model(SPEC, &format!("ids_per_bag = 1\nmax_batch_size = 64\n{config}"), words)
    }

    /// Serves a generated model.
    pub fn with_model(spec: &[&str], config: &str, words: &[&str]) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let model = dir.path().join("models").join(MODEL);
        std::fs::create_dir_all(&model).expect("a directory for the model");
        let version: PathBuf = model.join("1");
        let out = version.to_str().expect("temporary paths are text");
        let own = ["model", "generate", "--preset", "mlperf", "-o", out];
        done(hither(&[&own[..], spec].concat()));
        std::fs::write(model.join("config.toml"), config).expect("the configuration is written");
        Self::serve(dir, words)
    }

    fn serve(dir: TempDir, words: &[&str]) -> Self {
        let models = dir.path().join("models");
        let ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"];
        let own = ["serve", models.to_str().expect("text"), "--threads", "1"];
        let mut command = hither(&[&own[..], &ports[..], words].concat());
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = Arc::new(Mutex::new(String::new()));
        let (send, receive) = std::sync::mpsc::channel();
        let lines = BufReader::new(child.stderr.take().expect("it is a pipe")).lines();
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if line.starts_with("serving HTTP on ") {
                    let _ = send.send(line.clone());
                }
                let mut kept = kept.lock().expect("nobody panics with it");
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let Ok(line) = receive.recv_timeout(Duration::from_secs(120)) else {
            let _ = child.kill();
            panic!("the server does not start: {}", log.lock().expect("nobody panics with it"));
        };
        // serving HTTP on A, gRPC on B, metrics on C
        let addresses: Vec<&str> =
            line.split([' ', ',']).filter(|word| word.contains(':')).collect();
        let [http, grpc, metrics] = addresses[..] else { panic!("three ports in `{line}`") };
        Self {
            http: http.into(),
            grpc: grpc.into(),
            metrics: metrics.into(),
            child,
            log,
            _dir: dir,
        }
    }

    pub fn log(&self) -> String {
        self.log.lock().expect("nobody panics with it").clone()
    }

    /// Its largest resident set so far.
    pub fn peak_bytes(&self) -> u64 {
        self.status_kb("VmHWM:") * 1024
    }

    /// Its resident set now.
    pub fn resident_bytes(&self) -> u64 {
        self.status_kb("VmRSS:") * 1024
    }

    fn status_kb(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the server lives");
        let line = status.lines().find(|line| line.starts_with(name)).expect("Linux has it");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("it is a number")
    }

    /// A good request is still answered, and nothing panicked.
    pub fn assert_well(&self) {
        let answer = self.raw(&good_request());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}\n{}", self.log());
        let log = self.log();
        assert!(!log.contains("panick") && !log.contains("internal error"), "{log}");
    }

    /// Sends bytes on a connection of their own and reads until the server closes it, or for ten
    /// seconds.
    pub fn raw(&self, bytes: &[u8]) -> String {
        self.raw_within(bytes, Duration::from_secs(10))
    }

    /// The same with less patience, for bytes after which a server may wait for more.
    pub fn raw_within(&self, bytes: &[u8], patience: Duration) -> String {
        let mut stream = self.connect();
        stream.set_read_timeout(Some(patience)).expect("a time limit");
        // A server that refuses a request may close before it has read all of it.
        let _ = stream.write_all(bytes);
        self.read(&mut stream)
    }

    pub fn read(&self, stream: &mut TcpStream) -> String {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.http).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time limit");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A whole request over HTTP/1.1, on a connection that is closed behind it.
pub fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    )
    .into_bytes();
    bytes.extend(body);
    bytes
}

pub const INFER: &str = "/v2/models/identity/infer";

pub const GOOD: &str = r#"{"inputs": [
    {"name": "dense", "datatype": "FP32", "shape": [2, 4], "data": [0, 1, 2, 3, 4, 5, 6, 7]},
    {"name": "sparse", "datatype": "INT64", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]}"#;

pub fn good_request() -> Vec<u8> {
    post(INFER, "", GOOD.as_bytes())
}

/// A client of hyper's, for requests that must be exact but not raw.
pub struct Caller {
    pub runtime: Runtime,
    connections: Connections,
}

impl Caller {
    pub fn new(url: &str) -> Self {
        let target = url.parse().expect("an address");
        let runtime = runtime(1).expect("a thread");
        Self { runtime, connections: Connections::new(target, None, 1) }
    }

    /// `Err` where the connection broke off.
    pub fn send(&self, prepared: &Prepared) -> Result<Reply, hither_load::Error> {
        self.runtime.block_on(async {
            let limit = Duration::from_secs(30);
            let exchange = tokio::time::timeout(limit, self.connections.exchange(prepared));
            exchange.await.expect("an answer within half a minute")
        })
    }
}

/// The repository of the tests' fixtures.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire/fixtures").join(name)
}
