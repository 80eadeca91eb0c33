//! One graph by the names of PyTorch Geometric's `Data`: `x`, `edge_index`, `y` and masks. They may
//! come from `torch.save` of a `Data`, of a dictionary or of an `InMemoryDataset` (`data.pt`), from
//! `numpy.savez`, or from safetensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hither_data::{Bytes, Checkpoint, Npz, Tensor, npz};

use super::arrays::NamedArray;
use super::masks::mask;
use super::sparse::dense;
use super::{Lacks, Options, bad, name_of};
use crate::dataset::UNLABELLED;
use crate::{Dataset, Error, Features, Graph, Labels, Metric, Split};

const EDGES: [&str; 2] = ["edge_index", "edges"];
const WEIGHTS: [&str; 2] = ["edge_weight", "edge_weights"];
const FEATURES: [&str; 5] = ["x", "features", "node_features", "node_feat", "feat"];
const LABELS: [&str; 5] = ["y", "labels", "label", "node_labels", "node_label"];
const TRAIN: [&str; 2] = ["train_mask", "train_masks"];
const VALID: [&str; 4] = ["val_mask", "valid_mask", "val_masks", "valid_masks"];
const TEST: [&str; 2] = ["test_mask", "test_masks"];
/// Lists of nodes in place of masks.
const TRAIN_NODES: [&str; 2] = ["train_idx", "train_index"];
const VALID_NODES: [&str; 4] = ["val_idx", "valid_idx", "val_index", "valid_index"];
const TEST_NODES: [&str; 2] = ["test_idx", "test_index"];
/// Nodes per edge that a graph may have if nothing but a number tells how many there are: a stray
/// number must not take all memory.
const NODES_PER_EDGE_MAX: usize = 64;
/// Fewer nodes than this are never too many.
const NODES_SMALL: usize = 1 << 20;
/// Data of edges that training does not use.
const UNUSED: [&str; 4] = ["edge_attr", "edge_weight", "edge_weights", "edge_feat"];

/// Whether arrays of these names can be such a graph.
pub fn fits<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| EDGES.iter().any(|known| is_field(name, known)))
}

/// The file itself, or the one that PyTorch Geometric keeps in a dataset's folder.
pub fn find(folder: &Path) -> Option<PathBuf> {
    ["processed/data.pt", "data.pt"]
        .map(|name| folder.join(name))
        .into_iter()
        .find(|path| path.is_file())
}

pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let file = if path.is_dir() { find(path) } else { Some(path.into()) };
    let file = file.ok_or_else(|| bad(path, "data.pt and processed/data.pt are missing"))?;
    let fields = Fields::open(&file)?;
    let features = match fields.get(&FEATURES)? {
        Some(named) => dense(&named)?,
        None if options.lacks == Lacks::Features => {
            Features::Dense { values: vec![].into(), dim: 0 }
        }
        None => return Err(fields.missing("features of the nodes, `x`")),
    };
    let labels = fields.get(&LABELS)?;
    let nodes = match (features.rows(), &labels) {
        (0, Some(labels)) => labels.tensor.shape.first().copied(),
        (0, None) => None,
        (rows, _) => Some(rows),
    };
    let graph = fields.graph(nodes, options.edge_weights)?;
    let (labels, metric) = match &labels {
        Some(named) => read_labels(named, graph.nodes())?,
        None if options.lacks != Lacks::Nothing => {
            let of = vec![UNLABELLED; graph.nodes()].into();
            (Labels::Classes { of, count: 0 }, Metric::Accuracy)
        }
        None => return Err(fields.missing("labels of the nodes, `y`")),
    };
    let split = match labels.count() {
        0 => Split::default(),
        _ => options.split(&labels, || fields.split(graph.nodes(), options))?,
    };
    let is_used = |name: &str| options.edge_weights && WEIGHTS.contains(&name);
    let unused = UNUSED.iter().find(|name| fields.contains(name) && !is_used(name));
    let mut dataset = Dataset::new(name_of(path), graph, features, labels, split, metric);
    dataset.notes.extend(unused.map(|name| match WEIGHTS.contains(name) {
        true => format!("`{name}` is not used; --edge-weights reads it"),
        false => format!("`{name}` is not used: edges have no features"),
    }));
    Ok(dataset)
}

