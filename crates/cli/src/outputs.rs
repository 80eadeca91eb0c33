//! Standard output, standard error, and what a command leaves on disk: files that are complete or not
//! there, directories that hold one run, and nothing replaced without `--force`.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use hither_data::{Output, output};
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
    let is_broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_broken))
}

/// Prints one line, whatever the message holds.
pub fn say_error(message: &str) {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let line: String = lines.join(" ").chars().filter(|c| !c.is_control()).collect();
    let _ = writeln!(io::stderr(), "error: {line}");
}

/// Writes a file up to the point where it only has to be put in its place, so that several files can
/// replace earlier ones together.
pub fn stage(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<Output> {
    let mut out = Output::create(path)?;
    content(&mut out).with_context(|| format!("cannot write {}", path.display()))?;
    out.sync()?;
    Ok(out)
}

/// Writes a file in one step.
pub fn write_file(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    Ok(output::write_file(path, content)?)
}

/// Writes to a file where one is named, else to standard output.
pub fn write_or_print(path: Option<&Path>, text: &str) -> anyhow::Result<()> {
    match path {
        Some(path) => write_file(path, text.as_bytes()),
        None => print(text),
    }
}

/// `--force`, with one meaning for every command.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Force {
    /// Replace an earlier result; without it, nothing that exists is overwritten
    #[arg(long)]
    pub force: bool,
}

impl Force {
    /// Refuses to replace a file. Devices, pipes and standard output are always written to. Called
    /// before the work, so that nobody waits for a result that cannot be written.
    pub fn check_file(self, path: &Path) -> anyhow::Result<()> {
        self.check_file_of("-o", path)
    }

    /// The same for a file that another flag names.
    pub fn check_file_of(self, flag: &str, path: &Path) -> anyhow::Result<()> {
        let is_free = output::is_stdout(path) || output::is_written_through(path) || !path.exists();
        if path.is_dir() {
            bail!("{} is a directory; {flag} takes a file here", path.display());
        }
        if !is_free && !self.force {
            bail!("{} exists; give another {flag}, or --force to replace it", path.display());
        }
        Ok(())
    }
}

impl From<Force> for Existing {
    fn from(Force { force }: Force) -> Self {
        if force { Self::Replace } else { Self::Refuse }
    }
}

/// What to do about results that are already in an output directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    Resume,
    Replace,
}

/// What a command keeps in its output directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Simulation,
    Sweep,
    Training,
    Model,
    Parts,
    Load,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Simulation, Self::Sweep, Self::Training, Self::Model, Self::Parts, Self::Load];

    fn name(self) -> &'static str {
        match self {
            Self::Simulation => "a simulation",
            Self::Sweep => "a sweep",
            Self::Training => "a training run",
            Self::Model => "a model",
            Self::Parts => "a partitioned graph",
            Self::Load => "a load measurement",
        }
    }

    /// The file by which a directory of this kind is recognised.
    fn marker(self) -> &'static str {
        match self {
            Self::Simulation => "events.jsonl",
            Self::Sweep => "manifest.json",
            Self::Training => "settings.json",
            Self::Model => "model.toml",
            Self::Parts => "parts.safetensors",
            Self::Load => "load.json",
        }
    }

    pub fn is_in(self, dir: &Path) -> bool {
        dir.join(self.marker()).exists()
    }
}

/// The output directory of one command. While it runs, no other command writes there.
#[derive(Debug)]
pub struct OutputDir {
    path: PathBuf,
    /// Locks the directory itself, so that no lock file is left behind.
    lock: Option<File>,
    is_created: bool,
}

impl OutputDir {
    /// Looks at what is there and refuses what must stay. Creates nothing: inputs that turn out to be
    /// unusable must not leave an empty directory.
    pub fn open(dir: &Path, kind: Kind, existing: Existing) -> anyhow::Result<Self> {
        check_dir(dir)?;
        let mut opened = Self { path: dir.into(), lock: None, is_created: false };
        if dir.exists() {
            opened.take_lock()?;
            opened.check(kind, existing)?;
        }
        Ok(opened)
    }

