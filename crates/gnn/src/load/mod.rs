//! Readers of graphs in the layouts of other programs, and in our own. Whatever the layout, a dataset
//! that [`open`] returns is whole: its parts fit each other, and every number in it is in range.

mod arrays;
mod bags;
mod delimited;
mod edge_list;
mod interactions;
mod labels;
mod mapped;
mod masks;
mod musae;
mod node_table;
mod ogb;
mod pick;
mod planetoid;
mod pyg;
mod saint;
mod shchur;
mod sparse;
pub(crate) mod tensors;
mod text;

use std::path::Path;

use hither_core::seed;
use rand::seq::SliceRandom;

pub use mapped::{EXTENSION, write};
pub(crate) use mapped::{FeatureShape, GraphFile, begin, contents};

use crate::dataset::UNLABELLED;
use crate::named::named;
use crate::parts::stored;
use crate::{Dataset, Error, Labels, Split};
use node_table::{Ids, Nodes};

/// How to read a dataset.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// None: recognised by the files.
    pub format: Option<Format>,
    /// Draw a split, and read none.
    pub split_drawn: bool,
    /// Seed of drawn splits.
    pub split_seed: u64,
    /// Draw splits from each class by itself.
    pub split_by_class: bool,
    /// Which split to take of those that the files hold, from 0.
    pub split_index: usize,
    pub lacks: Lacks,
    /// Read the weights of edges, of layouts that may have them.
    pub edge_weights: bool,
}

/// What a dataset may be without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lacks {
    /// Nothing: it is to be trained on.
    #[default]
    Nothing,
    /// Labels, or a whole split: labels are to be predicted.
    Labels,
    /// Features too: the graph is to be described or partitioned.
    Features,
}

impl Options {
    /// The split of the files, or a drawn one if that is asked for or they hold none.
    fn split(
        &self,
        labels: &Labels,
        read: impl FnOnce() -> Result<Option<Split>, Error>,
    ) -> Result<Split, Error> {
        let own = if self.split_drawn { None } else { read()? };
        Ok(own.unwrap_or_else(|| self.drawn(labels)))
    }

    fn drawn(&self, labels: &Labels) -> Split {
        drawn(labels, self.split_seed, self.split_by_class)
    }

    /// The chosen one of `count` splits.
    fn split_of(&self, count: usize) -> Result<usize, String> {
        if self.split_index < count {
            return Ok(self.split_index);
        }
        Err(match count {
            1 => format!("has one split, number 0; there is no split {}", self.split_index),
            _ => format!("has splits 0 to {}; there is no split {}", count - 1, self.split_index),
        })
    }
}

named! {
    /// A layout of files.
    pub enum Format("graph format") {
        /// Our own: one file that is mapped.
        Mapped = "mapped",
        /// PyTorch Geometric's `Data`, or arrays with its names: `x`, `edge_index`, `y`, masks.
        Pyg = "pyg",
        /// Open Graph Benchmark, node property prediction, as downloaded.
        Ogb = "ogb",
        /// `ind.*`: Cora, Citeseer, Pubmed.
        Planetoid = "planetoid",
        /// One archive with `adj_*`, `attr_*`, `labels`.
        Shchur = "shchur",
        /// One archive with `edges`, `node_features`, `node_labels` and masks of several splits.
        Masks = "masks",
        /// One archive with `edges`, bags of features, `label`, `split`.
        Bags = "bags",
        /// `edges.csv`, `features.json`, `target.csv`.
        Musae = "musae",
        /// `adj_full.npz`, `feats.npy`, `class_map.json`, `role.json`.
        GraphSaint = "graphsaint",
        /// A list of edges with tables of features, labels and sets beside it.
        Csv = "csv",
        /// A user–item graph: `train.txt` and `test.txt`, or a table of interactions.
        Interactions = "interactions",
        /// Our own, with nodes numbered by part: a folder that `hither partition --write` wrote.
        Partitioned = "partitioned",
    }
}

impl Format {
    /// Whether weights of edges are read from files of this layout. Our own has them always if it has any.
    fn has_edge_weights(self) -> bool {
        matches!(self, Self::Csv | Self::Pyg | Self::Mapped)
    }

    /// Whether files of this layout may hold several splits.
    fn has_splits(self) -> bool {
        matches!(self, Self::Pyg | Self::Ogb | Self::Masks)
    }
}

