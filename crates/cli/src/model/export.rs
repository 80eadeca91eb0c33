//! `hither model export`.

use std::path::PathBuf;

use hither_dlrm::Model;
use hither_dlrm::model::Layout;

use super::{said, table_bytes, write_tables};
use crate::Common;
use crate::outputs::Force;

/// Export a model as one safetensors file for PyTorch or FBGEMM
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither model export model-int8 --layout fbgemm -o tables.safetensors
  hither model export model-int4 --layout torch -o tables.safetensors

Quantised tables become bytes named emb_l.{t}.weight; other tensors are copied. Rows that \
features share are written once per feature.")]
pub struct Args {
    /// Model directory
    model: PathBuf,
    /// Row layout: fbgemm (fp16 scale, fp16 bias, elements) or torch (elements, scale, bias)
    #[arg(long)]
    layout: Layout,
    /// File to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    args.force.check_file(&args.output)?;
    let model = Model::open(&args.model)?;
    write_tables(common, "exporting", table_bytes(&model.spec), &args.output, |done| {
        model.export(args.layout, &args.output, done)
    })?;
    common.say(&said(&model.spec, &args.output));
    Ok(())
}
