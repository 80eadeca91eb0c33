//! `plan.toml`, and beside it `hot.safetensors` with the rows that may be packed.

use std::path::{Path, PathBuf};

use hither_data::safetensors::{Entry, Writer};
use hither_data::{Checkpoint, Dtype};

use super::{Packing, Plan};
use crate::Error;
use crate::model::Spec;

pub const PLAN_FILE: &str = "plan.toml";
pub const HOT_FILE: &str = "hot.safetensors";

impl Plan {
    /// Reads a plan, given by its file or its directory, and checks that it is one for the model.
    pub fn open(path: &Path, spec: &Spec) -> Result<Self, Error> {
        let path = if path.is_dir() { path.join(PLAN_FILE) } else { path.to_owned() };
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let mut plan: Self = toml::from_str(&text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start);
            let line = text[..before.min(text.len())].matches('\n').count() + 1;
            Error::Toml { path: path.clone(), line, problem: error.message().into() }
        })?;
        plan.check(&path, spec)?;
        plan.hot = vec![Vec::new(); plan.tables.len()];
        if plan.tables.iter().any(|t| t.packing != Packing::Off && t.hot_rows > 0) {
            plan.read_hot(&path.with_file_name(HOT_FILE), spec)?;
        }
        Ok(plan)
    }

    fn check(&self, path: &Path, spec: &Spec) -> Result<(), Error> {
        let wrong = |problem| Err(Error::Spec { path: path.into(), problem });
        if self.model != spec.name {
            return wrong(format!("it is a plan for `{}`, not for `{}`", self.model, spec.name));
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

    /// Writes the plan into a directory, the list of rows first. Returns the plan's path.
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
        let mut writer = Writer::create(dir.join(HOT_FILE), &entries, &Default::default())?;
        for (_, ids) in listed() {
            writer.write(bytemuck::cast_slice(ids))?;
        }
        writer.finish()?;
        let path = dir.join(PLAN_FILE);
        hither_data::output::write_file(&path, self.to_toml().as_bytes())?;
        Ok(path)
    }

    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("names, numbers and lists are TOML")
    }
}
