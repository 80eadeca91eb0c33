//! Options of the policies, from a TOML file and from `--set policy.option=value`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use hither_sched::policy::{self, Entry, Settings};
use serde::Deserialize as _;
use toml::{Table, Value};

use crate::exec_policy;
use crate::inputs::{shown, text};

#[derive(Debug, Clone, clap::Args)]
pub struct PolicyArgs {
    /// Policies to run, separated by commas, or `all`; `hither policies` lists them. `exec:PROGRAM` is a
    /// program that answers for itself (docs/formats/policy-program.md)
    /// [default: dally,tiresias,fifo,srtf]
    #[arg(long, short, value_name = "NAME,…", value_delimiter = ',')]
    pub policy: Vec<String>,
    #[command(flatten)]
    pub options: OptionArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct OptionArgs {
    /// Set an option of a policy, such as dally.score=left; `hither policies --options` lists them
    #[arg(long, value_name = "POLICY.OPTION=VALUE")]
    pub set: Vec<String>,
    /// Options of policies as TOML, one table per policy, such as `hither tune` writes; repeat the flag
    /// for several files. --set overrides them
    #[arg(long, value_name = "FILE")]
    pub settings: Vec<PathBuf>,
}

/// A comparison that is worth looking at and stays quick on traces of 100,000 jobs: a rival, and a
/// bound on either side. Gandiva would take minutes there.
const DEFAULT: [&str; 4] = ["dally", "tiresias", "fifo", "srtf"];

impl PolicyArgs {
    /// The policies asked for, each once, in the order asked.
    pub fn entries(&self) -> anyhow::Result<Vec<&'static Entry>> {
        let mut entries: Vec<&'static Entry> = Vec::new();
        let mut add = |entry: &'static Entry| {
            if entries.iter().all(|e| e.name != entry.name) {
                entries.push(entry);
            }
        };
        for name in self.policy.iter().map(|n| n.trim()) {
            match policy::find(name) {
                Some(entry) => add(entry),
                None if name.starts_with(exec_policy::PREFIX) => add(exec_policy::entry(name)),
                None if name == "all" => policy::TABLE.iter().for_each(&mut add),
                None => bail!("{}", unknown(name)),
            }
        }
        if entries.is_empty() {
            entries.extend(DEFAULT.iter().filter_map(|name| policy::find(name)));
        }
        Ok(entries)
    }

    /// The options, once policies and options are known to be right.
    pub fn checked(&self) -> anyhow::Result<Table> {
        let table = self.options.table()?;
        settings(&table)?;
        self.entries()?;
        Ok(table)
    }
}

impl OptionArgs {
    /// The options as a table, before any cell of a sweep changes them.
    pub fn table(&self) -> anyhow::Result<Table> {
        let mut table = Table::new();
        for path in &self.settings {
            merge(&mut table, read(path)?);
        }
        for set in &self.set {
            let (key, value) = set
                .split_once('=')
                .ok_or_else(|| anyhow!("--set {set}: expected POLICY.OPTION=VALUE"))?;
            put(&mut table, key.trim(), value.trim())?;
        }
        Ok(table)
    }
}

pub fn unknown(name: &str) -> String {
    let names: Vec<&str> = policy::TABLE.iter().map(|e| e.name).collect();
    let names = names.join(", ");
    format!("unknown policy {name:?}; the policies are {names}, all, and exec:PROGRAM")
}

fn read(path: &Path) -> anyhow::Result<Table> {
    let text = text(path)?;
    let fail = |error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
        let line = 1 + before.matches('\n').count();
        anyhow!("{}:{line}: {}", shown(path), error.message().trim_end())
    };
    let table: Table = toml::from_str(&text).map_err(fail)?;
    // Straight from the text once more, as only that knows the lines.
    toml::from_str::<Settings>(&text).map_err(fail)?;
    Ok(table)
}

/// Puts the values of another table over those of the first.
fn merge(table: &mut Table, other: Table) {
    for (key, value) in other {
        match (table.get_mut(&key), value) {
            (Some(Value::Table(inner)), Value::Table(other)) => merge(inner, other),
            (_, value) => drop(table.insert(key, value)),
        }
    }
}

/// The options that are not the defaults.
pub fn changed(settings: &Settings) -> anyhow::Result<Table> {
    let [is, default] = [settings, &Settings::default()].map(Table::try_from);
    Ok(difference(is?, &default?))
}

fn difference(is: Table, default: &Table) -> Table {
    let differs = |(key, value): (String, Value)| match (value, default.get(&key)) {
        (Value::Table(is), Some(Value::Table(default))) => {
            let inner = difference(is, default);
            (!inner.is_empty()).then_some((key, Value::Table(inner)))
        }
        (value, default) => (Some(&value) != default).then_some((key, value)),
    };
    is.into_iter().filter_map(differs).collect()
}

/// Sets `a.b.c` to a value: TOML, or else a bare word.
pub fn put(table: &mut Table, key: &str, value: &str) -> anyhow::Result<()> {
    let mut path: Vec<&str> = key.split('.').collect();
    if path.len() < 2 || path.iter().any(|part| part.is_empty()) {
        bail!("{key}={value}: expected POLICY.OPTION=VALUE, such as dally.round_s=600");
    }
    let last = path.pop().unwrap_or_default();
    let mut at = table;
    for part in path {
        let inner = at.entry(part).or_insert_with(|| Value::Table(Table::new()));
        at = inner.as_table_mut().with_context(|| format!("{key}: {part} is not a table"))?;
    }
    at.insert(last.into(), word(value));
    Ok(())
}

fn word(text: &str) -> Value {
    let parsed: Option<Table> = toml::from_str(&format!("value = {text}")).ok();
    // More than one key means that the text broke out of its line.
    let value = parsed.filter(|t| t.len() == 1).and_then(|mut t| t.remove("value"));
    value.unwrap_or_else(|| Value::String(text.into()))
}

/// The options themselves; unknown ones are errors.
pub fn settings(table: &Table) -> anyhow::Result<Settings> {
    let settings = Settings::deserialize(Value::Table(table.clone()))
        .map_err(|error| anyhow!("options of policies: {}", error.message().trim_end()))?;
    settings.check()?;
    Ok(settings)
}

/// Calls `tell` with each value under its path, such as dally.level_s.pod.
pub fn flatten(path: &str, value: &Value, tell: &mut impl FnMut(&str, &str)) {
    match value {
        Value::Table(table) => {
            for (name, value) in table {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, tell);
            }
        }
        Value::String(text) => tell(path, text),
        // 1800, not 1800.0.
        Value::Float(number) => tell(path, &number.to_string()),
        other => tell(path, &other.to_string()),
    }
}
