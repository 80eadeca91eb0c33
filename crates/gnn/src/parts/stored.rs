//! Parts on disk. Nodes are numbered by part, so that the features and labels of a part are slices of
//! the whole graph's, and a part opens without the rest: a worker's process maps the files, and
//! memory is taken up only by the slices that it reads.
//!
//! A folder has two files. `whole.graph.safetensors` is a graph like any other of ours; its tensor
//! `original` has the numbers that nodes have in the user's files. `parts.safetensors` has what cannot
//! be a slice of the whole: the edges inside each part, in numbers of the part.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use hither_data::Array;

use crate::load::GraphFile;
use crate::load::tensors::{Element, TensorFile};
use crate::partition::{PARTS_MAX, Partition};
use crate::{Dataset, Error, Features, Graph, Labels, Split};

/// The graph of all parts.
pub const WHOLE: &str = "whole.graph.safetensors";
/// The edges inside each part.
pub const PARTS: &str = "parts.safetensors";
pub(super) const FORMAT: &str = "hither-parts";
pub(super) const VERSION: &str = "1";
/// Metadata by which the two files of a folder know each other.
pub(super) const ID: &str = "parts_id";

/// All parts of a dataset, opened with it.
#[derive(Debug)]
pub struct StoredParts {
    /// How the graph was cut.
    pub method: String,
    starts: Vec<usize>,
    datasets: Vec<Dataset>,
}

impl StoredParts {
    /// The part of each node.
    pub fn partition(&self) -> Partition {
        let mut of = Vec::with_capacity(self.starts.last().copied().unwrap_or(0));
        for (part, bounds) in (0..).zip(self.starts.windows(2)) {
            of.resize(bounds[1], part);
        }
        Partition { of, parts: self.datasets.len() }
    }

    /// One dataset per part, in place.
    pub fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    /// Number of edges between nodes of the same part.
    pub fn edges_inside(&self) -> usize {
        self.datasets.iter().map(|part| part.graph.edges()).sum()
    }
}

/// Whether `hither partition --write` wrote this folder.
pub fn fits(dir: &Path) -> bool {
    dir.join(PARTS).is_file()
}

/// Opens the whole graph with all its parts.
pub(crate) fn read(dir: &Path) -> Result<Dataset, Error> {
    let files = Files::open(dir)?;
    let mut whole = files.whole.dataset()?;
    if whole.graph.nodes() != files.nodes() {
        let (found, expected) = (files.nodes(), whole.graph.nodes());
        return Err(files.parts.bad(format!("its parts have {found} of {expected} nodes")));
    }
    let slices = files.slices()?;
    let mut train = vec![vec![]; files.count()];
    for node in &whole.split.train {
        let part = files.node_starts.partition_point(|start| *start <= *node as usize) - 1;
        // One beyond the last part is told when the whole is checked.
        train.get_mut(part).into_iter().for_each(|own| own.push(*node));
    }
    let part = |(part, train)| files.part(&slices, part, train);
    let datasets = train.into_iter().enumerate().map(part).collect::<Result<_, _>>()?;
    let method = files.parts.text("method")?.to_owned();
    whole.parts = Some(Arc::new(StoredParts { method, starts: files.node_starts, datasets }));
    Ok(whole)
}

/// What a folder holds, read without its graph.
#[derive(Clone, Debug)]
pub struct FolderFacts {
    /// The dataset's name.
    pub name: String,
    /// Number of parts.
    pub parts: usize,
    /// Tells the content from that of other folders.
    pub id: String,
}

pub fn facts(dir: &Path) -> Result<FolderFacts, Error> {
    let files = Files::open(dir)?;
    let id = files.parts.text(ID)?.to_owned();
    Ok(FolderFacts { name: files.whole.name(), parts: files.count(), id })
}

/// One part, opened alone.
#[derive(Debug)]
pub struct PartAlone {
    pub data: Dataset,
    /// The numbers of its nodes in the whole graph.
    pub nodes: Range<usize>,
    /// Number of parts.
    pub parts: usize,
}

