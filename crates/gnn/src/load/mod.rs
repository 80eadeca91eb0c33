//! Readers of other people's graphs, and our own form. Whatever the layout, a dataset that comes
//! out of here is whole: its parts fit each other, and every number in it is in its range.

mod arrays;
mod bags;
mod delimited;
mod edge_list;
mod mapped;
mod masks;
mod musae;
mod ogb;
mod pick;
mod planetoid;
mod saint;
mod shchur;
mod sparse;
mod text;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use hither_core::seed;
use rand::seq::SliceRandom;

pub use mapped::{EXTENSION, write};
pub(crate) use mapped::{Shape, begin};

use crate::dataset::UNLABELLED;
use crate::{Dataset, Error, Labels, Split};

/// How to read a dataset; the default is to look at what it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// None: recognised by what is there.
    pub format: Option<Format>,
    /// Draw a split even where the files bring one.
    pub split_drawn: bool,
    /// What drawn splits come from.
    pub split_seed: u64,
    /// Which of several splits, where the files bring them.
    pub split_index: usize,
}

/// A layout of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Our own: one file that is mapped.
    Mapped,
    /// Open Graph Benchmark, nodes' properties, as downloaded.
    Ogb,
    /// `ind.*`: Cora, Citeseer, Pubmed.
    Planetoid,
    /// One archive with `adj_*`, `attr_*`, `labels`.
    Shchur,
    /// One archive with `edges`, `node_features`, `node_labels` and masks of several splits.
    Masks,
    /// One archive with `edges`, bags of features, `label`, `split`.
    Bags,
    /// `edges.csv`, `features.json`, `target.csv`.
    Musae,
    /// `adj_full.npz`, `feats.npy`, `class_map.json`, `role.json`.
    GraphSaint,
    /// `edges.csv` with features, labels and a split beside it.
    Csv,
}

impl Format {
    pub const ALL: [Self; 9] = [
        Self::Mapped,
        Self::Ogb,
        Self::Planetoid,
        Self::Shchur,
        Self::Masks,
        Self::Bags,
        Self::Musae,
        Self::GraphSaint,
        Self::Csv,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Ogb => "ogb",
            Self::Planetoid => "planetoid",
            Self::Shchur => "shchur",
            Self::Masks => "masks",
            Self::Bags => "bags",
            Self::Musae => "musae",
            Self::GraphSaint => "graphsaint",
            Self::Csv => "csv",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::Settings(format!("unknown format of graphs `{name}`: expected one of {known}"))
        })
    }
}

/// Reads the dataset at `path`, a file or a folder, in whichever layout it is.
pub fn open(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let format = match options.format {
        Some(format) => format,
        None => pick::format(path)?,
    };
    let mut dataset = match format {
        Format::Mapped => mapped::read(path)?,
        Format::Shchur => shchur::read(path, options)?,
        Format::Masks => masks::read(path, options)?,
        Format::Bags => bags::read(path)?,
        Format::Ogb => ogb::read(path)?,
        Format::Planetoid => planetoid::read(path)?,
        Format::Musae => musae::read(path, options)?,
        Format::GraphSaint => saint::read(path)?,
        Format::Csv => edge_list::read(path, options)?,
    };
    if options.split_drawn {
        dataset.split = drawn(&dataset.labels, options.split_seed);
    }
    dataset.check()?;
    Ok(dataset)
}

/// 60 of 100 nodes to learn from, 20 to choose by, 20 to test on, of those that have a label.
fn drawn(labels: &Labels, seed: u64) -> Split {
    let mut nodes: Vec<u32> = match labels {
        Labels::Classes { of, .. } => {
            (0..of.len() as u32).filter(|node| of[*node as usize] != UNLABELLED).collect()
        }
        Labels::Tasks { .. } => (0..labels.nodes() as u32).collect(),
    };
    nodes.shuffle(&mut seed::stream(seed, "split"));
    let (train, valid) = (nodes.len() * 6 / 10, nodes.len() * 2 / 10);
    let sorted = |set: &[u32]| {
        let mut set = set.to_vec();
        set.sort_unstable();
        set
    };
    Split {
        train: sorted(&nodes[..train]),
        valid: sorted(&nodes[train..train + valid]),
        test: sorted(&nodes[train + valid..]),
    }
}

/// What people call a dataset: its file or folder, less the endings.
fn name_of(path: &Path) -> String {
    let resolved = path.canonicalize();
    let last = resolved.as_deref().unwrap_or(path).file_name().unwrap_or_default();
    let last = last.to_string_lossy();
    let endings = [EXTENSION, ".safetensors", ".npz", ".csv.gz", ".csv"];
    let stem = endings.iter().find_map(|ending| last.strip_suffix(ending));
    stem.unwrap_or(&last).to_string()
}

fn bad(path: &Path, problem: impl Into<String>) -> Error {
    Error::File { path: path.into(), problem: problem.into() }
}
