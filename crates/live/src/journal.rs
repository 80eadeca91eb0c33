//! Every observation and decision, in an embedded database. A turn is on disk before anything is
//! done about it, so that a driver which is killed goes on from there, and so that every decision
//! can be made again from the same news.
//!
//! The journal is a chain of segments. Each begins with a snapshot of the scheduler, as it is
//! restored from one after a restart; turns follow until the next segment begins.

use std::path::{Path, PathBuf};

use hither_core::Seconds;
use hither_sched::decide::Snapshot;
use hither_sched::event::{Decision, Event};
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, MultimapTableDefinition, ReadableDatabase, ReadableTable, TableDefinition,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::Key;
use crate::learn::Learnt;

const FORMAT: &str = "hither journal 3";
/// Bytes of the file that stay in memory. The scheduler reads back only what somebody asks about.
const CACHE_BYTES: usize = 1 << 20;

const ABOUT: TableDefinition<&str, &str> = TableDefinition::new("about");
/// Segments by the number of their first turn.
const SEGMENTS: TableDefinition<u64, &[u8]> = TableDefinition::new("segments");
/// When they began, in Unix time: to find those that are old enough to be forgotten without reading them all.
const BEGAN: TableDefinition<u64, f64> = TableDefinition::new("began");
const TURNS: TableDefinition<u64, &[u8]> = TableDefinition::new("turns");
/// The turns in which something was said about a job.
const JOBS: MultimapTableDefinition<&str, u64> = MultimapTableDefinition::new("jobs");

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: another scheduler holds the journal; stop it first, or give another --state")]
    InUse { path: PathBuf },
    #[error("{path}: {error}")]
    Database { path: PathBuf, error: Box<redb::Error> },
    #[error("{path}: not a journal of this version of Hither; give another --state")]
    Format { path: PathBuf },
    #[error("{path}: turn {turn} cannot be read: {error}")]
    Content { path: PathBuf, turn: u64, error: serde_json::Error },
}

/// What a scheduler was started with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    pub policy: String,
    /// Options of policies as TOML.
    pub settings: String,
    pub partitions: Vec<String>,
    /// The cluster as TOML.
    pub cluster: String,
    /// Unix time of the scheduler's zero.
    pub epoch_s: Seconds,
    /// The version of the program.
    #[serde(default)]
    pub version: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Segment {
    /// Unix time.
    pub at_s: Seconds,
    pub setup: Setup,
    /// `None`: the scheduler knew nothing.
    pub snapshot: Option<Snapshot>,
    /// Names of the machines by number.
    pub machines: Vec<String>,
    pub learnt: Learnt,
}

impl Segment {
    /// A scheduler that knows nothing yet.
    pub fn first(at_s: Seconds, setup: Setup, machines: Vec<String>) -> Self {
        Self { at_s, setup, snapshot: None, machines, learnt: Learnt::default() }
    }
}

/// One round of the driver: what it told the scheduler, and what the scheduler answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Seconds since the epoch of the setup.
    pub now: Seconds,
    pub events: Vec<Event>,
    pub decisions: Vec<Decision>,
    /// The decisions and the notes in words, by job.
    pub said: Vec<Said>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// Empty: about no job.
    pub job: Key,
    /// Unix time.
    pub at_s: Seconds,
    pub text: String,
}

pub struct Journal {
    path: PathBuf,
    db: Database,
    next: u64,
}

