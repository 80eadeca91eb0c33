//! Reads traces, clusters and profiles from files or standard input.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hither_live::what_if;
use hither_sched::job::Job;
use hither_sched::profile::Library;
use hither_sched::topo::{self, ClusterDescription};
use hither_sched::trace::{self, Format, Generate, ReadOptions, Trace};

use crate::Common;

/// Far above any known trace, and within the memory of a small machine.
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

/// The file's own name, for records: they must not depend on the folder.
pub fn file_name(path: &Path) -> String {
    match path.file_name() {
        Some(name) if !is_stdin(path) => name.to_string_lossy().into_owned(),
        _ => "standard input".into(),
    }
}

/// Where jobs come from.
#[derive(Debug, Clone, clap::Args)]
pub struct TraceArgs {
    /// Job trace, folder of Alibaba's tables, generator settings (.toml), or - for standard input
    pub trace: PathBuf,
    #[command(flatten)]
    pub reading: ReadingArgs,
}

/// What is needed to understand jobs.
#[derive(Debug, Clone, clap::Args)]
pub struct ReadingArgs {
    /// Format of the trace [default: recognised from its first lines]
    #[arg(long, value_name = "NAME", value_parser = formats())]
    pub format: Option<Format>,
    /// More model profiles, as TOML or JSON; they replace built-in ones of the same name. `none` keeps
    /// the built-in ones, but hides all profiles from the scheduler
    #[arg(long, value_name = "FILE")]
    pub profiles: Option<PathBuf>,
}

impl ReadingArgs {
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

/// How fast jobs arrive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    AsRecorded,
    /// So many times as fast.
    Rate(f64),
    /// So fast that they offer this load to a cluster of so many GPUs.
    Load {
        load: f64,
        gpus: u64,
    },
}

/// A trace that has been read but not yet understood: its jobs may depend on a seed.
pub enum Workload {
    /// Tables with their paths, the main one first.
    Trace {
        tables: Vec<(PathBuf, Vec<u8>)>,
        path: PathBuf,
        format: Option<Format>,
        library: Library,
    },
    Generator {
        settings: Generate,
        path: PathBuf,
        library: Library,
    },
    /// The jobs of a live cluster, as they stand.
    Live {
        name: String,
        start: what_if::Start,
    },
}

impl Workload {
    pub fn open(args: &TraceArgs) -> anyhow::Result<Self> {
        let TraceArgs { trace, reading: args } = args;
        let library = library(args.profiles_file())?;
        let path = trace.clone();
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")) {
            if let Some(format) = args.format {
                bail!("--format {}: {} is not a trace", format.name(), shown(&path));
            }
            let settings = Generate::parse_toml(&text(&path)?, &shown(&path))?;
            return Ok(Self::Generator { settings, path, library });
        }
        let (paths, format) = match path.is_dir() {
            true => tables_in(&path)?,
            false => (vec![path.clone()], None),
        };
        let read = |path: PathBuf| Ok((path.clone(), bytes(&path)?));
        let tables = paths.into_iter().map(read).collect::<anyhow::Result<_>>()?;
        Ok(Self::Trace { tables, path, format: args.format.or(format), library })
    }

    pub fn name(&self) -> String {
        match self {
            Self::Trace { path, .. } | Self::Generator { path, .. } => file_name(path),
            Self::Live { name, .. } => name.clone(),
        }
    }

    /// The jobs, drawn by the seed where something is drawn: none is the generator's own, or 0.
    pub fn jobs(&self, seed: Option<u64>, pace: Pace) -> anyhow::Result<Trace> {
        match self {
            Self::Trace { tables, format, library, .. } => {
                let options = ReadOptions { format: *format, seed: seed.unwrap_or(0), library };
                let names: Vec<String> = tables.iter().map(|(path, _)| shown(path)).collect();
                let tables: Vec<(&[u8], &str)> =
                    tables.iter().zip(&names).map(|((_, b), name)| (&b[..], &name[..])).collect();
                let mut trace = trace::read_tables(&tables, &options)?;
                set_pace(&mut trace.jobs, pace)?;
                Ok(trace)
            }
            Self::Generator { settings, path, library } => {
                let mut settings = settings.clone();
                settings.seed = seed.unwrap_or(settings.seed);
                // Drawn at that load, and not drawn and then hurried: days keep their length.
                let pace = match (pace, settings.load) {
                    (Pace::Load { load, gpus }, Some(_)) => {
                        settings.load = Some(load);
                        settings.gpus = Some(u32::try_from(gpus).unwrap_or(u32::MAX));
                        Pace::AsRecorded
                    }
                    _ => pace,
                };
                let mut jobs = trace::generate(&settings, library)
                    .map_err(|error| anyhow!("{}: {error}", shown(path)))?;
                set_pace(&mut jobs, pace)?;
                Ok(Trace { format: Format::Hither, jobs, notes: Vec::new() })
            }
            Self::Live { start, .. } => {
                let what_if::Start { jobs, notes, .. } = start.clone();
                Ok(Trace { format: Format::Hither, jobs, notes })
            }
        }
    }
}

