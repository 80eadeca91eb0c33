//! The folder of a training run: what was asked, what came out, and what it takes to go on.
//!
//! The first run's files lie in the folder itself, those of further runs with other seeds in `run-2`, `run-3`, …
//! `summary.json` names the runs that are finished, and is written after all else of them.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use hither_core::record::train::{Round, RunRecord, Summary};
use hither_data::{Output, output};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::figures::{FinishedRun, Outcome};
use crate::{Error, checkpoint};

pub const SETTINGS: &str = "settings.json";
pub const SUMMARY: &str = "summary.json";
pub const METRICS: &str = "metrics.jsonl";
pub const MODEL: &str = "model.safetensors";
pub const EMBEDDINGS: &str = "embeddings.safetensors";
pub const PREDICTIONS: &str = "predictions.csv";
pub const NODES: &str = "nodes.csv";
pub const PROFILE: &str = "profile.json";
pub const CHECKPOINT: &str = "checkpoint.safetensors";
pub const REPORT: &str = "report.html";
pub const RANKS: &str = "ranks.json";
const FILES: [&str; 11] = [
    SETTINGS,
    SUMMARY,
    METRICS,
    MODEL,
    EMBEDDINGS,
    PREDICTIONS,
    NODES,
    PROFILE,
    CHECKPOINT,
    REPORT,
    RANKS,
];

/// What a run may ask for otherwise than the one that it goes on with.
const MAY_CHANGE: [&str; 4] = ["rounds", "patience", "runs", "modes"];

/// Upper bound on the runs of a folder.
pub const RUNS_MAX: u64 = 1000;

/// What to do about a run that is in a folder already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    Resume,
    Replace,
}

/// summary.json
#[derive(Serialize, Deserialize)]
struct Document {
    settings: Map<String, Value>,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Which run a line of metrics.jsonl is of.
#[derive(Clone, Serialize, Deserialize)]
struct LineRun {
    run: u32,
    seed: u64,
    mode: String,
}

/// A line of metrics.jsonl.
#[derive(Serialize, Deserialize)]
struct Line<R> {
    #[serde(flatten)]
    of: LineRun,
    #[serde(flatten)]
    round: R,
}

/// The files of one or several runs of the same settings.
pub struct RunFolder {
    dir: PathBuf,
    settings: Map<String, Value>,
    existing: Existing,
    /// The settings of the run that is there.
    earlier: Option<Map<String, Value>>,
    is_prepared: bool,
    /// The runs that are finished, in order.
    pub done: Vec<RunRecord>,
    /// The rounds of metrics.jsonl that a run can go on from.
    lines: Vec<Line<Round>>,
    writing: Option<(LineRun, File)>,
}

impl RunFolder {
    /// Looks at what is there, and refuses what must stay. Writes nothing: a dataset that cannot be
    /// read, or settings that make no model, must cost nobody an earlier run.
    pub fn open(
        dir: &Path,
        settings: Map<String, Value>,
        existing: Existing,
    ) -> Result<Self, Error> {
        let is_there = dir.join(SETTINGS).exists();
        if existing == Existing::Refuse && is_there {
            return Err(Error::Settings(format!(
                "{} holds a training run; --resume continues it, --force replaces it",
                dir.display()
            )));
        }
        let earlier = match existing == Existing::Resume && is_there {
            true => Some(read_json(&dir.join(SETTINGS))?),
            false => None,
        };
        if let Some(earlier) = &earlier {
            compare(dir, earlier, &settings)?;
        }
        let mut folder = Self {
            dir: dir.into(),
            settings,
            existing,
            earlier,
            is_prepared: false,
            done: vec![],
            lines: vec![],
            writing: None,
        };
        if folder.earlier.is_some() {
            let runs = folder.settings.get("runs").and_then(Value::as_u64).unwrap_or(RUNS_MAX);
            folder.lines = read_lines(&dir.join(METRICS));
            folder.lines.retain(|line| u64::from(line.of.run) <= runs);
            if !folder.is_of_other_length() {
                folder.load();
            }
        }
        Ok(folder)
    }

    /// Makes the folder one of this run.
    pub fn prepare(&mut self) -> Result<(), Error> {
        if self.is_prepared {
            return Ok(());
        }
        make_dir(&self.dir)?;
        if self.existing == Existing::Replace {
            clear(&self.dir)?;
        }
        if self.is_of_other_length() {
            self.lengthen()?;
        }
        self.is_prepared = true;
        write_json(&self.dir.join(SETTINGS), &self.settings)
    }

    fn is_of_other_length(&self) -> bool {
        let differs =
            |key: &str| self.earlier.as_ref().map(|e| e.get(key) != self.settings.get(key));
        differs("rounds") == Some(true) || differs("patience") == Some(true)
    }

