//! `hither model generate`.

use std::path::PathBuf;

use anyhow::bail;
use clap::builder::RangedU64ValueParser;
use hither_dlrm::generate::{Shape, generate};
use hither_dlrm::model::{Cross, Interaction, ROWS_MAX};
use hither_kernels::bag::{Dtype, Pooling};

use super::{dtype, pooling, said, table_bytes, write_tables};
use crate::Common;
use crate::outputs::{Force, Kind, OutputDir};

/// Generate a synthetic model of any shape
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither model generate --preset rm1 -o rm1
  hither model generate --preset mlperf --rows 100000 --dtype int8 -o small
  hither model generate --tables 8 --rows 1000000 --dim 64 \\
      --bottom 13-512-64 --top 512-256-1 -o mine
  hither model generate --interaction dcn --cross-rank 256 -o dcn

Presets (tables x rows x dim): micro24 12 x 500K x 128, rm2_1 60 x 1M x 128, rm1 32 x 500K x 64, \
mlperf 26 x 1M x 128. Other flags override the preset.")]
pub struct Args {
    /// Preset: micro24, rm2_1, rm1 or mlperf
    #[arg(long, value_name = "NAME", default_value = "mlperf")]
    preset: String,
    /// Number of tables
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    tables: Option<usize>,
    /// Rows per table
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=ROWS_MAX as u64))]
    rows: Option<usize>,
    /// Elements per row
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    dim: Option<usize>,
    /// Bottom MLP from the dense features on, such as 13-512-256-128
    #[arg(long, value_name = "SIZES")]
    bottom: Option<Sizes>,
    /// Top MLP from its first hidden layer on, such as 1024-1024-512-256-1
    #[arg(long, value_name = "SIZES")]
    top: Option<Sizes>,
    /// Interaction of features: dot, cat or dcn [default: the preset's, dot]
    #[arg(long, value_name = "KIND")]
    interaction: Option<Interaction>,
    /// Number of cross layers, for dcn [default: 3]
    #[arg(long, value_name = "N")]
    cross_layers: Option<usize>,
    /// Rank of the cross layers, for dcn [default: 512]
    #[arg(long, value_name = "N")]
    cross_rank: Option<usize>,
    /// Element type of the tables: fp32, fp16, bf16, int8 or int4
    #[arg(long, default_value = "fp32", value_parser = dtype)]
    dtype: Dtype,
    /// Pooling of each bag: sum, mean or max
    #[arg(long, value_name = "HOW", default_value = "sum", value_parser = pooling)]
    pooling: Pooling,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
    seed: u64,
    /// Directory to write
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    force: Force,
}

/// `13-512-256-128`
#[derive(Clone, Debug)]
struct Sizes(Vec<usize>);

impl std::str::FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |word: &str| match word.parse() {
            Ok(size @ 1..=1_048_576) => Ok(size),
            _ => {
                Err(format!("`{word}` is not the size of a layer; sizes look like 13-512-256-128"))
            }
        };
        text.split('-').map(size).collect::<Result<_, _>>().map(Self)
    }
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let mut output = OutputDir::open(&args.output, Kind::Model, args.force.into())?;
    let mut shape = Shape::preset(&args.preset)?;
    shape.tables = args.tables.unwrap_or(shape.tables);
    shape.rows = args.rows.unwrap_or(shape.rows);
    shape.dim = args.dim.unwrap_or(shape.dim);
    shape.dtype = args.dtype;
    shape.pooling = args.pooling;
    shape.interaction = args.interaction.unwrap_or(shape.interaction);
    if shape.interaction == Interaction::Dcn {
        let (layers, rank) = (args.cross_layers.unwrap_or(3), args.cross_rank.unwrap_or(512));
        shape.cross = Some(Cross { layers, rank });
    } else if args.cross_layers.is_some() || args.cross_rank.is_some() {
        bail!("--cross-layers and --cross-rank are for --interaction dcn");
    }
    match (&args.bottom, shape.bottom.last_mut()) {
        (Some(Sizes(sizes)), _) => shape.bottom = sizes.clone(),
        // A preset's bottom ends at the tables' dim, whichever that is.
        (None, Some(last)) => *last = shape.dim,
        (None, None) => {}
    }
    if let Some(Sizes(sizes)) = &args.top {
        shape.top = sizes.clone();
    }
    let name = args.output.file_name().unwrap_or_default().to_string_lossy();
    let spec = shape.spec(&name);
    spec.check().map_err(anyhow::Error::msg)?;
    output.create()?;
    write_tables(common, "drawing", table_bytes(&spec), &args.output, |done| {
        generate(&spec, args.seed, &args.output, args.force.force, done)
    })?;
    common.say(&format!("seed {}: {}", args.seed, said(&spec, &args.output)));
    Ok(())
}