/// The tables of a trace that is published as a folder.
fn tables_in(dir: &Path) -> anyhow::Result<(Vec<PathBuf>, Option<Format>)> {
    for folder in &trace::FOLDERS {
        if folder.needed.iter().all(|name| dir.join(name).is_file()) {
            let there = folder.optional.iter().filter(|name| dir.join(name).is_file());
            let paths = folder.needed.iter().chain(there).map(|name| dir.join(name)).collect();
            return Ok((paths, Some(folder.format)));
        }
    }
    let known: Vec<String> = trace::FOLDERS
        .iter()
        .map(|folder| format!("{} ({})", folder.needed.join(" and "), folder.format.name()))
        .collect();
    bail!("{} is a folder without the tables of a trace: {}", dir.display(), known.join(", or "))
}

fn set_pace(jobs: &mut [Job], pace: Pace) -> anyhow::Result<()> {
    let rate = match pace {
        Pace::AsRecorded => return Ok(()),
        Pace::Rate(rate) => rate,
        Pace::Load { load, gpus } => {
            let offered = trace::offered_load(jobs, gpus);
            load / offered.context("--load: all jobs arrive at once, so no load can be set")?
        }
    };
    jobs.iter_mut().for_each(|job| job.submit_s /= rate);
    Ok(())
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
    /// Cluster: TOML, CSV, or Slurm's topology.conf, topology.yaml, slurm.conf and gres.conf; repeat
    /// the flag to combine Slurm's files [simulations default to 8 racks of 8 machines of 8 GPUs]
    #[arg(long, value_name = "FILE")]
    pub cluster: Vec<PathBuf>,
    /// GPUs per machine where the cluster's files do not say [default: 8]
    #[arg(long, value_name = "N", requires = "cluster")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub gpus_per_machine: Option<u32>,
}

/// Far more than any site splits its slurm.conf into; a bound for files that include each other.
const INCLUDES_MAX: usize = 100;

impl ClusterArgs {
    /// None where no file was given.
    pub fn read(&self) -> anyhow::Result<Option<ClusterDescription>> {
        if self.cluster.is_empty() {
            return Ok(None);
        }
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        let mut paths: VecDeque<PathBuf> = self.cluster.iter().cloned().collect();
        while let Some(path) = paths.pop_front() {
            let bytes = bytes(&path)?;
            for included in topo::includes(&String::from_utf8_lossy(&bytes)) {
                let beside = path.parent().unwrap_or(Path::new("")).join(included);
                paths.push_back(beside);
            }
            files.push((shown(&path), bytes));
            if files.len() + paths.len() > INCLUDES_MAX {
                bail!(
                    "{}: more than {INCLUDES_MAX} files with all that are included",
                    shown(&path)
                );
            }
        }
        let files: Vec<(&[u8], &str)> = files.iter().map(|(name, b)| (&b[..], &name[..])).collect();
        Ok(Some(topo::read(&files, self.gpus_per_machine)?))
    }
}

/// Prints what readers had to decide to standard error.
pub fn say_notes(common: &Common, notes: &[String]) {
    notes.iter().for_each(|note| common.say(&format!("note: {note}")));
}

/// A number within bounds, for flags. It refuses `inf` and `nan`.
pub fn number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(value) if (min..=max).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from {min} to {max}")),
    }
}
