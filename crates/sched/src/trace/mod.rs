//! Traces of jobs: readers for files of many origins, and the workload generator.
//!
//! Every format is one file of this directory; all of them end in the same [`Trace`]. Nothing here
//! opens a file: bytes come in with a display name for errors.

mod describe;
mod gavel;
mod generate;
mod helios;
mod hither;
mod lingjun;
mod muri;
mod pai;
mod philly;
mod philly_log;
mod pollux;
mod sacct;
mod settings;
mod swf;
mod time;
mod tiresias;

use std::collections::HashSet;
use std::sync::Arc;

use hither_core::seed;
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use crate::job::{Job, Length, Profile, Terms};
use crate::profile::Library;
use crate::read::Error;
use crate::read::table::{Field, Source, TIME_MAX_S, TINY};

pub use describe::{Info, ModelShare, describe, offered_load};
pub use generate::generate;
pub use hither::write;
pub use muri::{MuriRow, muri_rows};
pub use settings::{Arrivals, Demand, Duration, Generate, SettingError, Weights};

/// A trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    Hither,
    Sacct,
    Philly,
    PhillyLog,
    Helios,
    Acme,
    Pai,
    Lingjun,
    Muri,
    Gavel,
    Pollux,
    Tiresias,
    Swf,
}

impl Format {
    pub const ALL: [Format; 13] = [
        Format::Hither,
        Format::Sacct,
        Format::Philly,
        Format::PhillyLog,
        Format::Helios,
        Format::Acme,
        Format::Pai,
        Format::Lingjun,
        Format::Muri,
        Format::Gavel,
        Format::Pollux,
        Format::Tiresias,
        Format::Swf,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Format::Hither => "hither",
            Format::Sacct => "sacct",
            Format::Philly => "philly",
            Format::PhillyLog => "philly-log",
            Format::Helios => "helios",
            Format::Acme => "acme",
            Format::Pai => "pai",
            Format::Lingjun => "lingjun",
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

/// The columns by which a comma-separated format is recognised. Muri's include Tiresias', and
/// Helios' include Acme's, so the longer list of each pair comes first.
const HEADERS: [(Format, &[&str]); 10] = [
    (Format::Hither, hither::COLUMNS.split_at(hither::REQUIRED).0),
    (Format::Philly, philly::COLUMNS.split_at(philly::REQUIRED).0),
    (Format::Muri, &muri::COLUMNS),
    (Format::Tiresias, &tiresias::COLUMNS),
    (Format::Pollux, &pollux::COLUMNS),
    (Format::Helios, &helios::HELIOS),
    (Format::Acme, &helios::ACME),
    (Format::Pai, &["job_name", "inst_num", "plan_gpu"]),
    (Format::Lingjun, &["job_name", "gmt_job_submitted"]),
    (Format::Lingjun, &["job_name", "worker_name", "RES"]),
];

/// A trace that is published as a folder of tables.
#[derive(Debug)]
pub struct Folder {
    pub format: Format,
    /// The tables that must be there; the first one is the main one.
    pub needed: &'static [&'static str],
    /// Tables that say more where they are there.
    pub optional: &'static [&'static str],
}

pub const FOLDERS: [Folder; 2] = [
    Folder { format: Format::Pai, needed: &[pai::TASKS], optional: &pai::BESIDE },
    Folder { format: Format::Lingjun, needed: &[lingjun::JOBS, lingjun::WORKERS], optional: &[] },
];

/// Jobs in order of submission, the first one at 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub format: Format,
    pub jobs: Vec<Job>,
    /// Decisions of the reader: jobs left out or changed, models drawn, times shifted.
    pub notes: Vec<String>,
}

/// How to read a trace.
pub struct ReadOptions<'a> {
    /// None: recognised from the content.
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
    let by_header = HEADERS.iter().find(|(_, names)| present(line, names) == names.len());
    if let Some(&(format, _)) = by_header {
        Some(format)
    } else if sacct::separator(line).is_some() {
        Some(Format::Sacct)
    } else if philly_log::is_text(text) {
        Some(Format::PhillyLog)
    } else if gavel::is_line(line) {
        Some(Format::Gavel)
    } else if swf::is_line(line) {
        Some(Format::Swf)
    } else if pai::is_row(line) {
        Some(Format::Pai)
    } else {
        None
    }
}

/// How many of the names are columns of this header line.
fn present(line: &str, names: &[&str]) -> usize {
    let has = |name: &&&str| line.split(',').any(|cell| cell.trim().eq_ignore_ascii_case(name));
    names.iter().filter(has).count()
}

/// The format of which the header has most columns, at least half of them. Its reader then names the
/// missing column.
fn closest(line: &str) -> Option<Format> {
    let rated = HEADERS.iter().map(|(format, names)| (present(line, names), names.len(), format));
    let likely = rated.filter(|&(found, all, _)| found >= 2 && 2 * found >= all);
    // The first of equals: the list above puts the longer one of two alike first.
    likely.rev().max_by_key(|&(found, ..)| found).map(|(.., &format)| format)
}

/// Reads a trace of one file. Any bytes give a trace or one error that says where and why.
pub fn read(bytes: &[u8], file: &str, options: &ReadOptions<'_>) -> Result<Trace, Error> {
    read_tables(&[(bytes, file)], options)
}

