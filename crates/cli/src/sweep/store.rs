//! The directory of a sweep: a manifest of the settings, and one file per finished cell. A sweep
//! that was killed continues with the cells that are missing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use hither_core::record::Summary;
use hither_sched::topo::to_toml;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::grid::Axis;
use crate::inputs::{self, Workload};
use crate::outputs::{Existing, Force, Kind, OutputDir, make_dir, write_file};
use crate::runs::{Plan, PlanArgs};

/// The figures of one cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FinishedCell {
    /// The varied keys and their values in this cell.
    pub cell: BTreeMap<String, String>,
    /// One per policy, in the order of `--policy`.
    pub runs: Vec<Summary>,
}

pub struct CellStore {
    /// Held for its lock.
    output: OutputDir,
}

impl CellStore {
    /// Opens the directory, or continues the sweep in it. Another sweep is an error without `--force`.
    pub fn open(dir: &Path, manifest: &Map<String, Value>, force: Force) -> anyhow::Result<Self> {
        let existing = if force.force { Existing::Replace } else { Existing::Resume };
        let mut output = OutputDir::open(dir, Kind::Sweep, existing)?;
        output.create()?;
        let (path, cells) = (dir.join("manifest.json"), dir.join("cells"));
        if force.force && path.exists() {
            fs::remove_dir_all(&cells)
                .and_then(|()| fs::remove_file(&path))
                .with_context(|| format!("cannot remove the earlier sweep in {}", dir.display()))?;
        }
        make_dir(&cells)?;
        if path.exists() {
            let earlier: Map<String, Value> = serde_json::from_str(&inputs::text(&path)?)
                .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
            let mut keys: Vec<&String> = manifest.keys().chain(earlier.keys()).collect();
            keys.retain(|key| manifest.get(*key) != earlier.get(*key));
            keys.sort();
            keys.dedup();
            if !keys.is_empty() {
                let keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
                bail!(
                    "{} holds another sweep: {} differs; give another -o, or --force to replace it",
                    dir.display(),
                    keys.join(", ")
                );
            }
        } else {
            write_file(&path, (serde_json::to_string_pretty(manifest)? + "\n").as_bytes())?;
        }
        Ok(Self { output })
    }

    fn path(&self, cell: usize) -> PathBuf {
        self.output.path().join("cells").join(format!("{cell:05}.json"))
    }

    /// A cell that an earlier run finished; `None` if its file is missing or cannot be read.
    pub fn load(&self, cell: usize, names: &BTreeMap<String, String>) -> Option<FinishedCell> {
        let text = std::fs::read_to_string(self.path(cell)).ok()?;
        let finished: FinishedCell = serde_json::from_str(&text).ok()?;
        (finished.cell == *names).then_some(finished)
    }

    pub fn save(&self, cell: usize, finished: &FinishedCell) -> anyhow::Result<()> {
        write_file(&self.path(cell), (serde_json::to_string_pretty(finished)? + "\n").as_bytes())
    }
}

/// Everything that the figures depend on. Files are represented by a hash of their content.
pub fn manifest(args: &PlanArgs, plan: &Plan, axes: &[Axis]) -> anyhow::Result<Map<String, Value>> {
    let workload = match &plan.workload {
        Workload::Trace { tables, .. } => {
            hash(&tables.iter().flat_map(|(_, bytes)| bytes).copied().collect::<Vec<u8>>())
        }
        Workload::Generator { settings, .. } => hash(&serde_json::to_vec(settings)?),
        Workload::Live { .. } => unreachable!("sweeps read traces"),
    };
    let profiles = match args.trace.reading.profiles_file() {
        Some(path) => hash(&inputs::bytes(path)?),
        None => String::new(),
    };
    let scenario = &args.scenario;
    let policies: Vec<&str> = plan.policies.iter().map(|entry| entry.name).collect();
    let map = json!({
        "hither": env!("CARGO_PKG_VERSION"),
        "program": program()?,
        "trace": [plan.workload.name(), workload],
        "format": args.trace.reading.format.map(|format| format.name()),
        "profiles": profiles,
        "cluster": [plan.topology.name, hash(to_toml(&plan.topology).as_bytes())],
        "policies": policies,
        "settings": plan.settings,
        "seed": scenario.seed,
        "congestion": scenario.congestion,
        "load": scenario.load,
        "rate": scenario.rate,
        "checkpoint_s": scenario.checkpoint_s,
        "lose_on_preempt": scenario.lose_on_preempt,
        "mtbf_h": scenario.mtbf_h,
        "repair_h": scenario.repair_h,
        "drop_impossible": scenario.drop_impossible,
        "lengths": scenario.lengths,
        "profile_error": scenario.profile_error,
        "hide_congestion": scenario.hide_congestion,
        "restart_scale": scenario.restart_scale,
        "storage_gbit": [scenario.storage_read_gbit, scenario.storage_write_gbit],
        "profiles_told": !args.trace.reading.hides_profiles(),
        "vary": axes,
    });
    match map {
        Value::Object(map) => Ok(map),
        _ => bail!("a manifest is an object"),
    }
}

/// A hash of this very program: cells of another build may hold other figures, whatever its version.
fn program() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("cannot find the running program")?;
    let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hash(&bytes))
}

/// Good enough to notice that a file has changed, and the same for every toolchain (FNV-1a over
/// words of eight bytes).
fn hash(bytes: &[u8]) -> String {
    let eat = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    let word =
        |part: &[u8]| part.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    let start = eat(0xcbf2_9ce4_8422_2325, bytes.len() as u64);
    format!("{:016x}", bytes.chunks(8).map(word).fold(start, eat))
}