/// Opens one part of a folder without the rest: reads nothing of other parts.
pub fn open_part(dir: &Path, part: usize) -> Result<PartAlone, Error> {
    let files = Files::open(dir)?;
    let parts = files.count();
    if part >= parts {
        let last = parts - 1;
        return Err(files.parts.bad(format!("there is no part {part}; expected 0 to {last}")));
    }
    let nodes = files.node_starts[part]..files.node_starts[part + 1];
    let train = files.whole.0.array::<u32>("train")?;
    let own = train.iter().filter(|node| nodes.contains(&(**node as usize)));
    let data = files.part(&files.slices()?, part, own.copied().collect())?;
    Ok(PartAlone { data, nodes, parts })
}

/// The whole graph as a process sees it that holds the features of some parts only.
#[derive(Debug)]
pub struct FetchedGraph {
    /// Structure and labels of the whole graph; of the features only the sizes of rows.
    pub data: Arc<Dataset>,
    /// All features. They are mapped: rows that nobody reads take no memory.
    pub features: Features,
    /// The first node of each part, and the end of the last.
    pub node_starts: Vec<usize>,
}

impl FetchedGraph {
    /// Opens a folder without reading any features.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let files = Files::open(dir)?;
        let whole = files.whole.dataset()?;
        let features = whole.features.clone();
        let data = Dataset { features: features.sizes_only(), ..whole };
        data.check_graph()?;
        data.check_labels()?;
        let nodes = data.graph.nodes();
        if nodes != files.nodes() || features.rows() != nodes {
            return Err(files.parts.bad(format!("its parts are not those of {nodes} nodes")));
        }
        Ok(Self { data: Arc::new(data), features, node_starts: files.node_starts })
    }

    /// The nodes of some parts.
    pub fn nodes(&self, parts: Range<usize>) -> Range<usize> {
        self.node_starts[parts.start]..self.node_starts[parts.end]
    }

    /// The training nodes of a part, by their numbers in the whole graph.
    pub fn train_of(&self, part: usize) -> Vec<u32> {
        let nodes = self.nodes(part..part + 1);
        let is_own = |node: &u32| nodes.contains(&(*node as usize));
        self.data.split.train.iter().copied().filter(is_own).collect()
    }

    /// Whether a part has each node.
    pub fn home(&self, part: usize) -> Vec<bool> {
        let nodes = self.nodes(part..part + 1);
        (0..self.data.graph.nodes()).map(|node| nodes.contains(&node)).collect()
    }

    /// The memory of a part's worker: the structure of the whole graph and the features of the part.
    pub fn bytes(&self, part: usize) -> u64 {
        let row_bytes = |node: usize| self.features.row_bytes(node as u32);
        let own: u64 = self.nodes(part..part + 1).map(row_bytes).sum();
        let all: u64 = (0..self.data.graph.nodes()).map(row_bytes).sum();
        self.data.bytes() - all + own
    }
}

/// Both files of a folder, and where each part begins in their tensors.
struct Files {
    whole: GraphFile,
    parts: TensorFile,
    node_starts: Vec<usize>,
    edge_starts: Vec<usize>,
}

/// What parts have slices of.
struct Slices {
    features: Features,
    labels: Labels,
    original: Option<Array<u32>>,
}