/// Reads a trace of one or more tables, each with its display name, the main one first.
pub fn read_tables(tables: &[(&[u8], &str)], options: &ReadOptions<'_>) -> Result<Trace, Error> {
    let sources: Vec<Source<'_>> =
        tables.iter().map(|(bytes, file)| Source::new(bytes, file)).collect::<Result<_, _>>()?;
    let source = sources[0];
    let Some((_, line)) = source.lines().next() else {
        return Err(Error::about(source.file, "is empty").hint("a trace of jobs is needed"));
    };
    let known = options.format.or_else(|| detect(tables[0].0)).or_else(|| closest(line));
    let format = known.ok_or_else(|| {
        let names = Format::ALL.map(Format::name).join(", ");
        source
            .error(format!("a trace in one of the formats {names}"))
            .at(1)
            .found(line)
            .hint("give --format NAME if the first line does not show the format")
    })?;
    let mut intake = Intake::new(sources, options);
    match format {
        Format::Hither => hither::read(&mut intake)?,
        Format::Sacct => sacct::read(&mut intake)?,
        Format::Philly => philly::read(&mut intake)?,
        Format::PhillyLog => philly_log::read(&mut intake)?,
        Format::Helios | Format::Acme => helios::read(&mut intake)?,
        Format::Pai => pai::read(&mut intake)?,
        Format::Lingjun => lingjun::read(&mut intake)?,
        Format::Muri => muri::read(&mut intake)?,
        Format::Gavel => gavel::read(&mut intake)?,
        Format::Pollux => pollux::read(&mut intake)?,
        Format::Tiresias => tiresias::read(&mut intake)?,
        Format::Swf => swf::read(&mut intake)?,
    }
    intake.finish(format)
}

/// A job of a log that records running times: all but the model, which is drawn.
struct Logged {
    line: u64,
    name: String,
    user: String,
    gpus: u32,
    gpu_type: Option<String>,
    submit_s: f64,
    run_s: f64,
}

/// Where readers put their jobs: everything that the formats have in common.
struct Intake<'a> {
    /// The main table.
    source: Source<'a>,
    /// All tables, the main one first.
    tables: Vec<Source<'a>>,
    options: &'a ReadOptions<'a>,
    notes: Vec<String>,
    jobs: Vec<Job>,
    names: HashSet<String>,
    draws: Pcg64Mcg,
    drawn: u64,
    /// Jobs that were left out, and jobs that were changed, by reason in the order of the file.
    left_out: Counts,
    changed: Counts,
}

/// How often each reason occurred, in order of first occurrence.
#[derive(Default)]
struct Counts(Vec<(&'static str, u64)>);

impl Counts {
    fn add(&mut self, reason: &'static str) {
        match self.0.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.0.push((reason, 1)),
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    fn list(&self) -> String {
        let items: Vec<String> = self.0.iter().map(|(why, n)| format!("{n} {why}")).collect();
        items.join(", ")
    }
}

impl<'a> Intake<'a> {
    fn new(tables: Vec<Source<'a>>, options: &'a ReadOptions<'a>) -> Self {
        Self {
            source: tables[0],
            tables,
            options,
            notes: Vec::new(),
            jobs: Vec::new(),
            names: HashSet::new(),
            draws: seed::stream(options.seed, "trace models"),
            drawn: 0,
            left_out: Counts::default(),
            changed: Counts::default(),
        }
    }

    /// The table of that file name, if it was given.
    fn table(&self, name: &str) -> Option<Source<'a>> {
        let is_named = |table: &&Source<'a>| table.file.rsplit(['/', '\\']).next() == Some(name);
        self.tables.iter().find(is_named).copied()
    }

    fn push(&mut self, line: u64, job: Job) -> Result<(), Error> {
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

    /// Adds a job that names no model.
    fn push_logged(&mut self, logged: Logged) -> Result<(), Error> {
        let profile = self.draw(logged.gpus, logged.run_s);
        self.push_as(logged, profile)
    }

    fn push_as(&mut self, logged: Logged, profile: Arc<Profile>) -> Result<(), Error> {
        let Logged { line, name, user, gpus, gpu_type, submit_s, run_s } = logged;
        let length = Length::Seconds(run_s.max(TINY));
        self.push(
            line,
            Job { name, user, gpus, terms: Terms::default(), gpu_type, submit_s, length, profile },
        )
    }

    /// A model for a job that names none.
    fn draw(&mut self, gpus: u32, run_s: f64) -> Arc<Profile> {
        self.drawn += 1;
        self.options.library.assign(gpus, run_s, &mut self.draws)
    }

    /// The profile of a named model.
    fn profile(&self, model: &Field<'_>) -> Result<Arc<Profile>, Error> {
        self.options.library.get(&model.text).cloned().ok_or_else(|| self.unknown(model))
    }

    fn unknown(&self, model: &Field<'_>) -> Error {
        model
            .error(format!("a model of the profile library ({})", self.options.library.known()))
            .hint("describe the model in a file given by --profiles FILE")
    }

    fn finish(mut self, format: Format) -> Result<Trace, Error> {
        let left_out = self.left_out.total();
        if self.jobs.is_empty() {
            let states = match left_out {
                0 => "has a header but no jobs".into(),
                1 => format!("has one job, and it is left out: {}", self.left_out.list()),
                n => format!("has {n} jobs, and all are left out: {}", self.left_out.list()),
            };
            return Err(Error::about(self.source.file, states));
        }
        if left_out > 0 {
            let all = left_out + self.jobs.len() as u64;
            self.notes.push(format!("left out {left_out} of {all} jobs: {}", self.left_out.list()));
        }
        if self.changed.total() > 0 {
            self.notes.push(format!("changed jobs: {}", self.changed.list()));
        }
        if self.drawn > 0 {
            self.notes.push(format!(
                "models of {} of {} jobs are drawn by GPU-time class with seed {}: the trace names \
                 none",
                self.drawn,
                self.jobs.len(),
                self.options.seed
            ));
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
