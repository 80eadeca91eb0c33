//! What commands do to the files and directories that they write to.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Bench, PathStr as _, command, hither, stdout_of};

const GENERATE: [&str; 4] = ["trace", "generate", "--jobs", "5"];

fn refused<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> String {
    let output = hither(args);
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_pipe_is_written_through() {
    let bench = Bench::new();
    let pipe = bench.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().expect("cat");
    let args = [&GENERATE[..], &["-o", pipe.str()]].concat();
    stdout_of(&args);
    let read = reader.wait_with_output().expect("cat ends").stdout;
    assert_eq!(String::from_utf8(read).expect("text"), stdout_of(&GENERATE));
    assert!(fs::metadata(&pipe).expect("still there").file_type().is_fifo());
}

#[test]
fn a_device_is_written_through() {
    stdout_of(&[&GENERATE[..], &["-o", "/dev/null"]].concat());
    assert!(fs::metadata("/dev/null").expect("there").file_type().is_char_device());
}

#[test]
fn a_symbolic_link_is_followed() {
    let bench = Bench::new();
    let (link, target) = (bench.path("link.csv"), bench.path("target.csv"));
    symlink("target.csv", &link).expect("a link");
    // The target does not exist yet; then it does.
    for more in [&[][..], &["--force"]] {
        stdout_of(&[&GENERATE[..], &["-o", link.str()], more].concat());
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read_to_string(&target).expect("written"), stdout_of(&GENERATE));
    }
}

#[test]
fn a_dash_is_standard_output() {
    let bench = Bench::new();
    let expected = stdout_of(&GENERATE);
    assert_eq!(stdout_of(&[&GENERATE[..], &["-o", "-"]].concat()), expected);
    assert_eq!(stdout_of(&[&GENERATE[..], &["-o", "/dev/stdout"]].concat()), expected);
    let graph = bench.path("g.graph.safetensors");
    let args = ["dataset", "generate", "--family", "noisy-features", "--nodes", "2000"];
    stdout_of(&[&args[..], &["-o", graph.str()]].concat());
    let through = hither(&[&args[..], &["-o", "-"]].concat());
    assert_eq!(through.stdout, fs::read(&graph).expect("written"));
    let parts = bench.path("parts.txt");
    let args = ["partition", graph.str(), "--parts", "2"];
    stdout_of(&[&args[..], &["-o", parts.str()]].concat());
    let written = fs::read_to_string(&parts).expect("written");
    assert_eq!(stdout_of(&[&args[..], &["-o", "-"]].concat()), written);
    // Several files do not fit into one stream.
    let error = refused(&bench.simulate(&["-o", "-"]));
    assert!(error.contains("give a directory"), "{error}");
    let error = refused(&["plan", "model", "--ids", "ids.txt", "-o", "-"]);
    assert!(error.contains("give a directory"), "{error}");
}

#[test]
fn a_long_name_is_written() {
    let bench = Bench::new();
    let path = bench.path(&format!("{}.csv", "n".repeat(251)));
    stdout_of(&[&GENERATE[..], &["-o", path.str()]].concat());
    assert_eq!(fs::read_to_string(&path).expect("written"), stdout_of(&GENERATE));
}

#[test]
fn an_existing_file_is_replaced_only_by_force() {
    let bench = Bench::new();
    let path = bench.write("mine.csv", "mine");
    let args = [&GENERATE[..], &["-o", path.str()]].concat();
    let error = refused(&args);
    assert!(error.contains("exists; give another -o, or --force"), "{error}");
    assert_eq!(fs::read_to_string(&path).expect("there"), "mine");
    stdout_of(&[&args[..], &["--force"]].concat());
    assert_ne!(fs::read_to_string(&path).expect("there"), "mine");
}

/// Names in a directory, with their contents.
fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("readable"));
    let files = entries.filter(|entry| entry.path().is_file());
    let read = |path: &Path| fs::read(path).expect("readable");
    let mut files: Vec<_> = files
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), read(&entry.path())))
        .collect();
    files.sort();
    files
}

fn small_graph(bench: &Bench) -> PathBuf {
    let graph = bench.path("g.graph.safetensors");
    let words = ["dataset", "generate", "--family", "noisy-features", "--nodes", "2000", "-o"];
    stdout_of(&[&words[..], &[graph.str()]].concat());
    graph
}