impl Files {
    fn open(dir: &Path) -> Result<Self, Error> {
        let whole = GraphFile::open(&dir.join(WHOLE))?;
        let parts = TensorFile::open(&dir.join(PARTS), FORMAT, &[VERSION])?;
        if whole.0.find_text(ID) != Some(parts.text(ID)?) {
            let problem = format!("it does not belong to {WHOLE} beside it; partition again");
            return Err(parts.bad(problem));
        }
        let starts = parts.array::<u64>("node_starts")?;
        let node_starts: Vec<usize> = starts.iter().map(|start| *start as usize).collect();
        if node_starts.len() < 2 || node_starts[0] != 0 || !node_starts.is_sorted() {
            return Err(parts.bad("tensor `node_starts` does not rise from 0"));
        }
        let count = node_starts.len() - 1;
        if count > PARTS_MAX || node_starts.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(parts.bad(format!("expected 1 to {PARTS_MAX} parts, none of them empty")));
        }
        let offsets = parts.array::<u64>("offsets")?;
        let mut edge_starts = vec![0_usize];
        for part in 0..count {
            // A part has one offset more than it has nodes, the last of which is where its edges end.
            let end = offsets.get(node_starts[part + 1] + part).copied().unwrap_or(u64::MAX);
            edge_starts.push(edge_starts[part].saturating_add(end as usize));
        }
        Ok(Self { whole, parts, node_starts, edge_starts })
    }

    fn count(&self) -> usize {
        self.node_starts.len() - 1
    }

    fn nodes(&self) -> usize {
        self.node_starts[self.count()]
    }

    fn slices(&self) -> Result<Slices, Error> {
        let Self { whole, .. } = self;
        let (features, labels) = (whole.features()?, whole.labels()?);
        Ok(Slices { features, labels, original: whole.original()? })
    }

    /// A part as a dataset of its own, with everything in place; `train` are its training nodes in the whole graph.
    fn part(&self, slices: &Slices, part: usize, mut train: Vec<u32>) -> Result<Dataset, Error> {
        let range = |starts: &[usize]| starts[part]..starts[part + 1];
        let nodes = range(&self.node_starts);
        let ends = nodes.start + part..nodes.end + part + 1;
        let offsets = self.slice("offsets", ends.clone())?;
        let neighbours = self.slice("neighbours", range(&self.edge_starts))?;
        let graph = Graph::from_arrays(offsets, neighbours)
            .map_err(|problem| self.parts.bad(format!("part {part}: {problem}")))?;
        train.iter_mut().for_each(|node| *node -= nodes.start as u32);
        let feature_offsets = match slices.features {
            Features::Dense { .. } => None,
            Features::Sparse { .. } => Some(self.slice("feature_offsets", ends)?),
        };
        let data = slices.dataset(nodes, graph, feature_offsets).ok_or_else(|| {
            self.whole.0.bad(format!("its tensors do not reach to the end of part {part}"))
        })?;
        let split = Split { train, ..Split::default() };
        let data = Dataset { name: self.whole.name(), metric: self.whole.metric()?, split, ..data };
        data.check_part()?;
        Ok(data)
    }

    fn slice<T: Element>(&self, name: &str, range: Range<usize>) -> Result<Array<T>, Error> {
        let array = self.parts.array::<T>(name)?;
        array.slice(range.clone()).ok_or_else(|| {
            let (len, end) = (array.len(), range.end);
            self.parts.bad(format!("tensor `{name}` has {len} elements; expected {end}"))
        })
    }
}

impl Slices {
    /// None if these nodes are beyond the end.
    fn dataset(
        &self,
        nodes: Range<usize>,
        graph: Graph,
        feature_offsets: Option<Array<u64>>,
    ) -> Option<Dataset> {
        let features = match &self.features {
            Features::Dense { values, dim } => {
                let values = values.slice(nodes.start * dim..nodes.end * dim)?;
                Features::Dense { values, dim: *dim }
            }
            Features::Sparse { offsets, indices, values, dim } => {
                let start = *offsets.get(nodes.start)? as usize;
                let entries = start..*offsets.get(nodes.end)? as usize;
                let values = match values {
                    Some(values) => Some(values.slice(entries.clone())?),
                    None => None,
                };
                let (offsets, indices) = (feature_offsets?, indices.slice(entries)?);
                Features::Sparse { offsets, indices, values, dim: *dim }
            }
        };
        let labels = match &self.labels {
            Labels::Classes { of, count } => {
                Labels::Classes { of: of.slice(nodes.clone())?, count: *count }
            }
            Labels::Tasks { of, count } => {
                let of = of.slice(nodes.start * count..nodes.end * count)?;
                Labels::Tasks { of, count: *count }
            }
        };
        let original = match &self.original {
            Some(original) => Some(original.slice(nodes)?),
            None => None,
        };
        let (name, metric) = (String::new(), crate::Metric::Accuracy);
        let part = Dataset::new(name, graph, features, labels, Split::default(), metric);
        Some(Dataset { original, ..part })
    }
}
