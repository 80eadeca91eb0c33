//! `hither dataset`: describe graphs, convert them to our own layout, and generate some.

mod convert;
mod generate;
mod info;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use hither_data::output::show_bytes;
use hither_gnn::load::{self, Format, Lacks, Options};
use hither_gnn::parts::stored;
use hither_gnn::{Dataset, Labels};
use serde_json::{Value, json};

use crate::Common;

/// Describe, convert and generate graphs to train on
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  hither dataset generate --family cut-homophily -o cut.graph.safetensors
  hither dataset info cut.graph.safetensors
  hither dataset info cora/processed/data.pt
  hither dataset convert examples/graph -o mine.graph.safetensors

docs/formats/graph.md lists the layouts that are read.")]
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

/// Heading of the options below; given to each, as a heading for all would go on behind them.
const DATASET: &str = "Dataset";

/// Files of this size take some seconds to parse.
const LARGE_BYTES: u64 = 100_000_000;

/// A dataset and how to read it.
#[derive(Debug, Clone, clap::Args)]
pub struct DataArgs {
    /// File or folder with a graph: .graph.safetensors, .npz, PyTorch Geometric's data.pt, a list of
    /// edges with tables beside it, or a folder of `hither partition --write`, OGB, Planetoid, MUSAE or
    /// GraphSAINT
    #[arg(required = true, value_name = "DATASET")]
    dataset: Option<PathBuf>,
    /// Layout of the files [default: recognised by the files]
    #[arg(long, value_name = "NAME", id = "dataset_format", help_heading = DATASET, hide_short_help = true)]
    format: Option<Format>,
    /// Number of the split to use, from 0, if the dataset has several
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = DATASET, hide_short_help = true)]
    #[arg(allow_negative_numbers = true)]
    split_index: usize,
    /// Draw a split of 60 % training, 20 % validation and 20 % test nodes by the seed, even if the
    /// dataset has one
    #[arg(long, conflicts_with = "split_index", help_heading = DATASET, hide_short_help = true)]
    draw_split: bool,
    /// Draw that split from each class by itself; implies --draw-split
    #[arg(long, conflicts_with = "split_index", help_heading = DATASET, hide_short_help = true)]
    stratify: bool,
    /// Read the split from a table: node,set with train, valid, test or none, or one set per line
    #[arg(long, value_name = "FILE", help_heading = DATASET, hide_short_help = true)]
    #[arg(conflicts_with_all = ["draw_split", "split_index", "stratify"])]
    split_file: Option<PathBuf>,
    /// Read the weights of edges: column 3 of a list of edges, or edge_weight of PyTorch Geometric
    #[arg(long, help_heading = DATASET, hide_short_help = true)]
    edge_weights: bool,
}

impl DataArgs {
    pub fn path(&self) -> &Path {
        self.dataset.as_deref().unwrap_or(Path::new(""))
    }

    /// The last part of the path.
    pub fn name(&self) -> String {
        let path = self.path();
        path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    }

    /// Whether the dataset is a folder of `hither partition --write`.
    pub fn is_partitioned(&self) -> bool {
        stored::fits(self.path())
    }

    pub fn split_asked(&self) -> Value {
        match &self.split_file {
            Some(path) => json!({ "file": path.file_name().map(|name| name.to_string_lossy()) }),
            None if self.stratify => json!("drawn by class"),
            None if self.draw_split => json!("drawn"),
            None => json!(self.split_index),
        }
    }

    /// Reads a dataset to train on. `seed` decides a split that is drawn.
    pub fn open(&self, seed: u64, common: &Common) -> anyhow::Result<Dataset> {
        let mut data = self.read(&self.options(seed), common)?;
        if let Some(path) = &self.split_file {
            data.split = load::read_split(path, &data)?;
            data.check()?;
        }
        Ok(data)
    }

    /// Reads a graph, which may lack features and labels.
    pub fn open_graph(&self, seed: u64, common: &Common) -> anyhow::Result<Dataset> {
        self.read(&Options { lacks: Lacks::Features, ..self.options(seed) }, common)
    }

    /// Reads a graph whose labels are to be predicted.
    pub fn open_unlabelled(&self, common: &Common) -> anyhow::Result<Dataset> {
        self.read(&Options { lacks: Lacks::Labels, ..self.options(0) }, common)
    }

    /// Says so before it reads files that take long. Our own layouts are mapped, and open at once.
    fn read(&self, options: &Options, common: &Common) -> anyhow::Result<Dataset> {
        let path = self.path();
        let is_mapped = self.is_partitioned() || path.to_string_lossy().ends_with(load::EXTENSION);
        let bytes = if is_mapped { 0 } else { size(path) };
        let spinner = common.spinner(format!("reading {}", path.display()));
        if bytes >= LARGE_BYTES {
            let line = format!("reading {}: {}", path.display(), show_bytes(bytes));
            spinner.suspend(|| common.say(&line));
        }
        let data = load::open(path, options);
        spinner.finish_and_clear();
        Ok(data?)
    }

    fn options(&self, seed: u64) -> Options {
        Options {
            format: self.format,
            // A split of a file replaces whatever the dataset has; drawing needs no files.
            split_drawn: self.draw_split || self.stratify || self.split_file.is_some(),
            split_seed: seed,
            split_by_class: self.stratify,
            split_index: self.split_index,
            lacks: Lacks::Nothing,
            edge_weights: self.edge_weights,
        }
    }
}

/// Bytes of a file, or of the files and folders of a folder.
fn size(path: &Path) -> u64 {
    let Ok(meta) = path.metadata() else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    let entries = path.read_dir().into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_symlink() { 0 } else { size(&entry.path()) }).sum()
}

impl Common {
    /// Says in one line what of the files is not in the graph, and which nodes teach nothing.
    pub fn note_changes(&self, data: &Dataset) {
        let changes = changes(data);
        if !changes.is_empty() {
            self.say(&format!("note: {}: {}", data.name, changes.join("; ")));
        }
    }
}

/// What was dropped, merged or not used when the dataset was read, and nodes that stand apart.
fn changes(data: &Dataset) -> Vec<String> {
    let Dataset { graph, labels, .. } = data;
    let listed = graph.listed();
    let mut changes = vec![];
    let mut add = |number: u64, one: &str, many: &str| match number {
        0 => {}
        1 => changes.push(format!("1 {one}")),
        number => changes.push(format!("{number} {many}")),
    };
    add(listed.repeated, "repeated edge dropped", "repeated edges dropped");
    add(listed.self_loops, "self-loop dropped", "self-loops dropped");
    // A list with every edge in both directions, or none, is as good as undirected.
    if listed.reciprocal > 0 && listed.reciprocal < graph.edges() as u64 {
        add(
            listed.reciprocal,
            "pair of opposite edges merged: directions are ignored",
            "pairs of opposite edges merged: directions are ignored",
        );
    }
    let isolated = (0..graph.nodes() as u32).filter(|node| graph.degree(*node) == 0).count();
    add(isolated as u64, "node without edges", "nodes without edges");
    if matches!(labels, Labels::Classes { count: 1.., .. }) {
        add(labels.unlabelled() as u64, "node without a label", "nodes without a label");
    }
    changes.extend(data.notes.iter().cloned());
    changes
}