/// Whether the last part of a dotted name is that of the field.
fn is_field(name: &str, field: &str) -> bool {
    name.rsplit('.').next() == Some(field)
}

/// The arrays of a file, by the names that `Data` has for them.
struct Fields {
    path: PathBuf,
    arrays: BTreeMap<String, Source>,
    num_nodes: Option<usize>,
    npz: Option<Npz>,
}

enum Source {
    /// In the archive, to be read on demand.
    Packed,
    Tensor(Tensor),
}

impl Fields {
    fn open(path: &Path) -> Result<Self, Error> {
        if Bytes::map(path)?.starts_with(npz::MAGIC) {
            let npz = Npz::open(path)?;
            if npz.names().next().is_some() {
                let names = npz.names().map(|name| (name.to_owned(), Source::Packed));
                let arrays = names.collect();
                return Ok(Self { path: path.into(), arrays, num_nodes: None, npz: Some(npz) });
            }
        }
        let file = Checkpoint::open(path)?;
        let prefix = prefix(path, &file)?;
        let num_nodes = file.metadata.get(&format!("{prefix}num_nodes"));
        let num_nodes = num_nodes.and_then(|count| count.parse().ok());
        let own = |(name, tensor): (String, Tensor)| {
            Some((name.strip_prefix(&prefix)?.to_owned(), Source::Tensor(tensor)))
        };
        let arrays = file.tensors.into_iter().filter_map(own).collect();
        Ok(Self { path: path.into(), arrays, num_nodes, npz: None })
    }

