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
    /// Every option with its default
    #[arg(long)]
    options: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    if args.options {
        // The settings print themselves, so that no list of ours can fall behind them.
        text.push_str(&format!("{:#?}\n", Settings::default()));
    } else {
        let width = TABLE.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
        for entry in TABLE {
            text.push_str(&format!("{:width$}  {}\n", entry.name, entry.about));
        }
    }
    outputs::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
