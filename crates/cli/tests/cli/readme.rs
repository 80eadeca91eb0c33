//! Every command in README.md, and the first ones of every page in docs, run as they stand, in order, in
//! one directory.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Commands that set up the machine or run this very test suite.
const SET_UP: [&str; 2] = ["./test.sh", "cargo install --path crates/cli"];
const CARGO_RUN: &str = "cargo run --release --no-default-features -- ";

/// Indented lines of a Markdown page: the project's way of writing commands. Lines that end in a
/// backslash are joined with the next.
fn commands(page: &str) -> Vec<String> {
    let mut commands: Vec<String> = vec![];
    let mut is_open = false;
    for line in page.lines().filter_map(|line| line.strip_prefix("    ")) {
        let (text, more) = line.strip_suffix('\\').map_or((line, false), |text| (text, true));
        match commands.last_mut().filter(|_| is_open) {
            Some(command) => command.push_str(text.trim_start()),
            None => commands.push(text.to_owned()),
        }
        is_open = more;
    }
    commands
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// A directory that looks like a clone, with the program on its path.
struct Place {
    dir: TempDir,
    path: OsString,
}

impl Place {
    fn new() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        for name in ["examples", "bench", "docs"] {
            symlink(root().join(name), dir.path().join(name)).expect("a link");
        }
        let programs = dir.path().join("bin");
        fs::create_dir(&programs).expect("a directory");
        symlink(env!("CARGO_BIN_EXE_hither"), programs.join("hither")).expect("a link");
        let others = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([programs].into_iter().chain(env::split_paths(&others)));
        Self { dir, path: path.expect("a search path") }
    }

    /// Runs a command that must succeed. Words behind a `#` are a comment.
    fn run(&self, command: &str) {
        let bare = command.split(" #").next().unwrap_or_default().trim();
        assert!(bare.starts_with("hither "), "not a command of ours: {bare}");
        let mut shell = Command::new("sh");
        shell.args(["-c", bare]).current_dir(self.dir.path()).env("PATH", &self.path);
        for name in ["HITHER_SEED", "HITHER_THREADS", "HITHER_QUIET"] {
            shell.env_remove(name);
        }
        let output = shell.stdin(Stdio::null()).output().expect("sh starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{bare}\n{stderr}");
    }
}

#[test]
fn every_command_of_the_readme_runs() {
    let page = fs::read_to_string(root().join("README.md")).expect("README.md");
    let place = Place::new();
    let mut ran = 0;
    for command in commands(&page) {
        let bare = command.split(" #").next().unwrap_or_default().trim();
        if !SET_UP.contains(&bare) {
            place.run(&command.replace(CARGO_RUN, "hither "));
            ran += 1;
        }
    }
    assert!(ran >= 10, "README.md shows only {ran} commands");
}

/// The block of commands that a page starts with.
fn first_commands(page: &str) -> Vec<String> {
    let block = page.lines().skip_while(|line| !line.starts_with("    hither "));
    let block: Vec<&str> = block.take_while(|line| line.starts_with("    ")).collect();
    commands(&block.join("\n"))
}

/// A page starts with commands that a reader can type. Pages about traces are tested in full elsewhere;
/// those about results and about a cluster need data and daemons.
#[test]
fn pages_start_with_commands_that_run() {
    let formats = ["graph", "model", "outputs", "partition", "plan", "requests", "training"];
    let pages = formats.map(|page| format!("docs/formats/{page}.md")).into_iter();
    for page in
        pages.chain(["docs/serving.md", "docs/training.md", "docs/links.md"].map(Into::into))
    {
        let place = Place::new();
        let text = fs::read_to_string(root().join(&page)).expect("the page");
        let commands = first_commands(&text);
        assert!(!commands.is_empty(), "{page} starts with no command");
        commands.iter().for_each(|command| place.run(command));
    }
}
