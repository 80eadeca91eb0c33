//! `hither dataset convert`.

use std::path::PathBuf;

use hither_gnn::load;

use super::DataArgs;
use crate::Common;
use crate::outputs::Force;

/// Write a dataset in our own form, which is mapped and opens at once
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither dataset convert products/ -o products.graph.safetensors
  hither dataset convert flickr.npz --seed 3 -o flickr-3.graph.safetensors

The split becomes part of the file: the dataset's own, or the one that the seed draws.")]
pub struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// Seed of a split that is drawn
    #[arg(long, value_name = "N", default_value_t = 1, env = "HITHER_SEED")]
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
        let data = args.data.open(args.seed)?;
        Ok(load::write(&data, &args.output)?)
    })?;
    common.say(&format!("wrote {}", args.output.display()));
    Ok(())
}
