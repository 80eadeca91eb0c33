//! `hither dataset`: what graphs hold, our own form of them, and made-up ones.

mod convert;
mod generate;
mod info;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use clap::builder::Resettable;
use hither_gnn::Dataset;
use hither_gnn::load::{self, Format, Options};
use serde_json::{Value, json};

use crate::Common;

/// Describe, convert and generate graphs to train on
#[derive(Debug, Subcommand)]
pub enum Command {
    Info(info::Args),
    Convert(convert::Args),
    Generate(generate::Args),
}

pub fn run(command: &Command, common: &Common) -> anyhow::Result<ExitCode> {
    match command {
        Command::Info(args) => info::run(args, common)?,
        Command::Convert(args) => convert::run(args, common)?,
        Command::Generate(args) => generate::run(args, common)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A dataset and how to read it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Dataset")]
pub struct DataArgs {
    /// File or folder with a graph: our own form, OGB's, Planetoid's, Shchur's npz, GraphSAINT's or
    /// CSV
    #[arg(required = true, value_name = "DATASET", help_heading = Resettable::Reset)]
    dataset: Option<PathBuf>,
    /// Layout of the files [default: recognised]
    #[arg(long, value_name = "NAME", id = "dataset_format")]
    format: Option<Format>,
    /// Which split, where the dataset brings several
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    split_index: usize,
    /// Draw 60, 20 and 20 % of the nodes for training, validation and test by the seed, even where
    /// the dataset brings a split
    #[arg(long, conflicts_with = "split_index")]
    draw_split: bool,
}

impl DataArgs {
    fn path(&self) -> &Path {
        self.dataset.as_deref().unwrap_or(Path::new(""))
    }

    /// The last part of the path.
    pub fn name(&self) -> String {
        let path = self.path();
        path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    }

    pub fn split_asked(&self) -> Value {
        if self.draw_split { json!("drawn") } else { json!(self.split_index) }
    }

    /// Splits that are drawn come from the seed.
    pub fn open(&self, seed: u64) -> anyhow::Result<Dataset> {
        let options = Options {
            format: self.format,
            split_drawn: self.draw_split,
            split_seed: seed,
            split_index: self.split_index,
        };
        Ok(load::open(self.path(), &options)?)
    }
}