/// Reads the dataset at `path`, a file or a folder, in whichever layout it is.
pub fn open(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let format = match options.format {
        Some(format) => format,
        None => pick::format(path)?,
    };
    if options.split_index > 0 && !format.has_splits() {
        let (index, problem) = (options.split_index, "its layout has no numbered splits");
        return Err(bad(path, format!("there is no split {index}: {problem}")));
    }
    if options.edge_weights && !format.has_edge_weights() {
        let problem = format!(
            "weights of edges are not read from the layout {format}; they are read from lists of edges \
             (csv) and from PyTorch Geometric's files (pyg)"
        );
        return Err(bad(path, problem));
    }
    let mut dataset = match format {
        Format::Mapped => mapped::read(path)?,
        Format::Partitioned => stored::read(path)?,
        Format::Pyg => pyg::read(path, options)?,
        Format::Shchur => shchur::read(path, options)?,
        Format::Masks => masks::read(path, options)?,
        Format::Bags => bags::read(path, options)?,
        Format::Ogb => ogb::read(path, options)?,
        Format::Planetoid => planetoid::read(path, options)?,
        Format::Musae => musae::read(path, options)?,
        Format::GraphSaint => saint::read(path, options)?,
        Format::Csv => edge_list::read(path, options)?,
        Format::Interactions => interactions::read(path)?,
    };
    if options.split_drawn && format == Format::Partitioned {
        let problem =
            "its parts go with the split that it holds; draw another split when you partition";
        return Err(bad(path, problem));
    }
    if options.split_drawn && format == Format::Mapped {
        dataset.split = options.drawn(&dataset.labels);
    }
    if dataset.links.is_some() {
        return dataset.check_links().map(|()| dataset);
    }
    let is_bare = dataset.features.dim() == 0 || dataset.labels.count() == 0;
    match options.lacks {
        Lacks::Labels => return dataset.check_unlabelled().map(|()| dataset),
        Lacks::Features if is_bare => return dataset.check_graph().map(|()| dataset),
        _ => {}
    }
    labels::check(&dataset)?;
    dataset.check()?;
    // Own layouts store their split. Readers of the others do not tell where theirs is from.
    let stored = matches!(format, Format::Mapped | Format::Partitioned);
    let seed = options.split_seed;
    if options.split_drawn || (!stored && dataset.split == options.drawn(&dataset.labels)) {
        let of = if options.split_by_class { " of each class" } else { "" };
        dataset.notes.push(format!(
            "the split is drawn by seed {seed}: 60 % training, 20 % validation and 20 % test nodes{of}"
        ));
    }
    Ok(dataset)
}

/// Draws 60 % of the labelled nodes for training, 20 % for validation and 20 % for the test; of each class, or of
/// all nodes together.
fn drawn(labels: &Labels, seed: u64, by_class: bool) -> Split {
    let mut nodes: Vec<u32> = match labels {
        Labels::Classes { of, .. } => {
            (0..of.len() as u32).filter(|node| of[*node as usize] != UNLABELLED).collect()
        }
        Labels::Tasks { .. } => (0..labels.nodes() as u32).collect(),
    };
    nodes.shuffle(&mut seed::stream(seed, "split"));
    let class = |node: &u32| match labels {
        Labels::Classes { of, .. } if by_class => of[*node as usize],
        _ => 0,
    };
    // Stable: the nodes of a class stay in the order drawn.
    nodes.sort_by_key(class);
    let mut split = Split::default();
    for nodes in nodes.chunk_by(|a, b| class(a) == class(b)) {
        let (train, valid) = (nodes.len() * 6 / 10, nodes.len() * 2 / 10);
        split.train.extend(&nodes[..train]);
        split.valid.extend(&nodes[train..train + valid]);
        split.test.extend(&nodes[train + valid..]);
    }
    for set in [&mut split.train, &mut split.valid, &mut split.test] {
        set.sort_unstable();
    }
    split
}

/// Reads a split of a dataset's nodes from a table: `node,set`, or one set per line in the order of the nodes.
pub fn read_split(path: &Path, data: &Dataset) -> Result<Split, Error> {
    if data.original.is_some() {
        let problem =
            "it was partitioned with a split of its own; give the split when you partition";
        return Err(Error::Dataset { name: data.name.clone(), problem: problem.into() });
    }
    let by = data.name.clone();
    let nodes = match &data.node_names {
        None => Nodes::Numbered { count: data.graph.nodes(), by },
        Some(names) => {
            let mut ids = Ids::default();
            for name in names.iter() {
                ids.insert(&name);
            }
            Nodes::Named { ids, by }
        }
    };
    node_table::split(path, &node_table::column(path, &nodes)?)
}

/// The name of a dataset: that of its file or folder, without the ending.
fn name_of(path: &Path) -> String {
    let resolved = path.canonicalize();
    let last = resolved.as_deref().unwrap_or(path).file_name().unwrap_or_default();
    let last = last.to_string_lossy();
    let endings = [EXTENSION, ".safetensors", ".npz", ".pt", ".csv", ".tsv", ".txt"];
    let last = last.strip_suffix(".gz").unwrap_or(&last);
    let stem = endings.iter().find_map(|ending| last.strip_suffix(ending));
    stem.unwrap_or(last).to_string()
}

fn bad(path: &Path, problem: impl Into<String>) -> Error {
    Error::File { path: path.into(), problem: problem.into() }
}
