//! `hither model import`.

use std::path::PathBuf;

use hither_data::Checkpoint;
use hither_dlrm::import::{Import, Options};
use hither_dlrm::model::Interaction;
use hither_kernels::bag::Pooling;
use hither_kernels::bag::quant::Foreign;

use super::{pooling, rows, said, table_bytes, with_bar};
use crate::Common;
use crate::outputs::{Force, Kind, OutputDir};

/// Turn a checkpoint of facebookresearch/dlrm or TorchRec (.pt, safetensors) into a model
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither model import dlrm.pt -o model
  hither model import torchrec.safetensors --tables user,item -o model
  hither model import int8.safetensors --rows fbgemm-int8 -o model

No code of a .pt file is run: classes other than plain tensors are refused.")]
pub struct Args {
    /// Checkpoint: .pt as torch.save writes it, or safetensors
    file: PathBuf,
    /// Directory to write
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Name of the model [default: that of the file]
    #[arg(long)]
    name: Option<String>,
    /// dot, cat or dcn, where the shapes allow several
    #[arg(long, value_name = "KIND")]
    interaction: Option<Interaction>,
    /// Pooling of all tables, which no checkpoint tells: sum, mean or max [default: sum]
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    pooling: Option<Pooling>,
    /// Tables in the order of the features; those not named follow [default: as saved, by number]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    tables: Option<Vec<String>>,
    /// Layout of tables of bytes: fbgemm-int8, fbgemm-int4, torch-int8 or torch-int4
    #[arg(long, value_name = "LAYOUT", value_parser = rows)]
    rows: Option<Foreign>,
    /// The outputs are logits [default: for TorchRec's models]
    #[arg(long, conflicts_with = "sigmoid")]
    logits: bool,
    /// The top MLP ends in a sigmoid [default: for facebookresearch/dlrm's models]
    #[arg(long)]
    sigmoid: bool,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let mut output = OutputDir::open(&args.output, Kind::Model, args.force.into())?;
    let checkpoint = Checkpoint::open(&args.file)?;
    let options = Options {
        name: args.name.clone(),
        interaction: args.interaction,
        pooling: args.pooling,
        tables: args.tables.clone(),
        rows: args.rows,
        logits: (args.logits || args.sigmoid).then_some(args.logits),
    };
    let import = Import::read(&checkpoint, &options)?;
    import.notes.iter().for_each(|note| common.say(&format!("note: {note}")));
    output.create()?;
    with_bar(common, table_bytes(&import.spec), "importing, MiB", |done| {
        import.write(&args.output, args.force.force, done)
    })?;
    common.say(&said(&import.spec, &args.output));
    Ok(())
}
