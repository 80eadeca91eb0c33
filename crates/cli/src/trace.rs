//! `hither trace`: look at traces, turn them into our format, and draw new ones.

mod generate;
mod info;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use hither_sched::trace;

use crate::inputs::{TraceArgs, Workload};
use crate::outputs::Force;
use crate::{Common, outputs};

/// Describe, convert and generate traces of jobs
#[derive(Debug, Subcommand)]
pub enum Command {
    Info(info::Args),
    Convert(Convert),
    Generate(generate::Args),
}

/// Rewrite a trace of any known format as Hither's own CSV
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither trace convert cluster_log.csv --format philly -o trace.csv
  hither trace convert workload.toml --seed 3 | hither simulate - --policy dally,fifo")]
pub struct Convert {
    #[command(flatten)]
    trace: TraceArgs,
    /// Seed that draws models for traces that name none [default: 0, or the generator's own]
    #[arg(long, value_name = "N", env = "HITHER_SEED")]
    seed: Option<u64>,
    /// File to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

pub fn run(command: &Command, common: &Common) -> anyhow::Result<ExitCode> {
    match command {
        Command::Info(args) => info::run(args)?,
        Command::Generate(args) => generate::run(args, common)?,
        Command::Convert(args) => {
            args.output.iter().try_for_each(|path| args.force.check_file(path))?;
            let read = Workload::open(&args.trace)?.jobs(args.seed, None)?;
            read.notes.iter().for_each(|note| common.say(&format!("note: {note}")));
            outputs::write_or_print(args.output.as_deref(), &trace::write(&read.jobs))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
