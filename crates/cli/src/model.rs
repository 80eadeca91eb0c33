//! `hither model`: imports, describes, runs, quantises, generates and exports recommendation models.

mod check;
mod export;
mod from_embeddings;
mod generate;
mod import;
mod info;
mod quantise;
mod reading;
mod run;

use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use hither_data::IdTrace;
use hither_data::output::{check_space, is_stdout, is_written_through, show_bytes};
use hither_dlrm::model::Spec;
use hither_kernels::bag::quant::Foreign;
use hither_kernels::bag::{Dtype, Pooling};

use crate::Common;

/// Import, run, check, describe, quantise, generate and export recommendation models
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  hither model generate --preset mlperf --rows 10000 -o model
  hither model import dlrm.pt -o model
  hither model from-embeddings trained -o model
  hither model info model
  hither model run model --inputs examples/requests.csv -o scores.csv
  hither model check model --inputs examples/requests.csv --expect scores.csv
  hither model quantise model --dtype int8 -o model-int8")]
pub enum Command {
    Import(import::Args),
    FromEmbeddings(from_embeddings::Args),
    Info(info::Args),
    Run(run::Args),
    Check(check::Args),
    #[command(visible_alias = "quantize")]
    Quantise(quantise::Args),
    Generate(generate::Args),
    Export(export::Args),
}

pub fn run(command: &Command, common: &Common) -> anyhow::Result<ExitCode> {
    match command {
        Command::Import(args) => import::run(args, common)?,
        Command::FromEmbeddings(args) => from_embeddings::run(args, common)?,
        Command::Info(args) => info::run(args)?,
        Command::Run(args) => run::run(args, common)?,
        Command::Check(args) => return check::run(args, common),
        Command::Quantise(args) => quantise::run(args, common)?,
        Command::Generate(args) => generate::run(args, common)?,
        Command::Export(args) => export::run(args, common)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub fn dtype(name: &str) -> Result<Dtype, String> {
    let known = Dtype::ALL.into_iter().find(|dtype| dtype.name() == name);
    known.ok_or_else(|| {
        format!("unknown element type `{name}`; expected fp32, fp16, bf16, int8 or int4")
    })
}

fn pooling(name: &str) -> Result<Pooling, String> {
    match name {
        "sum" => Ok(Pooling::Sum),
        "mean" => Ok(Pooling::Mean),
        "max" => Ok(Pooling::Max),
        _ => Err(format!("unknown pooling `{name}`; expected sum, mean or max")),
    }
}

fn pooling_name(pooling: Pooling) -> &'static str {
    match pooling {
        Pooling::Sum => "sum",
        Pooling::Mean => "mean",
        Pooling::Max => "max",
    }
}

fn rows(name: &str) -> Result<Foreign, String> {
    match name {
        "fbgemm-int8" => Ok(Foreign::FbgemmInt8),
        "fbgemm-int4" => Ok(Foreign::FbgemmInt4),
        "torch-int8" => Ok(Foreign::TorchInt8),
        "torch-int4" => Ok(Foreign::TorchInt4),
        _ => Err(format!(
            "unknown row layout `{name}`; expected fbgemm-int8, fbgemm-int4, torch-int8 or torch-int4"
        )),
    }
}

/// Says what is going to be written where, and does it on all threads with a progress bar in mebibytes.
/// Refuses what does not fit on the disk.
pub fn write_tables<T: Send>(
    common: &Common,
    verb: &str,
    total_bytes: u64,
    place: &Path,
    work: impl FnOnce(&dyn Fn(u64)) -> Result<T, hither_dlrm::Error> + Send,
) -> anyhow::Result<T> {
    if !is_stdout(place) && !is_written_through(place) {
        check_space(place, total_bytes)?;
    }
    let bytes = show_bytes(total_bytes);
    common.say(&format!("{verb} {bytes} of tables, to {}", place.display()));
    let bar = common.bar(total_bytes >> 20, "");
    bar.set_message(format!("{verb}, MiB"));
    let result = common.pool()?.install(|| {
        let done = Cell::new(0);
        work(&|bytes| {
            done.set(done.get() + bytes);
            bar.set_position(done.get() >> 20);
        })
    });
    bar.finish_and_clear();
    Ok(result?)
}

pub fn table_bytes(spec: &Spec) -> u64 {
    spec.tables.iter().map(|table| table.bytes()).sum()
}

/// Tells which columns of a file of requests mean nothing to the model.
pub fn note_ignored(path: &Path, trace: &IdTrace, common: &Common) {
    if !trace.ignored.is_empty() {
        let names = trace.ignored.join(", ");
        common.say(&format!("note: {}: {names}: neither features nor tables", path.display()));
    }
}

fn said(spec: &Spec, place: &Path) -> String {
    let (tables, bytes) = (spec.tables.len(), show_bytes(table_bytes(spec)));
    let s = if tables == 1 { "" } else { "s" };
    format!("wrote {}: {tables} table{s}, {bytes}", place.display())
}
