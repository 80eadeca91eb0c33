//! `hither model import`.

use std::path::PathBuf;

use hither_data::Checkpoint;
use hither_dlrm::import::Import;

use super::reading::Reading;
use super::{said, table_bytes, write_tables};
use crate::Common;
use crate::outputs::{Force, Kind, OutputDir};

/// Import a checkpoint of facebookresearch/dlrm or TorchRec
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither model import dlrm.pt -o model
  hither model import model.safetensors.index.json -o model
  hither model import torchrec.safetensors --tables user,item -o model
  hither model import torchrec.pt --tables viewer=user,author=user,item -o model
  hither model import int8.safetensors --rows fbgemm-int8 -o model

Reads .pt files, safetensors (also in several files) and directories of \
torch.distributed.checkpoint. No code of a checkpoint is run; other classes than \
plain tensors are refused. docs/formats/model.md lists what is read.")]
pub struct Args {
    /// Checkpoint file, or the directory of a checkpoint in several files
    #[arg(value_name = "CHECKPOINT")]
    file: PathBuf,
    /// Directory to write
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
    /// Name of the model [default: that of the file]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    reading: Reading,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let mut output = OutputDir::open(&args.output, Kind::Model, args.force.into())?;
    let checkpoint = Checkpoint::open(&args.file)?;
    let options = args.reading.options(args.name.as_ref());
    let import = Import::read(&checkpoint, &options)?;
    import.notes.iter().for_each(|note| common.say(&format!("note: {note}")));
    output.create()?;
    write_tables(common, "importing", table_bytes(&import.spec), &args.output, |done| {
        import.write(&args.output, args.force.force, done)
    })?;
    common.say(&said(&import.spec, &args.output));
    Ok(())
}
