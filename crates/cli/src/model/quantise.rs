//! `hither model quantise`.

use std::path::PathBuf;

use hither_data::output::show_bytes;
use hither_dlrm::Model;
use hither_kernels::bag::Dtype;

use super::{dtype, said, table_bytes, write_tables};
use crate::Common;
use crate::outputs::{Force, Kind, OutputDir};

/// Convert the tables of a model to smaller elements
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither model quantise model --dtype int8 -o model-int8
  hither model quantise model --dtype int4 --tables t3,t7 -o model-mixed

Each row of int8 and int4 has its own scale and bias. MLPs are not converted.")]
pub struct Args {
    /// Model directory
    model: PathBuf,
    /// Element type: int8, int4, fp16, bf16 or fp32
    #[arg(long, value_parser = dtype)]
    dtype: Dtype,
    /// Convert only these tables; tables that share rows change together [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    tables: Option<Vec<String>>,
    /// Directory to write
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let mut output = OutputDir::open(&args.output, Kind::Model, args.force.into())?;
    let model = Model::open(&args.model)?;
    let mut dtypes: Vec<Dtype> = model.spec.tables.iter().map(|table| table.dtype).collect();
    match &args.tables {
        None => dtypes.fill(args.dtype),
        Some(names) => {
            for name in names {
                let index = model.spec.index_of(name)?;
                dtypes[model.spec.owner(index)] = args.dtype;
            }
        }
    }
    let mut spec = model.spec.clone();
    spec.tables.iter_mut().zip(&dtypes).for_each(|(table, dtype)| table.dtype = *dtype);
    output.create()?;
    let spec = write_tables(common, "quantising", table_bytes(&spec), &args.output, |done| {
        model.convert(&dtypes, &args.output, args.force.force, done)
    })?;
    let before = show_bytes(table_bytes(&model.spec));
    common.say(&format!("{} (from {before})", said(&spec, &args.output)));
    Ok(())
}