impl Journal {
    /// Opens or creates a journal. Only one process has it open at a time.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let created = Builder::new().set_cache_size(CACHE_BYTES).create(path);
        let db = created.map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => Error::InUse { path: path.into() },
            redb::DatabaseError::UpgradeRequired(_) => Error::Format { path: path.into() },
            other => Error::Database { path: path.into(), error: Box::new(other.into()) },
        })?;
        Self::begun(path, db)
    }

    /// A journal that is gone with the process.
    pub fn in_memory() -> Result<Self, Error> {
        let path = Path::new("memory");
        let made = Builder::new().create_with_backend(InMemoryBackend::new());
        let db = made.map_err(|error| Error::Database {
            path: path.into(),
            error: Box::new(error.into()),
        })?;
        Self::begun(path, db)
    }

    fn begun(path: &Path, db: Database) -> Result<Self, Error> {
        let mut journal = Self { path: path.into(), db, next: 0 };
        let format = journal.tried(|db| {
            let write = db.begin_write()?;
            let format = {
                let mut about = write.open_table(ABOUT)?;
                let known = about.get("format")?.map(|text| text.value().to_owned());
                if known.is_none() {
                    about.insert("format", FORMAT)?;
                }
                write.open_table(SEGMENTS)?;
                write.open_table(BEGAN)?;
                write.open_table(TURNS)?;
                write.open_multimap_table(JOBS)?;
                known
            };
            write.commit()?;
            Ok(format)
        })?;
        if format.is_some_and(|format| format != FORMAT) {
            return Err(Error::Format { path: path.into() });
        }
        journal.next = journal.tried(|db| {
            let read = db.begin_read()?;
            let last = |key: Option<u64>| key.map_or(0, |key| key + 1);
            let turns = read.open_table(TURNS)?;
            let segments = read.open_table(SEGMENTS)?;
            let turn = last(turns.last()?.map(|(key, _)| key.value()));
            Ok(turn.max(segments.last()?.map_or(0, |(key, _)| key.value())))
        })?;
        Ok(journal)
    }

    fn tried<T>(&self, work: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, Error> {
        work(&self.db)
            .map_err(|error| Error::Database { path: self.path.clone(), error: Box::new(error) })
    }

    fn parse<T: DeserializeOwned>(&self, turn: u64, bytes: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(bytes).map_err(|error| Error::Content {
            path: self.path.clone(),
            turn,
            error,
        })
    }

    /// Number of the next turn.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Begins a segment, and forgets the segments that ended before `keep_s`, in Unix time.
    pub fn begin(&mut self, segment: &Segment, keep_s: Seconds) -> Result<(), Error> {
        let bytes = json(segment);
        // Two segments at one turn: the driver was stopped before it had anything to tell.
        let old = self.ended_before(keep_s)?;
        self.tried(|db| {
            let write = db.begin_write()?;
            {
                let mut segments = write.open_table(SEGMENTS)?;
                segments.insert(self.next, &bytes[..])?;
                let mut began = write.open_table(BEGAN)?;
                began.insert(self.next, segment.at_s)?;
                if let Some(first_kept) = old {
                    segments.retain_in(..first_kept, |_, _| false)?;
                    began.retain_in(..first_kept, |_, _| false)?;
                    forget_turns(&write, first_kept)?;
                }
            }
            write.commit()?;
            Ok(())
        })
    }

    /// The first turn to keep, if older ones may go.
    fn ended_before(&self, keep_s: Seconds) -> Result<Option<u64>, Error> {
        let begun: Vec<u64> = self.tried(|db| {
            let read = db.begin_read()?;
            let mut begun = Vec::new();
            for row in read.open_table(BEGAN)?.iter()? {
                let (turn, at_s) = row?;
                if at_s.value() > keep_s {
                    break;
                }
                begun.push(turn.value());
            }
            Ok(begun)
        })?;
        Ok(begun.last().copied().filter(|_| begun.len() > 1))
    }

    /// Writes a turn to the disk.
    pub fn append(&mut self, turn: &Turn) -> Result<(), Error> {
        let bytes = json(turn);
        let number = self.next;
        self.tried(|db| {
            let write = db.begin_write()?;
            {
                write.open_table(TURNS)?.insert(number, &bytes[..])?;
                let mut jobs = write.open_multimap_table(JOBS)?;
                for said in turn.said.iter().filter(|said| !said.job.is_empty()) {
                    jobs.insert(&said.job[..], number)?;
                }
            }
            write.commit()?;
            Ok(())
        })?;
        self.next += 1;
        Ok(())
    }

    /// The first turns of all segments.
    pub fn segment_starts(&self) -> Result<Vec<u64>, Error> {
        self.tried(|db| {
            let read = db.begin_read()?;
            let starts: Result<Vec<u64>, _> =
                read.open_table(BEGAN)?.iter()?.map(|row| Ok(row?.0.value())).collect();
            starts
        })
    }

    /// The segment that begins with this turn.
    pub fn segment(&self, first: u64) -> Result<Segment, Error> {
        let bytes = self.tried(|db| {
            let read = db.begin_read()?;
            let table = read.open_table(SEGMENTS)?;
            Ok(table.get(first)?.map_or_else(Vec::new, |bytes| bytes.value().to_vec()))
        })?;
        self.parse(first, &bytes)
    }

    pub fn last_segment(&self) -> Result<Option<(u64, Segment)>, Error> {
        let row = self.tried(|db| {
            let read = db.begin_read()?;
            let table = read.open_table(SEGMENTS)?;
            Ok(table.last()?.map(|(turn, bytes)| (turn.value(), bytes.value().to_vec())))
        })?;
        row.map(|(turn, bytes)| Ok((turn, self.parse(turn, &bytes)?))).transpose()
    }

    /// Turns from one number up to another.
    pub fn turns(&self, from: u64, to: u64) -> Result<Vec<(u64, Turn)>, Error> {
        let rows = self.tried(|db| {
            let read = db.begin_read()?;
            let table = read.open_table(TURNS)?;
            let mut rows = Vec::new();
            for row in table.range(from..to)? {
                let (turn, bytes) = row?;
                rows.push((turn.value(), bytes.value().to_vec()));
            }
            Ok(rows)
        })?;
        rows.into_iter().map(|(turn, bytes)| Ok((turn, self.parse(turn, &bytes)?))).collect()
    }

    /// What was said about a job, oldest first, at most the last `most` sentences.
    pub fn about(&self, job: &str, most: usize) -> Result<Vec<Said>, Error> {
        let turns = self.tried(|db| {
            let read = db.begin_read()?;
            let table = read.open_multimap_table(JOBS)?;
            let turns: Result<Vec<u64>, _> = table.get(job)?.map(|t| Ok(t?.value())).collect();
            turns
        })?;
        let mut said = Vec::new();
        for turn in turns {
            for (_, turn) in self.turns(turn, turn + 1)? {
                said.extend(turn.said.into_iter().filter(|said| said.job == job));
            }
        }
        said.drain(..said.len().saturating_sub(most));
        Ok(said)
    }
}

/// Forgets turns, and what is noted of jobs there.
fn forget_turns(write: &redb::WriteTransaction, first_kept: u64) -> Result<(), redb::Error> {
    let mut turns = write.open_table(TURNS)?;
    let mut jobs = write.open_multimap_table(JOBS)?;
    for row in turns.extract_from_if(..first_kept, |_, _| true)? {
        let (number, bytes) = row?;
        // A turn that cannot be read names nobody.
        let turn: Turn = serde_json::from_slice(bytes.value()).unwrap_or_default();
        for said in turn.said.iter().filter(|said| !said.job.is_empty()) {
            jobs.remove(&said.job[..], number.value())?;
        }
    }
    Ok(())
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain values")
}
