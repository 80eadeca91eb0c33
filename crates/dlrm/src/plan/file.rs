//! `plan.toml`, and beside it `hot.HASH.safetensors` with the rows that may be packed.
//!
//! The plan names its file of rows, and the name holds a hash of them. A new plan writes its own file,
//! then replaces `plan.toml`, then removes the old file: at no time does a plan have another's rows.

use std::path::{Path, PathBuf};

use hither_data::safetensors::{Entry, Writer};
use hither_data::{Checkpoint, Dtype};

use super::{Fnv, Packing, Plan};
use crate::Error;
use crate::model::Spec;

pub const PLAN_FILE: &str = "plan.toml";
/// More threads than any machine has; a larger number is a slip of the pen.
const THREADS_MAX: usize = 1024;
/// Rows fetched ahead on a GPU: twice this many vectors of a row would fill a block's shared memory.
const DISTANCE_MAX: u32 = 10;
/// Blocks of 256 threads that any SM holds.
const BLOCKS_MAX: u32 = 8;

impl Plan {
    /// Reads a plan, given by its file or its directory, and checks that it is one for the model.
    pub fn open(path: &Path, spec: &Spec) -> Result<Self, Error> {
        let path = if path.is_dir() { path.join(PLAN_FILE) } else { path.to_owned() };
        let first = Self::open_once(&path, spec);
        // A plan that is replaced at this moment takes its rows along: the new one has its own.
        if first.is_err() { Self::open_once(&path, spec) } else { first }
    }

    fn open_once(path: &Path, spec: &Spec) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        let mut plan: Self = toml::from_str(&text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start);
            let line = text.get(..before).unwrap_or(&text).matches('\n').count() + 1;
            Error::Toml { path: path.into(), line, problem: error.message().into() }
        })?;
        plan.check(path, spec)?;
        plan.hot = vec![Vec::new(); plan.tables.len()];
        if plan.tables.iter().any(|t| t.packing != Packing::Off && t.hot_rows > 0) {
            let Some(name) = plan.hot_file.clone() else {
                let problem = "a table packs rows, but `hot` names no file of rows".into();
                return Err(Error::Spec { path: path.into(), problem });
            };
            if Path::new(&name).file_name() != Some(name.as_ref()) {
                let problem = format!("`hot` must be the name of a file beside it, not {name:?}");
                return Err(Error::Spec { path: path.into(), problem });
            }
            plan.read_hot(&path.with_file_name(name), spec)?;
        }
        Ok(plan)
    }

    fn check(&self, path: &Path, spec: &Spec) -> Result<(), Error> {
        let wrong = |problem| Err(Error::Spec { path: path.into(), problem });
        if self.model != spec.name {
            return wrong(format!("it is a plan for `{}`, not for `{}`", self.model, spec.name));
        }
        if self.threads > THREADS_MAX {
            let threads = self.threads;
            return wrong(format!("threads = {threads}: must be between 0 and {THREADS_MAX}"));
        }
        if let Some(cuda) = &self.cuda {
            if !(1..=DISTANCE_MAX).contains(&cuda.distance) {
                let distance = cuda.distance;
                return wrong(format!(
                    "cuda.distance = {distance}: must be between 1 and {DISTANCE_MAX}"
                ));
            }
            if cuda.min_blocks > BLOCKS_MAX {
                let blocks = cuda.min_blocks;
                return wrong(format!(
                    "cuda.min_blocks = {blocks}: must be between 0 and {BLOCKS_MAX}"
                ));
            }
        }
        if self.tables.len() != spec.tables.len() {
            let (found, expected) = (self.tables.len(), spec.tables.len());
            return wrong(format!("it has {found} tables, the model {expected}"));
        }
        for (planned, table) in self.tables.iter().zip(&spec.tables) {
            if planned.name != table.name {
                let (found, expected) = (&planned.name, &table.name);
                return wrong(format!("table `{found}` stands where the model has `{expected}`"));
            }
            if planned.hot_rows > table.rows {
                let (name, rows) = (&table.name, table.rows);
                return wrong(format!("table `{name}` cannot have more hot rows than its {rows}"));
            }
        }
        Ok(())
    }

    fn read_hot(&mut self, path: &Path, spec: &Spec) -> Result<(), Error> {
        let file = Checkpoint::open(path)?;
        for (t, (planned, table)) in self.tables.iter().zip(&spec.tables).enumerate() {
            if planned.packing == Packing::Off || planned.hot_rows == 0 {
                continue;
            }
            let name = format!("hot.{t}");
            let Some(tensor) = file.tensors.get(&name) else {
                return Err(Error::Missing { path: path.into(), name });
            };
            let wrong = || {
                let problem = format!(
                    "tensor `{name}` does not hold the numbers of {} rows of table `{}`",
                    planned.hot_rows, table.name
                );
                Error::Spec { path: path.into(), problem }
            };
            let ids = tensor.as_i64().filter(|ids| ids.len() >= planned.hot_rows);
            let row = |id: &i64| u32::try_from(*id).ok().filter(|id| (*id as usize) < table.rows);
            let ids: Option<Vec<u32>> = ids.ok_or_else(wrong)?.iter().map(row).collect();
            self.hot[t] = ids.ok_or_else(wrong)?;
        }
        Ok(())
    }

    /// Writes the plan and its rows into a directory, in place of those that are there. Returns the
    /// plan's path.
    pub fn save(&self, dir: &Path) -> Result<PathBuf, Error> {
        std::fs::create_dir_all(dir).map_err(Error::io("make the directory", dir))?;
        let listed = || self.hot.iter().enumerate().filter(|(_, ids)| !ids.is_empty());
        let entries: Vec<Entry> = listed()
            .map(|(t, ids)| Entry {
                name: format!("hot.{t}"),
                dtype: Dtype::U32,
                shape: vec![ids.len()],
            })
            .collect();
        let mut hash = Fnv::default();
        for (t, ids) in listed() {
            hash.add(t as u64);
            ids.iter().for_each(|id| hash.add(u64::from(*id)));
        }
        let name = (!entries.is_empty()).then(|| format!("hot.{:016x}.safetensors", hash.0));
        if let Some(name) = &name {
            let mut writer = Writer::create(dir.join(name), &entries, &Default::default())?;
            for (_, ids) in listed() {
                writer.write(bytemuck::cast_slice(ids))?;
            }
            writer.finish()?;
        }
        let path = dir.join(PLAN_FILE);
        let plan = Self { hot_file: name.clone(), ..self.clone() };
        hither_data::output::write_file(&path, plan.to_toml().as_bytes())?;
        remove_others(dir, name.as_deref());
        Ok(path)
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("names, numbers and lists are TOML")
    }
}

/// Removes the rows of former plans. One that cannot be removed takes room and does no harm.
fn remove_others(dir: &Path, kept: Option<&str>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| Some(*name) != kept) else { continue };
        let hash = name.strip_prefix("hot.").and_then(|name| name.strip_suffix(".safetensors"));
        let is_ours = |hash: &str| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit());
        if hash.is_some_and(is_ours) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
