//! Standard output, standard error, and files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;

/// Prints a result.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write the result")
}

pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io_error = error.downcast_ref::<io::Error>();
    io_error.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// One line, whatever the message holds.
pub fn say_error(message: &str) {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let line: String = lines.join(" ").chars().filter(|c| !c.is_control()).collect();
    let _ = writeln!(io::stderr(), "error: {line}");
}

/// A file written beside its place, waiting to be put there.
#[must_use]
pub struct Staged {
    temporary: PathBuf,
    path: PathBuf,
}

impl Staged {
    pub fn write(
        path: &Path,
        content: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The same directory, as only inside of one a rename is atomic.
        let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
        let staged = Self { temporary, path: path.into() };
        let write = || -> anyhow::Result<()> {
            let mut file = BufWriter::with_capacity(1 << 18, File::create(&staged.temporary)?);
            content(&mut file)?;
            file.flush()?;
            file.get_ref().sync_all()?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(staged)
    }

    pub fn commit(self) -> anyhow::Result<()> {
        fs::rename(&self.temporary, &self.path)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for Staged {
    /// After a commit there is nothing left to remove, and the error says so to nobody.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Replaces a file in one step.
pub fn write_file(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    Staged::write(path, |out| Ok(out.write_all(content)?))?.commit()
}

/// To a file where one is named, else to standard output.
pub fn write_or_print(path: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match path {
        Some(path) if path.as_os_str() != "-" => write_file(path, text.as_bytes()),
        _ => print(text),
    }
}

pub fn make_dir(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))
}
