//! `hither model from-embeddings`: a trained graph's embeddings as a model that can be served.

use std::path::PathBuf;

use hither_data::Checkpoint;
use hither_dlrm::embeddings::Embeddings;

use super::{said, table_bytes, write_tables};
use crate::Common;
use crate::outputs::{Force, Kind, OutputDir};
use hither_gnn::run::EMBEDDINGS;

/// Make a model of a trained graph's embeddings: one table per kind of node
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither train examples/shop -o shop
  hither model from-embeddings shop -o recommender
  hither model run recommender --inputs examples/shop/pairs.csv

The tables `user` and `item` have the rows of the embeddings. A request names one row of each; its \
score is their dot product, by which `hither train` ranks links. One dense feature is taken, as \
all models have some, and not used: it is 0 where a request leaves it out. Where all nodes are alike, the tables \
`source` and `target` share one set of rows.")]
pub struct Args {
    /// embeddings.safetensors of `hither train`, or the directory of the run
    embeddings: PathBuf,
    /// Directory to write
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Name of the model
    #[arg(long, default_value = "links")]
    name: String,
    /// Put the score through a sigmoid
    #[arg(long)]
    sigmoid: bool,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let mut output = OutputDir::open(&args.output, Kind::Model, args.force.into())?;
    let is_run = args.embeddings.is_dir();
    let path = if is_run { args.embeddings.join(EMBEDDINGS) } else { args.embeddings.clone() };
    let file = Checkpoint::open(&path)?;
    let embeddings = Embeddings::read(&file)?;
    let spec = embeddings.spec(&args.name, args.sigmoid);
    output.create()?;
    write_tables(common, "writing", table_bytes(&spec), &args.output, |done| {
        embeddings.write(&spec, &args.output, args.force.force, done)
    })?;
    common.say(&said(&spec, &args.output));
    Ok(())
}
