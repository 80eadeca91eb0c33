//! `hither dataset convert`.

use std::path::PathBuf;

use hither_gnn::load;

use super::DataArgs;
use crate::Common;
use crate::outputs::Force;

/// Convert a dataset to our own layout, which is memory-mapped and opens at once
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither dataset convert products/ -o products.graph.safetensors
  hither dataset convert examples/graph --seed 3 -o mine.graph.safetensors

The file holds the split, either the dataset's own or the drawn one, and the names of nodes and \
classes.")]
pub struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// Seed of a drawn split
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
    #[arg(allow_negative_numbers = true)]
    seed: u64,
    /// File to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    args.force.check_file(&args.output)?;
    common.pool()?.install(|| -> anyhow::Result<()> {
        let data = args.data.open(args.seed, common)?;
        common.note_changes(&data);
        let spinner = common.spinner(format!("writing {}", args.output.display()));
        let written = load::write(&data, &args.output);
        spinner.finish_and_clear();
        Ok(written?)
    })?;
    common.say(&format!("wrote {}", args.output.display()));
    Ok(())
}
