//! The directory of a training run: what was asked, what came out, and what it takes to go on.
//!
//! The first run's files lie in the directory itself, those of further runs in `run-2`, `run-3`, …
//! `summary.json` names the runs that are finished, and is written after all else of them.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use hither_core::record::train::{Round, RunRecord, Summary};
use hither_gnn::checkpoint;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::figures::{FinishedRun, Outcome};
use crate::inputs;
use crate::outputs::{Existing, Kind, OutputDir, make_dir, stage, write_file};

const SETTINGS: &str = "settings.json";
pub const SUMMARY: &str = "summary.json";
const METRICS: &str = "metrics.jsonl";
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
const MAY_CHANGE: [&str; 7] =
    ["rounds", "patience", "runs", "modes", "gather", "straggler", "lost"];

/// Of one command.
pub const RUNS_MAX: u64 = 1000;

/// summary.json
#[derive(Serialize, Deserialize)]
struct Document {
    settings: Map<String, Value>,
    #[serde(flatten)]
    outcome: Outcome,
}

/// A line of metrics.jsonl.
#[derive(Serialize, Deserialize)]
struct Line {
    run: u32,
    seed: u64,
    mode: String,
    #[serde(flatten)]
    round: Round,
}

pub struct RunStore {
    dir: PathBuf,
    output: OutputDir,
    asked: Map<String, Value>,
    existing: Existing,
    /// What the run that is there was asked.
    earlier: Option<Map<String, Value>>,
    is_prepared: bool,
    /// The runs that are finished, in order.
    pub done: Vec<RunRecord>,
    metrics: Option<File>,
}

impl RunStore {
    /// Looks at what is there, and refuses what must stay. Writes nothing: a dataset that cannot be
    /// read, or settings that make no model, must cost nobody an earlier run.
    pub fn open(dir: &Path, asked: Map<String, Value>, existing: Existing) -> anyhow::Result<Self> {
        let output = OutputDir::open(dir, Kind::Training, existing)?;
        let earlier = earlier(dir, &asked, existing)?;
        let mut store = Self {
            dir: dir.into(),
            output,
            asked,
            existing,
            earlier,
            is_prepared: false,
            done: vec![],
            metrics: None,
        };
        if store.earlier.is_some() && !store.is_of_other_length() {
            store.load();
        }
        Ok(store)
    }

    /// Makes the directory one of this run.
    pub fn prepare(&mut self) -> anyhow::Result<()> {
        if self.is_prepared {
            return Ok(());
        }
        self.output.create()?;
        if self.existing == Existing::Replace {
            clear(&self.dir)?;
        }
        if self.is_of_other_length() {
            self.lengthen()?;
        }
        self.is_prepared = true;
        write_json(&self.dir.join(SETTINGS), &self.asked)
    }

    fn is_of_other_length(&self) -> bool {
        let differs = |key: &str| self.earlier.as_ref().map(|e| e.get(key) != self.asked.get(key));
        differs("rounds") == Some(true) || differs("patience") == Some(true)
    }

    /// Takes over the runs that an earlier command finished. What cannot be read, or does not fit
    /// together, is simply done again from its last checkpoint.
    fn load(&mut self) {
        let Ok(text) = fs::read_to_string(self.dir.join(SUMMARY)) else { return };
        let Ok(document) = serde_json::from_str::<Document>(&text) else { return };
        let mut lines = read_lines(&self.dir.join(METRICS));
        for (run, FinishedRun { header, summary }) in (1..).zip(document.outcome.runs) {
            let rounds: Vec<Round> =
                lines.extract_if(.., |line| line.run == run).map(|line| line.round).collect();
            let is_there = self.place(run).join(MODEL).exists();
            if rounds.len() != summary.rounds as usize || !is_there {
                break;
            }
            self.done.push(RunRecord { header, rounds, summary });
        }
    }

