//! `hither trace`: summarises traces, converts them to Hither's format, and generates new ones.

mod generate;
mod info;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use hither_sched::trace;

use crate::inputs::{Pace, TraceArgs, Workload, say_notes};
use crate::outputs::Force;
use crate::{Common, outputs};

/// Summarise, convert and generate job traces
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  hither trace info examples/sample.csv
  hither trace convert examples/traces/sacct.txt -o trace.csv
  hither trace generate --jobs 1000 --load 0.8 --gpus 256 -o trace.csv")]
pub enum Command {
    Info(info::Args),
    Convert(Convert),
    Generate(generate::Args),
}

/// Convert a trace of any known format to Hither's own CSV
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither trace convert examples/traces/helios.csv -o trace.csv
  hither trace convert examples/traces/lingjun -o trace.csv
  hither trace convert examples/workload.toml --seed 3 | hither simulate -")]
pub struct Convert {
    #[command(flatten)]
    trace: TraceArgs,
    /// Seed for drawing models where the trace names none [default: 0, or the generator's own]
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
        Command::Info(args) => info::run(args, common)?,
        Command::Generate(args) => generate::run(args, common)?,
        Command::Convert(args) => {
            args.output.iter().try_for_each(|path| args.force.check_file(path))?;
            let read = Workload::open(&args.trace)?.jobs(args.seed, Pace::AsRecorded)?;
            say_notes(common, &read.notes);
            outputs::write_or_print(args.output.as_deref(), &trace::write(&read.jobs))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
