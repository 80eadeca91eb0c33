//! `hither policies`: lists the policies and their options.

use std::process::ExitCode;

use hither_sched::policy::{Entry, Settings, TABLE};
use serde::Serialize;
use toml::Value;

use crate::outputs;

/// List the policies, or with --options everything that can be set
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither policies
  hither policies --options
  hither policies --json
  hither simulate examples/sample.csv --policy dally --set dally.round_s=600")]
pub struct Args {
    /// List every option with its default, in the form that --set takes
    #[arg(long)]
    options: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    about: &'static str,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let rows = TABLE.iter().map(|&Entry { name, about, .. }| Row { name, about });
    match (args.options, args.json) {
        (true, true) => outputs::print_json(&Settings::default())?,
        (true, false) => outputs::print(&options())?,
        (false, true) => outputs::print_json(&rows.collect::<Vec<_>>())?,
        (false, false) => {
            let width = TABLE.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
            let lines = rows.map(|row| format!("{:width$}  {}\n", row.name, row.about));
            outputs::print(&lines.collect::<String>())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The defaults as `policy.option=value`.
fn options() -> String {
    let defaults = Value::try_from(Settings::default()).expect("options are plain values");
    let mut text = String::new();
    list("", &defaults, &mut text);
    text
}

fn list(path: &str, value: &Value, text: &mut String) {
    match value {
        Value::Table(table) if !table.is_empty() => {
            for (name, value) in table {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                list(&path, value, text);
            }
        }
        Value::String(word) => text.push_str(&format!("{path}={word}\n")),
        value => text.push_str(&format!("{path}={value}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    #[test]
    fn the_options_shown_are_the_defaults() {
        let text = options();
        assert!(text.contains("dally.timers=auto\n"), "{text}");
        assert!(text.contains("tiresias.quantiles=[0.5, 0.85]\n"), "{text}");
        let mut table = toml::Table::new();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            settings::put(&mut table, key, value).expect("a path of names");
        }
        assert_eq!(settings::settings(&table).expect("known options"), Settings::default());
    }
}
