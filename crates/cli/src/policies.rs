//! `hither policies`: what can be run, and its options.

use std::process::ExitCode;

use hither_sched::policy::{Settings, TABLE};

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

/// The defaults as `policy.option=value`, out of their own `Debug` form: no list of ours can fall
/// behind the options themselves.
fn options() -> String {
    let debug = format!("{:#?}", Settings::default());
    let mut path: Vec<&str> = Vec::new();
    // The elements of a list, while one is open.
    let mut list: Option<(&str, Vec<&str>)> = None;
    let mut text = String::new();
    for line in debug.lines().skip(1).map(|line| line.trim().trim_end_matches(',')) {
        match line.split_once(": ") {
            Some((name, value)) if value.ends_with('{') => path.push(name),
            Some((name, "[")) => list = Some((name, Vec::new())),
            // What is off by default has no value to give.
            Some((name, "None")) => text.push_str(&format!("{}.{name} (off)\n", path.join("."))),
            Some((name, value)) => {
                text.push_str(&format!("{}.{name}={}\n", path.join("."), word(value)));
            }
            None => match &mut list {
                Some((name, items)) if line == "]" => {
                    let items = items.join(",");
                    text.push_str(&format!("{}.{name}=[{items}]\n", path.join(".")));
                    list = None;
                }
                Some((_, items)) => items.push(line),
                None => {
                    path.pop();
                }
            },
        }
    }
    text
}

/// `UsefulService` to `useful-service`; numbers as they are.
fn word(value: &str) -> String {
    if value == "TwoDLas" {
        return "2d-las".into();
    }
    let mut word = String::new();
    for c in value.chars() {
        if c.is_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.extend(c.to_lowercase());
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    #[test]
    fn the_options_shown_are_the_defaults() {
        let text = options();
        assert!(text.contains("dally.timers=auto\n"), "{text}");
        assert!(text.contains("tiresias.thresholds=[3250.0,7200.0]\n"), "{text}");
        let mut table = toml::Table::new();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            settings::put(&mut table, key, value).expect("a path of names");
        }
        assert_eq!(settings::settings(&table).expect("known options"), Settings::default());
    }
}
