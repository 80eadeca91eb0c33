//! A running server, and the models that it serves.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than any step takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server process, killed when dropped.
pub struct Server {
    child: Child,
    pub http: String,
    pub grpc: String,
    pub metrics: String,
    /// What it printed to standard error before its addresses.
    pub before: Vec<String>,
    /// What it prints to standard error after its addresses.
    pub log: Mutex<mpsc::Receiver<String>>,
    /// A file with its standard output, in a directory of its own.
    pub output: PathBuf,
    _dir: TempDir,
}

pub fn hither() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hither"));
    // The tester's own settings must not decide the outcome.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HITHER_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

impl Server {
    /// Starts a server on free ports and waits until it serves.
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(args, |_| ())
    }

    pub fn start_with(args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let mut command = hither();
        command.arg("serve").args(args);
        command.args(["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]);
        change(&mut command);
        let dir = TempDir::new().expect("a directory");
        // It is killed in the end, and then leaves the model of --demo behind.
        command.env("TMPDIR", dir.path());
        let output = dir.path().join("stdout");
        let file = std::fs::File::create(&output).expect("a file");
        let mut child = command.stderr(Stdio::piped()).stdout(file).spawn().expect("hither starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (send, log) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut before = Vec::new();
        let line = loop {
            match log.recv_timeout(PATIENCE) {
                Ok(line) if line.starts_with("serving HTTP on ") => break line,
                Ok(line) => before.push(line),
                Err(error) => panic!("{error}: the server did not start: {before:#?}"),
            }
        };
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| word.contains(':')).collect();
        let [http, grpc, metrics] = words[..] else { panic!("{line}") };
        let (http, grpc, metrics) = (http.into(), grpc.into(), metrics.into());
        Self { child, http, grpc, metrics, before, log: Mutex::new(log), output, _dir: dir }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill");
        assert!(status.success(), "kill -s {name}");
    }

    /// Waits until the process ends by itself; returns its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        request(&self.http, "GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        request(&self.http, "POST", path, &[], body.to_string().as_bytes())
    }

    /// The value of a metric; the name includes its labels.
    pub fn metric(&self, name: &str) -> f64 {
        let (status, _, text) = raw_request(&self.metrics, "GET", "/metrics", &[], b"");
        assert_eq!(status, 200);
        let text = String::from_utf8(text).expect("metrics are text");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
        value.trim().parse().expect("a number")
    }

    /// Waits for a condition that the server reaches by itself.
    pub fn wait_for(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own; the answer's body as JSON, null where it is none.
pub fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> (u16, Value) {
    let (status, _, body) = raw_request(address, method, path, headers, body);
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// As [`request`]: status, head and body.
pub fn raw_request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> (u16, String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for header in headers {
        head += &format!("{header}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes()).expect("sent");
    // A server that refuses early may close before all is sent.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer");
    let head = String::from_utf8(answer[..end].to_vec()).expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, head, answer[end + 4..].to_vec())
}

/// A repository with the fixture checkpoint as `dlrm` and `lists`.
pub fn repository() -> TempDir {
    let dir = TempDir::new().expect("a directory");
    import(&dir.path().join("dlrm/1"));
    import(&dir.path().join("lists/1"));
    std::fs::write(dir.path().join("lists/config.toml"), "inputs = \"per-table\"\n")
        .expect("written");
    dir
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dlrm/tests/fixtures").join(name)
}

pub fn import(to: &Path) {
    std::fs::create_dir_all(to.parent().expect("a parent")).expect("created");
    let status = hither()
        .args(["--quiet", "model", "import"])
        .arg(fixture("dlrm.pt"))
        .arg("-o")
        .arg(to)
        .status();
    assert!(status.expect("hither starts").success());
}

/// A request of one sample for the fixture checkpoint, one id per table.
pub fn sample() -> Value {
    json!({ "inputs": [
        { "name": "dense", "datatype": "FP32", "shape": [1, 13], "data": vec![0.5; 13] },
        { "name": "values", "datatype": "INT64", "shape": [4], "data": [1, 2, 3, 0] },
        { "name": "lengths", "datatype": "INT64", "shape": [4], "data": [1, 1, 1, 1] },
    ] })
}