    /// A directory that gets further files: those of a run of this kind, if it holds any run.
    #[cfg(feature = "serve")]
    pub fn open_beside(dir: &Path, kind: Kind) -> anyhow::Result<Self> {
        check_dir(dir)?;
        let mut opened = Self { path: dir.into(), lock: None, is_created: false };
        if dir.exists() {
            opened.take_lock()?;
            opened.refuse_others(kind)?;
        }
        Ok(opened)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory if it is not there.
    pub fn create(&mut self) -> anyhow::Result<()> {
        if self.lock.is_none() {
            make_dir(&self.path)?;
            self.is_created = true;
            self.take_lock()?;
            // Another command may have been faster.
            if !is_empty(&self.path)? {
                bail!("{} was written to by another command", self.path.display());
            }
        }
        Ok(())
    }

    fn take_lock(&mut self) -> anyhow::Result<()> {
        let shown = self.path.display();
        let dir = File::open(&self.path).with_context(|| format!("cannot open {shown}"))?;
        if let Err(TryLockError::WouldBlock) = dir.try_lock() {
            bail!("another command is writing to {shown}; wait for it, or give another -o");
        }
        // A file system without locks leaves this to the user.
        self.lock = Some(dir);
        Ok(())
    }

    fn refuse_others(&self, kind: Kind) -> anyhow::Result<()> {
        let is_other = |other: &Kind| *other != kind && other.is_in(&self.path);
        match Kind::ALL.into_iter().find(is_other) {
            Some(other) => bail!(
                "{} holds {}, which this command never replaces; give another -o",
                self.path.display(),
                other.name()
            ),
            None => Ok(()),
        }
    }

    fn check(&self, kind: Kind, existing: Existing) -> anyhow::Result<()> {
        self.refuse_others(kind)?;
        let (dir, shown) = (&self.path, self.path.display());
        let mine = kind.name();
        match existing {
            _ if is_empty(dir)? => Ok(()),
            Existing::Replace => Ok(()),
            Existing::Resume if kind.is_in(dir) => Ok(()),
            Existing::Resume => {
                bail!("{shown} is not empty, but holds no run to resume; give another -o")
            }
            Existing::Refuse if kind == Kind::Training && kind.is_in(dir) => {
                bail!("{shown} holds {mine}; --resume continues it, --force replaces it")
            }
            Existing::Refuse if kind.is_in(dir) => {
                bail!("{shown} holds {mine}; give another -o, or --force to replace it")
            }
            Existing::Refuse => {
                bail!("{shown} is not empty; give another -o, or --force to write there anyway")
            }
        }
    }
}

impl Drop for OutputDir {
    /// A command that failed before its first file leaves no empty directory.
    fn drop(&mut self) {
        if self.is_created {
            // Fails where files are in it, as it should.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Refuses what cannot hold several files: standard output, devices and files.
pub fn check_dir(dir: &Path) -> anyhow::Result<()> {
    if output::is_stdout(dir) {
        bail!("-o {}: this command writes several files; give a directory", dir.display());
    }
    if dir.exists() && !dir.is_dir() {
        bail!("{} is not a directory; this command writes several files", dir.display());
    }
    check_writable(dir)
}

/// Refuses a directory that cannot be written to, or made. Called before the work, so that nobody waits for results
/// that have no place.
fn check_writable(dir: &Path) -> anyhow::Result<()> {
    let there = dir.ancestors().find(|place| place.exists() || place.is_symlink());
    let there = there.filter(|place| !place.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let access = match there.is_dir() {
        true => rustix::fs::access(there, rustix::fs::Access::WRITE_OK).map_err(io::Error::from),
        false => Err(io::ErrorKind::NotADirectory.into()),
    };
    access.with_context(|| match dir.exists() {
        true => format!("cannot write to {}", dir.display()),
        false => format!("cannot make the directory {}", dir.display()),
    })
}

fn is_empty(dir: &Path) -> anyhow::Result<bool> {
    let mut entries =
        fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    Ok(entries.next().is_none())
}

pub fn make_dir(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))
}
