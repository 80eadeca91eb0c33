//! Traces of jobs: what is read from files of several origins, and what the generator makes.
//!
//! Every format is one file of this directory; all of them end in the same [`Trace`]. Nothing here
//! opens a file: bytes come in with a display name for errors.

mod describe;
mod error;
mod gavel;
mod generate;
mod hither;
mod muri;
mod philly;
mod pollux;
mod settings;
mod swf;
pub(crate) mod table;
mod tiresias;

use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;

use crate::job::{Job, Profile};
use crate::profile::Library;

pub use describe::{Info, ModelShare, describe};
pub use error::Error;
pub use generate::generate;
pub use hither::write;
pub use muri::{MuriRow, muri_rows};
pub use settings::{Arrivals, Demand, Duration, Generate, Weights};

use table::{Field, Source, TIME_MAX_S};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Hither,
    Philly,
    Muri,
    Gavel,
    Pollux,
    Tiresias,
    Swf,
}

impl Format {
    pub const ALL: [Format; 7] = [
        Format::Hither,
        Format::Philly,
        Format::Muri,
        Format::Gavel,
        Format::Pollux,
        Format::Tiresias,
        Format::Swf,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Format::Hither => "hither",
            Format::Philly => "philly",
            Format::Muri => "muri",
            Format::Gavel => "gavel",
            Format::Pollux => "pollux",
            Format::Tiresias => "tiresias",
            Format::Swf => "swf",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name))
    }
}

/// Jobs in order of submission, the first one at 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub format: Format,
    pub jobs: Vec<Job>,
    /// What a reader had to decide: rows left out, models assigned, times shifted.
    pub notes: Vec<String>,
}

pub struct ReadOptions<'a> {
    /// None: found out from the content.
    pub format: Option<Format>,
    /// Draws models for traces that name none.
    pub seed: u64,
    pub library: &'a Library,
}

/// The format of a file by its first lines; none if it looks like no known one.
pub fn detect(bytes: &[u8]) -> Option<Format> {
    let head = &bytes[..bytes.len().min(64 * 1024)];
    let text = String::from_utf8_lossy(head);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    let cells: HashSet<&str> = line.split(',').map(str::trim).collect();
    let has = |names: &[&str]| names.iter().all(|name| cells.contains(name));
    if has(&hither::COLUMNS[..hither::REQUIRED]) {
        Some(Format::Hither)
    } else if has(&philly::COLUMNS) {
        Some(Format::Philly)
    } else if has(&muri::COLUMNS) {
        Some(Format::Muri)
    } else if has(&tiresias::COLUMNS) {
        // After Muri, whose columns include these.
        Some(Format::Tiresias)
    } else if has(&pollux::COLUMNS) {
        Some(Format::Pollux)
    } else if gavel::is_line(line) {
        Some(Format::Gavel)
    } else if swf::is_line(line) {
        Some(Format::Swf)
    } else {
        None
    }
}

/// Reads a trace. Any bytes give a trace or one error that says where and why.
pub fn read(bytes: &[u8], file: &str, options: &ReadOptions<'_>) -> Result<Trace, Error> {
    let source = Source::new(bytes, file)?;
    if source.lines().next().is_none() {
        return Err(source.error("a trace of jobs").found(""));
    }
    let format = options.format.or_else(|| detect(bytes)).ok_or_else(|| {
        let names = Format::ALL.map(Format::name).join(", ");
        source
            .error(format!("a trace in one of the formats {names}"))
            .found(source.lines().next().map_or("", |(_, line)| line))
            .hint("name the format if it cannot be told from the first line")
    })?;
    let mut intake = Intake::new(source, options);
    match format {
        Format::Hither => hither::read(&mut intake)?,
        Format::Philly => philly::read(&mut intake)?,
        Format::Muri => muri::read(&mut intake)?,
        Format::Gavel => gavel::read(&mut intake)?,
        Format::Pollux => pollux::read(&mut intake)?,
        Format::Tiresias => tiresias::read(&mut intake)?,
        Format::Swf => swf::read(&mut intake)?,
    }
    intake.finish(format)
}

/// Where readers put their jobs: what all formats have in common.
pub(crate) struct Intake<'a> {
    pub source: Source<'a>,
    pub options: &'a ReadOptions<'a>,
    pub notes: Vec<String>,
    jobs: Vec<Job>,
    names: HashSet<String>,
}

impl<'a> Intake<'a> {
    fn new(source: Source<'a>, options: &'a ReadOptions<'a>) -> Self {
        Self { source, options, notes: Vec::new(), jobs: Vec::new(), names: HashSet::new() }
    }

    pub fn push(&mut self, line: u64, job: Job) -> Result<(), Error> {
        if !self.names.insert(job.name.clone()) {
            return Err(self
                .source
                .error("job ids that differ")
                .at(line)
                .found(&job.name)
                .hint("an earlier row has the same id"));
        }
        self.jobs.push(job);
        Ok(())
    }

    /// The profile of a named model.
    pub fn profile(&self, model: &Field<'_>) -> Result<Arc<Profile>, Error> {
        self.options.library.get(&model.text).cloned().ok_or_else(|| self.unknown(model))
    }

    pub fn unknown(&self, model: &Field<'_>) -> Error {
        model
            .error(format!("a model of the profile library ({})", self.options.library.known()))
            .hint("describe the model in a file given by --profiles FILE")
    }

    fn finish(mut self, format: Format) -> Result<Trace, Error> {
        if self.jobs.is_empty() {
            return Err(self.source.error("at least one job").found(""));
        }
        self.jobs.sort_by(|a, b| a.submit_s.total_cmp(&b.submit_s));
        let first_s = self.jobs[0].submit_s;
        if first_s != 0.0 {
            for job in &mut self.jobs {
                job.submit_s -= first_s;
            }
            self.notes.push(format!(
                "submission times count from the first job, {first_s} s in the file's own clock"
            ));
        }
        if let Some(last) = self.jobs.last().filter(|job| job.submit_s > TIME_MAX_S) {
            return Err(self
                .source
                .error(format!("submissions within {TIME_MAX_S} s of the first"))
                .found(&last.submit_s.to_string()));
        }
        Ok(Trace { format, jobs: self.jobs, notes: self.notes })
    }
}

fn assigned_note(jobs: u64, seed: u64) -> String {
    format!("{jobs} jobs name no model: drawn by GPU-time class with seed {seed}")
}