#[test]
fn a_directory_that_holds_another_run_stays_as_it_is() {
    let bench = Bench::new();
    let graph = small_graph(&bench);
    let (trained, simulated, model) =
        (bench.path("trained"), bench.path("simulated"), bench.path("model"));
    stdout_of(&["train", graph.str(), "--rounds", "1", "--parts", "2", "-o", trained.str()]);
    stdout_of(&bench.simulate(&["-o", simulated.str()]));
    stdout_of(&["model", "generate", "--tables", "1", "--rows", "10", "-o", model.str()]);
    for dir in [&trained, &simulated, &model] {
        let before = content(dir);
        let commands = [
            bench.simulate(&["-o", dir.str()]),
            bench.run("sweep", &["--vary", "congestion=1,2", "-o", dir.str()]),
            ["train", graph.str(), "--rounds", "1", "-o", dir.str()].map(Into::into).into(),
            ["model", "generate", "--rows", "10", "-o", dir.str()].map(Into::into).into(),
            ["demo", "-o", dir.str()].map(Into::into).into(),
        ];
        for args in commands {
            let error = refused(&args);
            assert!(error.contains("give another -o") || error.contains("--force"), "{error}");
            assert_eq!(content(dir), before, "{args:?}");
        }
    }
    // Force replaces a run of the same kind, and never one of another kind.
    let ids = bench.write("ids.txt", "1\n2\n3\n");
    let plan = ["plan", model.str(), "--ids", ids.str(), "--seconds", "0.01"];
    for (dir, kind) in [(&trained, "a training run"), (&simulated, "a simulation")] {
        let before = content(dir);
        let error = refused(&[&plan[..], &["-o", dir.str(), "--force"]].concat());
        assert!(error.contains(&format!("holds {kind}")), "{error}");
        assert_eq!(content(dir), before);
    }
    let error = refused(&bench.simulate(&["-o", trained.str(), "--force"]));
    assert!(error.contains("holds a training run"), "{error}");
    stdout_of(&bench.simulate(&["-o", simulated.str(), "--force"]));
}

#[test]
fn sizes_are_checked_before_writing() {
    let bench = Bench::new();
    let dir = bench.path("huge");
    let rows = ["--rows", "4000000000", "--tables", "100"];
    let start = Instant::now();
    let error = refused(&[&["model", "generate", "-o", dir.str()][..], &rows].concat());
    assert!(error.contains("it needs 20") && error.contains("are free"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60));
    let left = fs::read_dir(&dir).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing is left behind");
    let graph = ["dataset", "generate", "--family", "noisy-features", "-o", dir.str()];
    let error = refused(&[&graph[..], &["--nodes", "2000000000"]].concat());
    assert!(error.contains("of memory") && error.contains("lower --nodes"), "{error}");
    let wide = ["--nodes", "20000000", "--degree", "2", "--features", "100000"];
    let error = refused(&[&graph[..], &wide].concat());
    assert!(error.contains("it needs 8.") && error.contains("are free"), "{error}");
}

/// Waits until something that starts with `prefix` is in a directory.
fn wait_for(dir: &Path, prefix: &str) {
    let start = Instant::now();
    let is_there = || {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.into_iter().any(|e| e.file_name().to_string_lossy().starts_with(prefix))
    };
    while !is_there() {
        assert!(start.elapsed() < Duration::from_secs(60), "{prefix} never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_interrupted_command_leaves_nothing() {
    let bench = Bench::new();
    let dir = bench.path("model");
    let args = ["model", "generate", "--tables", "4", "--rows", "2000000", "-o", dir.str()];
    for signal in ["INT", "TERM"] {
        let mut child = command(&args).stderr(Stdio::null()).spawn().expect("starts");
        wait_for(&dir, ".model.safetensors");
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &id]).status().expect("kill").success());
        assert_eq!(child.wait().expect("ends").code(), None, "ended by the signal");
        let left: Vec<_> = fs::read_dir(&dir).expect("there").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_directory_is_written_to_by_one_command_at_a_time() {
    let bench = Bench::new();
    let graph = small_graph(&bench);
    let dir = bench.path("run");
    let train = ["train", graph.str(), "--rounds", "100000", "--parts", "2", "-o", dir.str()];
    let mut child = command(&train).stderr(Stdio::null()).spawn().expect("starts");
    wait_for(&dir, "metrics.jsonl");
    for more in ["--resume", "--force"] {
        let error = refused(&[&train[..], &[more]].concat());
        assert!(error.contains("another command is writing to"), "{error}");
    }
    let (model, ids) = (bench.path("model"), bench.write("ids.txt", "1\n2\n3\n"));
    stdout_of(&["model", "generate", "--tables", "1", "--rows", "10", "-o", model.str()]);
    let error = refused(&["plan", model.str(), "--ids", ids.str(), "-o", dir.str()]);
    assert!(error.contains("another command is writing to"), "{error}");
    child.kill().expect("killed");
    child.wait().expect("ends");
    // The lock ends with its process.
    let resumed =
        ["train", graph.str(), "--rounds", "1", "--parts", "2", "-o", dir.str(), "--force"];
    stdout_of(&resumed);
}
