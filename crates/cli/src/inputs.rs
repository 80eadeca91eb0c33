//! Everything that is read from files: traces, clusters, profiles.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hither_core::topology::Topology;
use hither_sched::job::Job;
use hither_sched::profile::Library;
use hither_sched::topo;
use hither_sched::trace::{self, Format, Generate, ReadOptions, Trace};

/// Far above any known trace; below what would exhaust the memory of a small machine.
const BYTES_MAX: u64 = 2 << 30;

/// The whole of a file, or of standard input for `-`.
pub fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = match is_stdin(path) {
        true => std::io::stdin().lock().take(BYTES_MAX + 1).read_to_end(&mut bytes),
        false => File::open(path).and_then(|f| f.take(BYTES_MAX + 1).read_to_end(&mut bytes)),
    };
    read.with_context(|| format!("cannot read {}", shown(path)))?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!("{} is larger than {} GiB", shown(path), BYTES_MAX >> 30);
    }
    Ok(bytes)
}

pub fn text(path: &Path) -> anyhow::Result<String> {
    let bytes = bytes(path)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(_) => bail!("{} is not text in UTF-8; is it a compressed or binary file?", shown(path)),
    }
}

pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The path as it was given, for messages.
pub fn shown(path: &Path) -> String {
    if is_stdin(path) { "standard input".into() } else { path.display().to_string() }
}

/// The file's own name, for records: they must not depend on where the file lies.
pub fn file_name(path: &Path) -> String {
    match path.file_name() {
        Some(name) if !is_stdin(path) => name.to_string_lossy().into_owned(),
        _ => "standard input".into(),
    }
}

/// Where jobs come from, and what is needed to understand them.
#[derive(Debug, Clone, clap::Args)]
pub struct TraceArgs {
    /// Trace of jobs, settings of a generator (.toml), or - for a trace on standard input
    pub trace: PathBuf,
    /// Format of the trace [default: found out from its first lines]
    #[arg(long, value_name = "NAME", value_parser = formats())]
    pub format: Option<Format>,
    /// More model profiles, TOML or JSON; they win over the built-in ones of the same name. The word
    /// none: the built-in ones hold, and the scheduler is told nothing of them
    #[arg(long, value_name = "FILE")]
    pub profiles: Option<PathBuf>,
}

impl TraceArgs {
    /// Whether the scheduler is told no profiles.
    pub fn hides_profiles(&self) -> bool {
        self.profiles.as_deref() == Some(Path::new("none"))
    }

    pub fn profiles_file(&self) -> Option<&Path> {
        self.profiles.as_deref().filter(|_| !self.hides_profiles())
    }
}

fn formats() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name))
        .try_map(|name| Format::from_name(&name).ok_or("no such format"))
}

/// A trace that has been read but not yet understood: its jobs may depend on a seed.
pub enum Workload {
    Trace { bytes: Vec<u8>, path: PathBuf, format: Option<Format>, library: Library },
    Generator { settings: Generate, path: PathBuf, library: Library },
}

impl Workload {
    pub fn open(args: &TraceArgs) -> anyhow::Result<Self> {
        let library = library(args.profiles_file())?;
        let path = args.trace.clone();
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")) {
            let settings = Generate::parse_toml(&text(&path)?, &shown(&path))?;
            return Ok(Self::Generator { settings, path, library });
        }
        let bytes = bytes(&path)?;
        Ok(Self::Trace { bytes, path, format: args.format, library })
    }

    pub fn name(&self) -> String {
        match self {
            Self::Trace { path, .. } | Self::Generator { path, .. } => file_name(path),
        }
    }

    /// A load is relative to the trace's own speed, or absolute for a generator that has one.
    pub fn jobs(&self, seed: Option<u64>, load: Option<f64>) -> anyhow::Result<Trace> {
        match self {
            Self::Trace { bytes, path, format, library } => {
                let options = ReadOptions { format: *format, seed: seed.unwrap_or(0), library };
                let mut trace = trace::read(bytes, &shown(path), &options)?;
                hurry(&mut trace.jobs, load);
                Ok(trace)
            }
            Self::Generator { settings, library, .. } => {
                let mut settings = settings.clone();
                settings.seed = seed.unwrap_or(settings.seed);
                let absolute = settings.load.is_some();
                if absolute {
                    settings.load = load.or(settings.load);
                }
                let mut jobs = trace::generate(&settings, library)?;
                hurry(&mut jobs, load.filter(|_| !absolute));
                Ok(Trace { format: Format::Hither, jobs, notes: Vec::new() })
            }
        }
    }
}

/// Lets jobs arrive so many times as fast.
fn hurry(jobs: &mut [Job], load: Option<f64>) {
    if let Some(load) = load {
        jobs.iter_mut().for_each(|job| job.submit_s /= load);
    }
}

/// The built-in profiles with the user's over them.
pub fn library(path: Option<&Path>) -> anyhow::Result<Library> {
    let builtin = Library::builtin();
    let Some(path) = path else { return Ok(builtin) };
    let text = text(path)?;
    let is_json = text.trim_start_matches('\u{feff}').trim_start().starts_with('{');
    let user = match is_json {
        true => Library::parse_json(&text, &shown(path))?,
        false => Library::parse_toml(&text, &shown(path))?,
    };
    Ok(builtin.merge(user)?)
}

#[derive(Debug, Clone, clap::Args)]
pub struct ClusterArgs {
    /// Cluster: TOML, Slurm's topology.conf, or CSV [default: 8 racks of 8 machines of 8 GPUs]
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// GPUs of a machine, for cluster files that do not say
    #[arg(long, value_name = "N", default_value_t = 8, requires = "cluster")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub gpus_per_machine: u32,
}

impl ClusterArgs {
    /// None where no file was given.
    pub fn read(&self) -> anyhow::Result<Option<Topology>> {
        let Some(path) = &self.cluster else {
            return Ok(None);
        };
        Ok(Some(topo::read(&bytes(path)?, &shown(path), self.gpus_per_machine)?))
    }
}

/// A number within bounds, for flags: `inf`, `nan` and what would break the arithmetic stay out.
pub fn number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from {min} to {max}")),
    }
}