    /// Takes over the runs that an earlier command finished. What cannot be read, or does not fit
    /// together, is simply done again from its last checkpoint.
    fn load(&mut self) {
        let Ok(text) = fs::read_to_string(self.dir.join(SUMMARY)) else { return };
        let Ok(document) = serde_json::from_str::<Document>(&text) else { return };
        for (run, FinishedRun { header, summary }) in (1..).zip(document.outcome.runs) {
            let rounds = self.rounds(run);
            let is_there = self.place(run).join(MODEL).exists();
            if rounds.len() != summary.rounds as usize || !is_there {
                break;
            }
            self.done.push(RunRecord { header, rounds, summary });
        }
    }

    /// The rounds of a run that metrics.jsonl has.
    pub fn rounds(&self, run: u32) -> Vec<Round> {
        let own = self.lines.iter().filter(|line| line.of.run == run);
        own.map(|line| line.round.clone()).collect()
    }

    /// Another length is asked for than before: no run counts as finished, and all go on from
    /// their last checkpoint, but for those that follow another mode's steps and begin anew. Ends
    /// well if it is killed and done again, as the settings are written last.
    fn lengthen(&self) -> Result<(), Error> {
        if self.settings.get("server-steps").is_some_and(|steps| *steps == "as llcg") {
            for place in places(&self.dir) {
                remove(&place.join(CHECKPOINT))?;
                remove_workers(&place)?;
            }
        }
        remove(&self.dir.join(SUMMARY))
    }

    /// Where a run's own files go.
    pub fn place(&self, run: u32) -> PathBuf {
        match run {
            1 => self.dir.clone(),
            _ => self.dir.join(format!("run-{run}")),
        }
    }

    /// What a run can go on from.
    pub fn checkpoint(&self, run: u32) -> Option<PathBuf> {
        let path = self.place(run).join(CHECKPOINT);
        (self.existing == Existing::Resume && path.exists()).then_some(path)
    }

    /// Puts all finished rounds, and those that a run goes on from, into metrics.jsonl.
    pub fn begin(
        &mut self,
        run: u32,
        seed: u64,
        mode: &str,
        rounds: &[Round],
    ) -> Result<(), Error> {
        self.prepare()?;
        make_dir(&self.place(run))?;
        let path = self.dir.join(METRICS);
        let mut out = Output::create(&path)?;
        let failed = |source| Error::Io { action: "write", path: path.clone(), source };
        for (run, record) in (1..).zip(&self.done) {
            let Summary { mode, seed, .. } = &record.summary;
            let of = LineRun { run, seed: *seed, mode: mode.clone() };
            for round in &record.rounds {
                out.write_all(&line(&of, round)).map_err(failed)?;
            }
        }
        let of = LineRun { run, seed, mode: mode.into() };
        for round in rounds {
            out.write_all(&line(&of, round)).map_err(failed)?;
        }
        // Later runs may go on from checkpoints of their own.
        self.lines.retain(|line| line.of.run > run);
        for Line { of, round } in &self.lines {
            out.write_all(&line(of, round)).map_err(failed)?;
        }
        out.commit()?;
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(|source| Error::Io { action: "open", path, source })?;
        self.writing = Some((of, file));
        Ok(())
    }

    /// One more round of the run that has begun.
    pub fn add(&mut self, round: &Round) -> Result<(), Error> {
        let Some((of, file)) = &mut self.writing else { return Ok(()) };
        // At once: nobody who looks on sees half a line.
        let path = self.dir.join(METRICS);
        file.write_all(&line(of, round)).map_err(|source| Error::Io {
            action: "write",
            path,
            source,
        })
    }

    /// Brings the rounds to the disk. A checkpoint names those that it follows, so they come first.
    pub fn sync(&mut self) -> Result<(), Error> {
        let Some((_, file)) = &self.writing else { return Ok(()) };
        let path = self.dir.join(METRICS);
        file.sync_all().map_err(|source| Error::Io { action: "write", path, source })
    }