    /// Another length is asked for than before: no run counts as finished, and all go on from
    /// their last checkpoint, but for those that follow another mode's steps and begin anew. Ends
    /// well if it is killed and done again, as the settings are written last.
    fn lengthen(&self) -> anyhow::Result<()> {
        if self.asked.get("server-steps").is_some_and(Value::is_object) {
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
    ) -> anyhow::Result<()> {
        self.prepare()?;
        let place = self.place(run);
        make_dir(&place)?;
        let path = self.dir.join(METRICS);
        let staged = stage(&path, |out| {
            for (run, record) in (1..).zip(&self.done) {
                let Summary { mode, seed, .. } = &record.summary;
                record.rounds.iter().try_for_each(|round| line(out, run, *seed, mode, round))?;
            }
            rounds.iter().try_for_each(|round| line(out, run, seed, mode, round))
        })?;
        staged.commit()?;
        let file = OpenOptions::new().append(true).open(&path);
        self.metrics = Some(file.with_context(|| format!("cannot open {}", path.display()))?);
        Ok(())
    }

    /// One more round of the run that has begun.
    pub fn add(&mut self, run: u32, seed: u64, mode: &str, round: &Round) -> anyhow::Result<()> {
        let Some(file) = &mut self.metrics else { return Ok(()) };
        // At once: nobody who looks on sees half a line.
        let mut text = vec![];
        line(&mut text, run, seed, mode, round)?;
        file.write_all(&text).context("cannot write metrics.jsonl")
    }

    /// A run whose files are all there.
    pub fn finish(&mut self, record: RunRecord) -> anyhow::Result<()> {
        if let Some(file) = self.metrics.take() {
            file.sync_all().context("cannot write metrics.jsonl")?;
        }
        self.done.push(record);
        let document =
            Document { settings: self.asked.clone(), outcome: Outcome::from_runs(&self.done) };
        write_json(&self.dir.join(SUMMARY), &document)
    }
}

/// The settings of the run that is to be resumed, if there is one.
fn earlier(
    dir: &Path,
    asked: &Map<String, Value>,
    existing: Existing,
) -> anyhow::Result<Option<Map<String, Value>>> {
    let path = dir.join(SETTINGS);
    if existing != Existing::Resume || !path.exists() {
        return Ok(None);
    }
    let earlier: Map<String, Value> = serde_json::from_str(&inputs::text(&path)?)
        .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    compare(dir, &earlier, asked)?;
    Ok(Some(earlier))
}

fn compare(
    dir: &Path,
    earlier: &Map<String, Value>,
    asked: &Map<String, Value>,
) -> anyhow::Result<()> {
    let mut keys: Vec<&String> = asked.keys().chain(earlier.keys()).collect();
    keys.retain(|key| !MAY_CHANGE.contains(&key.as_str()) && asked.get(*key) != earlier.get(*key));
    let Some(key) = keys.into_iter().min() else { return Ok(()) };
    let value = |map: &Map<String, Value>| map.get(key).map_or("nothing".into(), Value::to_string);
    bail!(
        "{} holds another run: its {key} is {}, not {}; give the same options, or another -o",
        dir.display(),
        value(earlier),
        value(asked)
    )
}

/// Removes what a run wrote, and nothing else.
fn clear(dir: &Path) -> anyhow::Result<()> {
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
fn remove_workers(place: &Path) -> anyhow::Result<()> {
    let folder = checkpoint::workers_folder(&place.join(CHECKPOINT));
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// That it is not there is as good.
fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

pub fn write_json(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    write_file(path, (serde_json::to_string_pretty(value)? + "\n").as_bytes())
}

fn line(
    out: &mut dyn std::io::Write,
    run: u32,
    seed: u64,
    mode: &str,
    round: &Round,
) -> anyhow::Result<()> {
    let line = Line { run, seed, mode: mode.into(), round: round.clone() };
    serde_json::to_writer(&mut *out, &line)?;
    Ok(out.write_all(b"\n")?)
}

/// The lines up to the first that is none.
fn read_lines(path: &Path) -> Vec<Line> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
}

pub fn write_report(
    dir: &Path,
    settings: &Map<String, Value>,
    runs: &[RunRecord],
) -> anyhow::Result<()> {
    let page = hither_report::train::page(runs, std::slice::from_ref(settings));
    write_file(&dir.join(REPORT), page.as_bytes())
}

/// The settings and the finished runs of a directory, in a comparison those of all modes.
pub fn read(dir: &Path) -> anyhow::Result<(Map<String, Value>, Vec<RunRecord>)> {
    let settings: Map<String, Value> = read_json(&dir.join(SETTINGS))?;
    let mut runs = Vec::new();
    match settings.get("modes").and_then(Value::as_array) {
        Some(modes) => {
            for mode in modes.iter().filter_map(Value::as_str) {
                runs.extend(read_runs(&dir.join(mode))?);
            }
        }
        None => runs = read_runs(dir)?,
    }
    Ok((settings, runs))
}

fn read_runs(dir: &Path) -> anyhow::Result<Vec<RunRecord>> {
    let document: Document = read_json(&dir.join(SUMMARY))
        .with_context(|| format!("{} has no finished run", dir.display()))?;
    let path = dir.join(METRICS);
    let mut lines = read_lines(&path);
    let mut runs = Vec::new();
    for (run, FinishedRun { header, summary }) in (1..).zip(document.outcome.runs) {
        let rounds: Vec<Round> =
            lines.extract_if(.., |line| line.run == run).map(|line| line.round).collect();
        let (found, expected) = (rounds.len(), summary.rounds);
        if found != expected as usize {
            let shown = path.display();
            bail!(
                "{shown}: {found} rounds of run {run}, and {SUMMARY} has {expected}; is it truncated?"
            );
        }
        runs.push(RunRecord { header, rounds, summary });
    }
    Ok(runs)
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    serde_json::from_str(&inputs::text(path)?)
        .map_err(|error| anyhow::anyhow!("{}:{}: {error}", path.display(), error.line()))
}
