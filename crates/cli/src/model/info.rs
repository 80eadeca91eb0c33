//! `hither model info`.

use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use hither_data::Checkpoint;
use hither_data::output::show_bytes;
use hither_dlrm::Model;
use hither_dlrm::import::Import;
use hither_dlrm::model::{Cross, Projection, Spec, TableSpec};
use serde::Serialize;

use super::pooling_name;
use super::reading::Reading;
use crate::outputs;

/// Describe a model or a checkpoint: tables, MLPs, bytes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither model info model
  hither model info dlrm.pt --json")]
pub struct Args {
    /// Model directory, or a checkpoint that `hither model import` reads
    model: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Serialize)]
struct Info<'a> {
    name: &'a str,
    interaction: &'static str,
    sigmoid: bool,
    dense_features: usize,
    bottom: &'a [usize],
    top: &'a [usize],
    cross: Option<Cross>,
    projection: Option<&'a Projection>,
    tables: Vec<TableInfo<'a>>,
    table_bytes: u64,
    mlp_bytes: u64,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct TableInfo<'a> {
    name: &'a str,
    rows: usize,
    dim: usize,
    dtype: &'static str,
    pooling: &'static str,
    padding: Option<i64>,
    shares: Option<&'a str>,
    row_bytes: usize,
    bytes: u64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let (spec, notes) = if args.model.is_dir() && !Checkpoint::is_in_parts(&args.model) {
        if let Some(option) = args.reading.given() {
            anyhow::bail!(
                "{option} is for checkpoints, and {} is not a checkpoint; leave it out",
                args.model.display()
            );
        }
        (Model::open(&args.model)?.spec, Vec::new())
    } else {
        let checkpoint = Checkpoint::open(&args.model)?;
        let import = Import::read(&checkpoint, &args.reading.options(None))?;
        (import.spec, import.notes)
    };
    match args.json {
        true => outputs::print_json(&describe(&spec, notes)),
        false => outputs::print(&shown(&describe(&spec, notes))),
    }
}

fn describe(spec: &Spec, notes: Vec<String>) -> Info<'_> {
    let table = |table: &'_ TableSpec| table.bytes();
    let entries = spec.tensors();
    let all: u64 = entries
        .iter()
        .map(|(_, entry)| (entry.shape.iter().product::<usize>() * entry.dtype.bytes()) as u64)
        .sum();
    let table_bytes = spec.tables.iter().map(table).sum();
    Info {
        name: &spec.name,
        interaction: spec.interaction.name(),
        sigmoid: spec.sigmoid,
        dense_features: spec.dense_features(),
        bottom: &spec.bottom,
        top: &spec.top,
        cross: spec.cross,
        projection: spec.projection.as_ref(),
        tables: spec.tables.iter().map(table_info).collect(),
        table_bytes,
        mlp_bytes: all - table_bytes,
        notes,
    }
}

fn table_info(table: &TableSpec) -> TableInfo<'_> {
    TableInfo {
        name: &table.name,
        rows: table.rows,
        dim: table.dim,
        dtype: table.dtype.name(),
        pooling: pooling_name(table.pooling),
        padding: table.padding,
        shares: table.shares.as_deref(),
        row_bytes: table.row_bytes(),
        bytes: table.bytes(),
    }
}

fn shown(info: &Info<'_>) -> String {
    let sizes = |sizes: &[usize]| -> String {
        sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("-")
    };
    let cross = info.cross.map_or(String::new(), |cross| {
        format!(", {} cross layers of rank {}", cross.layers, cross.rank)
    });
    let projection = info.projection.map_or(String::new(), |Projection { left, right }| {
        format!(", left {}, right {}", sizes(left), sizes(right))
    });
    let end = if info.sigmoid { "sigmoid" } else { "logits" };
    let mut text = format!(
        "model        {}\nbottom MLP   {}\ninteraction  {}{cross}{projection}\ntop MLP      {}, {end}\n\
         tables       {}, {}\nMLPs         {}\n\n",
        info.name,
        sizes(info.bottom),
        info.interaction,
        sizes(info.top),
        info.tables.len(),
        show_bytes(info.table_bytes),
        show_bytes(info.mlp_bytes),
    );
    text.push_str(&tables(&info.tables));
    info.notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n")));
    text
}

/// A line per run of tables that differ by their name only.
fn tables(tables: &[TableInfo<'_>]) -> String {
    let alike = |a: &TableInfo<'_>, b: &TableInfo<'_>| {
        let form = |t: &TableInfo<'_>| (t.rows, t.dim, t.dtype, t.pooling, t.padding);
        form(a) == form(b) && a.shares == b.shares
    };
    let mut shown = Table::new();
    shown.load_style(presets::UTF8_FULL_CONDENSED);
    shown.set_header([
        "table", "count", "rows", "dim", "dtype", "pooling", "padding", "per row", "total",
    ]);
    for column in (1..=3).chain(6..=8) {
        if let Some(column) = shown.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for run in tables.chunk_by(alike) {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let name = match run.len() {
            1 => first.name.to_string(),
            _ => format!("{} … {}", first.name, last.name),
        };
        let total = match first.shares {
            Some(owner) => format!("rows of {owner}"),
            None => show_bytes(run.iter().map(|table| table.bytes).sum()),
        };
        shown.add_row([
            name,
            run.len().to_string(),
            first.rows.to_string(),
            first.dim.to_string(),
            first.dtype.into(),
            first.pooling.into(),
            first.padding.map_or("-".into(), |id| id.to_string()),
            show_bytes(first.row_bytes as u64),
            total,
        ]);
    }
    format!("{shown}\n")
}
