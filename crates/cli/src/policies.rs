//! `hither policies`: what can be run, and its options.

use std::process::ExitCode;

use hither_sched::policy::{Settings, TABLE};
use toml::Value;

use crate::outputs;

/// List the policies, and with --options what can be set
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither policies
  hither policies --options
  hither simulate trace.csv --policy dally --set dally.round_s=600")]
pub struct Args {
    /// Every option with its default, as --set takes it
    #[arg(long)]
    options: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    if args.options {
        text.push_str(&options());
    } else {
        let width = TABLE.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
        for entry in TABLE {
            text.push_str(&format!("{:width$}  {}\n", entry.name, entry.about));
        }
    }
    outputs::print(&text)?;
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
        Value::Table(table) => {
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
        assert!(text.contains("tiresias.thresholds=[3250.0, 7200.0]\n"), "{text}");
        let mut table = toml::Table::new();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            settings::put(&mut table, key, value).expect("a path of names");
        }
        assert_eq!(settings::settings(&table).expect("known options"), Settings::default());
    }
}