    /// A run whose files are all there.
    pub fn finish(&mut self, record: RunRecord) -> Result<(), Error> {
        self.sync()?;
        self.writing = None;
        self.done.push(record);
        let outcome = Outcome::from_runs(&self.done);
        write_json(&self.dir.join(SUMMARY), &Document { settings: self.settings.clone(), outcome })
    }
}

fn compare(
    dir: &Path,
    earlier: &Map<String, Value>,
    asked: &Map<String, Value>,
) -> Result<(), Error> {
    let mut keys: Vec<&String> = asked.keys().chain(earlier.keys()).collect();
    keys.retain(|key| !MAY_CHANGE.contains(&key.as_str()) && asked.get(*key) != earlier.get(*key));
    let Some(key) = keys.into_iter().min() else { return Ok(()) };
    let value = |map: &Map<String, Value>| map.get(key).map_or("not set".into(), Value::to_string);
    let (shown, theirs, ours) = (dir.display(), value(earlier), value(asked));
    Err(Error::Settings(match key.as_str() {
        "data" => format!(
            "{shown} holds a run on other data: the files of the dataset have changed since; give another -o"
        ),
        _ => format!(
            "{shown} holds another run: its {key} is {theirs}, not {ours}; give the same options, or another -o"
        ),
    }))
}

/// Removes what a run wrote, and nothing else.
fn clear(dir: &Path) -> Result<(), Error> {
    for place in places(dir) {
        FILES.iter().try_for_each(|file| remove(&place.join(file)))?;
        remove_workers(&place)?;
        if place != dir {
            // Where somebody else keeps something in it, it stays.
            let _ = fs::remove_dir(place);
        }
    }
    Ok(())
}

/// Where the files of runs can be.
fn places(dir: &Path) -> Vec<PathBuf> {
    let further = (2..=RUNS_MAX).map(|run| dir.join(format!("run-{run}")));
    [dir.to_path_buf()].into_iter().chain(further.filter(|dir| dir.is_dir())).collect()
}

/// Removes the workers' checkpoints of one run.
fn remove_workers(place: &Path) -> Result<(), Error> {
    let folder = checkpoint::workers_folder(&place.join(CHECKPOINT));
    match fs::remove_dir_all(&folder) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io { action: "remove", path: folder, source })
        }
        _ => Ok(()),
    }
}

/// That it is not there is as good.
fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io { action: "remove", path: path.into(), source })
        }
        _ => Ok(()),
    }
}

pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::File { path: path.into(), problem: error.to_string() })?;
    Ok(output::write_file(path, (text + "\n").as_bytes())?)
}

fn make_dir(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(|source| Error::Io {
        action: "make the directory",
        path: dir.into(),
        source,
    })
}

fn line(of: &LineRun, round: &Round) -> Vec<u8> {
    let mut line = serde_json::to_vec(&Line { of: of.clone(), round }).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The lines up to the first that is none.
fn read_lines(path: &Path) -> Vec<Line<Round>> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
}

/// The settings and the finished runs of a directory, in a comparison those of all modes.
pub fn read(dir: &Path) -> Result<(Map<String, Value>, Vec<RunRecord>), Error> {
    let settings: Map<String, Value> = read_json(&dir.join(SETTINGS))?;
    let Some(modes) = settings.get("modes").and_then(Value::as_array).cloned() else {
        return Ok((settings, read_runs(dir)?));
    };
    let (mut all, mut runs) = (vec![], vec![]);
    for mode in modes.iter().filter_map(Value::as_str) {
        all.push(read_json(&dir.join(mode).join(SETTINGS))?);
        runs.extend(read_runs(&dir.join(mode))?);
    }
    Ok((merged(settings, all), runs))
}

/// The settings of a comparison, with what only some of its modes have.
pub fn merged(
    mut settings: Map<String, Value>,
    modes: impl IntoIterator<Item = Map<String, Value>>,
) -> Map<String, Value> {
    for (key, value) in modes.into_iter().flatten().filter(|(key, _)| key != "mode") {
        settings.entry(key).or_insert(value);
    }
    settings
}

fn read_runs(dir: &Path) -> Result<Vec<RunRecord>, Error> {
    let summary = dir.join(SUMMARY);
    if !summary.exists() {
        return Err(Error::Settings(format!("{} has no finished run", dir.display())));
    }
    let document: Document = read_json(&summary)?;
    let path = dir.join(METRICS);
    let mut lines = read_lines(&path);
    let mut runs = Vec::new();
    for (run, FinishedRun { header, summary }) in (1..).zip(document.outcome.runs) {
        let rounds: Vec<Round> =
            lines.extract_if(.., |line| line.of.run == run).map(|line| line.round).collect();
        let (found, expected) = (rounds.len(), summary.rounds);
        if found != expected as usize {
            let problem = format!(
                "{found} rounds of run {run}, and {SUMMARY} has {expected}; is it truncated?"
            );
            return Err(Error::File { path, problem });
        }
        runs.push(RunRecord { header, rounds, summary });
    }
    Ok(runs)
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Io {
        action: "read",
        path: path.into(),
        source,
    })?;
    serde_json::from_str(&text).map_err(|error| Error::Line {
        path: path.into(),
        line: error.line() as u64,
        problem: error.to_string(),
    })
}
