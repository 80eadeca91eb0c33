//! Black-box tests of the binary.

mod bad_inputs;
mod bench;
mod dataset;
mod exec_policy;
mod files;
mod help;
mod links;
mod model;
mod model_run;
mod oracle;
mod partition;
mod plan;
mod predict;
mod readme;
mod results;
mod suites;
mod sweep;
mod traces;
mod train;
mod train_refused;
mod tune;

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hither"));
    // The tester's own settings must not decide the outcome.
    for name in ["HITHER_SEED", "HITHER_THREADS", "HITHER_QUIET"] {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

fn hither<S: AsRef<OsStr>>(args: &[S]) -> Output {
    command(args).output().expect("the program starts")
}

/// Standard output of a command that must succeed.
fn stdout_of<S: AsRef<OsStr>>(args: &[S]) -> String {
    let output = hither(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stderr}", output.status);
    String::from_utf8(output.stdout).expect("results are text")
}

fn json_of<S: AsRef<OsStr>>(args: &[S]) -> Value {
    serde_json::from_str(&stdout_of(args)).expect("--json prints JSON")
}

/// A directory with a small trace and a cluster that it fills.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { dir: TempDir::new().expect("a temporary directory") };
        let trace = bench.path("trace.csv");
        stdout_of(&[
            "trace",
            "generate",
            "--jobs",
            "120",
            "--load",
            "1.2",
            "--gpus",
            "64",
            "--demand",
            "1:1,4:2,8:3,16:2,32:1",
            "--duration",
            "3000:1",
            "--seed",
            "5",
            "-o",
            trace.str(),
        ]);
        let cluster = "[[rack]]\ncount = 4\nmachines = 4\ngpus = 4\n";
        std::fs::write(bench.path("cluster.toml"), cluster).expect("the cluster is written");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("the file is written");
        path
    }

    /// `hither simulate` on the bench's own files.
    fn simulate(&self, more: &[&str]) -> Vec<String> {
        self.run("simulate", more)
    }

    /// `simulate` or `sweep` on the bench's own files.
    fn run(&self, name: &str, more: &[&str]) -> Vec<String> {
        let (trace, cluster) = (self.path("trace.csv"), self.path("cluster.toml"));
        let own = [name, trace.str(), "--cluster", cluster.str()];
        own.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }
}

trait PathStr {
    fn str(&self) -> &str;
}

impl PathStr for Path {
    fn str(&self) -> &str {
        self.to_str().expect("temporary paths are text")
    }
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(stdout_of(&["completions", shell]).contains("simulate"), "{shell}");
    }
}

#[test]
fn doctor_tells_what_is_there() {
    let facts = json_of(&["doctor", "--json"]);
    assert!(facts["cpu"]["cores"].as_u64() > Some(0));
    assert!(facts["cpu"]["features"]["avx2"].is_boolean());
    assert!(facts["memory"]["page_bytes"].as_u64() >= Some(4096));
    assert!(facts["programs"].as_array().is_some_and(|p| !p.is_empty()));
    assert!(stdout_of(&["doctor"]).contains("processor"));
}

#[test]
fn vopr_passes_and_counts() {
    let text = stdout_of(&["vopr", "--seeds", "2000"]);
    assert!(text.starts_with("2000 scenarios, 0 failed (dally "), "{text}");
}

#[test]
fn a_trace_comes_through_a_pipe() {
    let bench = Bench::new();
    let content = std::fs::read(bench.path("trace.csv")).expect("the trace reads");
    let mut child = command(&["trace", "convert", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(&content).expect("it reads all");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert_eq!(output.stdout, content, "our own format converts to itself");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = command(&["trace", "generate", "--jobs", "100000", "--span-h", "100"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !stderr.contains("error"), "{stderr}");
}