    fn contains(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// The array by the first of its names that there is.
    fn get<'a>(&'a self, names: &[&'a str]) -> Result<Option<NamedArray<'a>>, Error> {
        let Some(name) = names.iter().copied().find(|name| self.contains(name)) else {
            return Ok(None);
        };
        let tensor = match (&self.arrays[name], &self.npz) {
            (Source::Tensor(tensor), _) => tensor.clone(),
            (Source::Packed, Some(npz)) => npz.array(name)?,
            (Source::Packed, None) => return Ok(None),
        };
        Ok(Some(NamedArray { path: &self.path, name, tensor }))
    }

    fn missing(&self, what: &str) -> Error {
        let found: Vec<&str> = self.arrays.keys().take(20).map(String::as_str).collect();
        let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
        bad(&self.path, format!("it has no {what}; it holds {found}"))
    }

    /// `nodes`: as many as there are rows of features or labels, if there are any.
    fn graph(&self, nodes: Option<usize>, weighted: bool) -> Result<Graph, Error> {
        let named = self.get(&EDGES)?.ok_or_else(|| self.missing("edges, `edge_index`"))?;
        let [rows, columns] = named.table()?;
        let by_rows = match (rows, columns, named.name) {
            (2, 2, name) => name == "edge_index",
            (2, _, _) => true,
            (_, 2, _) => false,
            _ => {
                let shape = [rows, columns];
                return Err(named.bad(format!("has shape {shape:?}; expected [2, edges]")));
            }
        };
        let limit = nodes.unwrap_or(u32::MAX as usize - 1);
        let ids = named.ids(limit, "a node")?;
        let pairs: Vec<(u32, u32)> = if by_rows {
            let (from, to) = ids.split_at(columns);
            from.iter().copied().zip(to.iter().copied()).collect()
        } else {
            ids.as_chunks().0.iter().map(|[u, v]| (*u, *v)).collect()
        };
        let nodes = match nodes {
            Some(nodes) => nodes,
            None => {
                let told = ids.iter().max().map_or(0, |last| *last as usize + 1);
                let told = told.max(self.num_nodes.unwrap_or(0));
                let most = NODES_SMALL.max(NODES_PER_EDGE_MAX.saturating_mul(pairs.len()));
                if told > most {
                    let edges = pairs.len();
                    let problem = format!("says {told} nodes, too many for {edges} edges");
                    return Err(named.bad(problem));
                }
                told
            }
        };
        let graph = Graph::from_edges(nodes, &pairs)
            .ok_or_else(|| named.bad(format!("has a node that is not below {nodes}")))?;
        if !weighted {
            return Ok(graph);
        }
        let named = self.get(&WEIGHTS)?.ok_or_else(|| self.missing("weights, `edge_weight`"))?;
        let named = named.sized(pairs.len(), "one per edge")?;
        let weights = named.floats()?;
        let list = pairs.iter().zip(&weights[..]).map(|((u, v), weight)| (*u, *v, *weight));
        graph.with_weights(list).map_err(|problem| named.bad(format!("does not fit: {problem}")))
    }

    /// None if the file holds no split.
    fn split(&self, nodes: usize, options: &Options) -> Result<Option<Split>, Error> {
        let masks = [self.get(&TRAIN)?, self.get(&VALID)?, self.get(&TEST)?];
        if let [Some(train), Some(valid), Some(test)] = &masks {
            let set = |named: &NamedArray<'_>| mask(named, nodes, options);
            return Ok(Some(Split { train: set(train)?, valid: set(valid)?, test: set(test)? }));
        }
        let lists = [self.get(&TRAIN_NODES)?, self.get(&VALID_NODES)?, self.get(&TEST_NODES)?];
        if let [Some(train), Some(valid), Some(test)] = &lists {
            options.split_of(1).map_err(|problem| train.bad(problem))?;
            let set = |named: &NamedArray<'_>| {
                let mut set = named.ids(nodes, "a node")?;
                set.sort_unstable();
                Ok::<_, Error>(set)
            };
            return Ok(Some(Split { train: set(train)?, valid: set(valid)?, test: set(test)? }));
        }
        if let Some(found) = masks.iter().chain(&lists).flatten().next() {
            let problem = "is there, but not all of train_mask, val_mask and test_mask are; add \
                           them, or draw a split with --draw-split";
            return Err(found.bad(problem));
        }
        match options.split_index {
            0 => Ok(None),
            index => Err(bad(&self.path, format!("it holds no split; there is no split {index}"))),
        }
    }
}

/// What stands before the names of the fields: where in the pickled objects the graph is.
fn prefix(path: &Path, file: &Checkpoint) -> Result<String, Error> {
    let is_edges = |name: &&String| EDGES.iter().any(|known| is_field(name, known));
    let is_table = |name: &&String| file.tensors[*name].shape.len() == 2;
    let mut found = file.tensors.keys().filter(is_edges).filter(is_table);
    let Some(first) = found.next() else {
        let names: Vec<&str> = file.tensors.keys().take(20).map(String::as_str).collect();
        let names = if names.is_empty() { "no tensors".into() } else { names.join(", ") };
        let problem = format!("it has no edges, `edge_index` [2, edges]; it holds {names}");
        return Err(bad(path, problem));
    };
    let prefix = &first[..first.rfind('.').map_or(0, |dot| dot + 1)];
    // Datasets of several graphs put them end to end, and say where each one ends.
    let slices = file.tensors.get("1.edge_index").filter(|slices| slices.shape.len() == 1);
    let graphs = slices.map_or(1, |slices| slices.elements().saturating_sub(1));
    if graphs > 1 || found.any(|name| !name.starts_with(prefix)) {
        return Err(bad(path, "it holds several graphs; expected one, with labels of its nodes"));
    }
    Ok(prefix.to_owned())
}

/// One class per node, or a row of binary labels.
fn read_labels(named: &NamedArray<'_>, nodes: usize) -> Result<(Labels, Metric), Error> {
    let count = match named.tensor.shape[..] {
        [found] | [found, 1] if found == nodes => {
            return Ok((named.classes(nodes)?, Metric::Accuracy));
        }
        [found, count] if found == nodes => count,
        _ => {
            let shape = &named.tensor.shape;
            return Err(named.bad(format!("has shape {shape:?}; there are {nodes} nodes")));
        }
    };
    let values = named.floats()?;
    if let Some(at) = values.iter().position(|value| *value != 0.0 && *value != 1.0) {
        let (value, row, column) = (values[at], at / count, at % count);
        return Err(named.bad(format!(
            "has {value} at row {row}, column {column}; expected 0 or 1 in labels of several \
             columns"
        )));
    }
    let of: Vec<u8> = values.iter().map(|value| u8::from(*value == 1.0)).collect();
    Ok((Labels::Tasks { of: of.into(), count }, Metric::F1Micro))
}
