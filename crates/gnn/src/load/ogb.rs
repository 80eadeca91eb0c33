//! Datasets of the Open Graph Benchmark for node property prediction, as they are downloaded or as
//! its DatasetSaver writes them: `raw/` with text or arrays, and `split/<name>/`.

use std::path::{Path, PathBuf};

use hither_data::{Array, Checkpoint, Npz, Spill};

use super::arrays::{NamedArray, array};
use super::labels;
use super::sparse::{dense, single};
use super::text::{self, Lines, float, integer, shown, table};
use super::{Options, bad, name_of};
use crate::{Dataset, Error, Features, Graph, Labels, Metric, Split};

pub fn fits(folder: &Path) -> bool {
    let raw = folder.join("raw");
    text::find(&raw, "edge.csv").is_some() || raw.join("data.npz").is_file()
}

pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let raw = path.join("raw");
    let binary = raw.join("data.npz");
    let (graph, features, labels) =
        if binary.is_file() { from_arrays(&raw, &binary)? } else { from_text(&raw)? };
    let metric =
        if matches!(labels, Labels::Tasks { .. }) { Metric::RocAuc } else { Metric::Accuracy };
    let split = options.split(&labels, || split(path, graph.nodes(), options).map(Some))?;
    Ok(Dataset::new(name_of(path), graph, features, labels, split, metric))
}

fn from_text(raw: &Path) -> Result<(Graph, Features, Labels), Error> {
    let nodes = count(&text::need(raw, "num-node-list.csv")?)?;
    // Labels first: they prove the count of nodes before anything is allocated by it.
    let labels = read_labels(&text::need(raw, "node-label.csv")?, nodes)?;
    let mut edges = Spill::default();
    let path = text::need(raw, "edge.csv")?;
    let mut lines = Lines::open(&path)?;
    while let Some(line) = lines.next()? {
        let (u, v) = line.pair(nodes)?;
        edges.push([u, v])?;
    }
    let edges = edges.finish()?;
    if let Some(list) = text::find(raw, "num-edge-list.csv") {
        let (expected, found) = (count(&list)?, edges.len());
        if expected != found {
            let problem = format!("it has {found} edges; num-edge-list.csv says {expected}");
            return Err(bad(&path, problem));
        }
    }
    let (values, dim) = match text::find(raw, "node-feat.csv") {
        Some(path) => table(&path, nodes)?,
        None => edge_means(raw, nodes, &edges)?,
    };
    let features = Features::Dense { values, dim };
    let graph = Graph::from_each(nodes, edges.iter().map(|[u, v]| (*u, *v)))
        .ok_or_else(|| bad(&path, format!("an edge leads to a node that is not below {nodes}")))?;
    Ok((graph, features, labels))
}

/// Reads a file of one number. Several numbers would be a dataset of several graphs.
fn count(path: &Path) -> Result<usize, Error> {
    let mut lines = Lines::open(path)?;
    let Some(line) = lines.next()? else { return Err(bad(path, "it is empty")) };
    let count = line.id(line.bytes, u32::MAX as usize, "a count")? as usize;
    match lines.next()? {
        Some(line) => Err(line.bad("a second graph; expected a dataset of one graph")),
        None => Ok(count),
    }
}

/// One column holds classes; several hold binary labels, one per task.
fn read_labels(path: &Path, nodes: usize) -> Result<Labels, Error> {
    let mut lines = Lines::open(path)?;
    let (mut of, mut tasks, mut columns, mut rows) = (vec![], vec![], 0, 0);
    while let Some(line) = lines.next()? {
        let found = line.fields().count();
        if rows == 0 {
            columns = found;
        }
        if rows == nodes || found != columns {
            let problem = format!("expected {nodes} rows of {columns} columns, one row per node");
            return Err(line.bad(problem));
        }
        if columns == 1 {
            of.push(class(line.bytes).ok_or_else(|| {
                let label = shown(line.bytes);
                line.bad(format!("label {label:?} is not an integer; use -1 for unlabelled nodes"))
            })?);
        } else {
            for (task, field) in line.fields().enumerate() {
                tasks.push(answer(float(field)).ok_or_else(|| {
                    let field = shown(field);
                    line.bad(format!("`{field}` for task {task}: expected 0 or 1; {MISSING}"))
                })?);
            }
        }
        rows += 1;
    }
    if rows != nodes {
        return Err(bad(path, format!("it has {rows} rows; expected {nodes}, one per node")));
    }
    if columns == 1 {
        return labels::from_integers(&of).map_err(|problem| bad(path, format!("it {problem}")));
    }
    Ok(Labels::Tasks { of: tasks.into(), count: columns })
}

const MISSING: &str = "unlabelled nodes are not supported in datasets of several tasks";

/// −1 for none; some writers make all numbers fractions.
fn class(field: &[u8]) -> Option<i64> {
    let number = || labels::integer_of(float(field)?.into());
    let is_missing = matches!(field, b"NA" | b"\"\"");
    integer(field).or_else(number).or_else(|| is_missing.then_some(-1))
}

fn answer(value: Option<f32>) -> Option<u8> {
    match value? {
        0.0 => Some(0),
        1.0 => Some(1),
        _ => None,
    }
}

/// The mean over each node's edges, if edges have features and nodes have none (ogbn-proteins).
fn edge_means(raw: &Path, nodes: usize, edges: &[[u32; 2]]) -> Result<(Array<f32>, usize), Error> {
    let Some(path) = text::find(raw, "edge-feat.csv") else {
        return Err(bad(raw, "node-feat.csv and edge-feat.csv are missing, gzipped or not"));
    };
    let mut lines = Lines::open(&path)?;
    let (mut row, mut sums, mut dim, mut found) = (vec![], vec![], 0, 0);
    while let Some(line) = lines.next()? {
        row.clear();
        let len = line.floats(line.fields(), &mut row)?;
        if found == 0 {
            dim = len;
            sums.resize(nodes * dim, 0.0_f32);
        }
        let Some([u, v]) = edges.get(found).filter(|_| len == dim) else {
            let edges = edges.len();
            return Err(line.bad(format!("expected {edges} rows of {dim} columns, one per edge")));
        };
        for node in [*u, *v] {
            let sum = &mut sums[node as usize * dim..][..dim];
            sum.iter_mut().zip(&row).for_each(|(sum, value)| *sum += value);
        }
        found += 1;
    }
    if found != edges.len() || dim == 0 {
        let edges = edges.len();
        return Err(bad(&path, format!("it has {found} rows; expected {edges}, one per edge")));
    }
    let mut degrees = vec![0_u32; nodes];
    for [u, v] in edges {
        degrees[*u as usize] += 1;
        degrees[*v as usize] += 1;
    }
    for (sum, degree) in sums.chunks_exact_mut(dim).zip(degrees) {
        sum.iter_mut().for_each(|sum| *sum /= degree.max(1) as f32);
    }
    Ok((sums.into(), dim))
}

fn from_arrays(raw: &Path, binary: &Path) -> Result<(Graph, Features, Labels), Error> {
    let npz = Npz::open(binary)?;
    let nodes = single(&array(&npz, "num_nodes_list")?)?;
    let answers = Npz::open(raw.join("node-label.npz"))?;
    let named = array(&answers, "node_label")?;
    if nodes == 0 || nodes >= u32::MAX as usize || !named.tensor.elements().is_multiple_of(nodes) {
        let found = named.tensor.elements();
        return Err(named.bad(format!("has {found} elements; there are {nodes} nodes")));
    }
    let labels = match named.tensor.elements() / nodes {
        1 => named.classes(nodes)?,
        count => {
            let known: Option<Vec<u8>> = match named.tensor.as_f32() {
                Some(values) => values.iter().map(|value| answer(Some(*value))).collect(),
                None => named.integers()?.iter().map(|v| answer(Some(*v as f32))).collect(),
            };
            let of = known.ok_or_else(|| named.bad(format!("is not all 0 and 1; {MISSING}")))?;
            Labels::Tasks { of: of.into(), count }
        }
    };
    let ends = array(&npz, "edge_index")?;
    let [2, count] = ends.table()? else {
        return Err(ends.bad(format!("has shape {:?}; expected [2, edges]", ends.tensor.shape)));
    };
    let ids = ends.ids(nodes, "a node")?;
    drop(ends.tensor);
    let (from, to) = ids.split_at(count);
    let graph = Graph::from_each(nodes, from.iter().copied().zip(to.iter().copied()))
        .ok_or_else(|| bad(binary, format!("an edge leads to a node that is not below {nodes}")))?;
    drop(ids);
    let features = dense(&array(&npz, "node_feat")?)?;
    Ok((graph, features, labels))
}

const SPLIT_DICT: &str = "split_dict.pt";

/// `split/<name>/` with `train.csv`, `valid.csv`, `test.csv` or `split_dict.pt`.
fn split(path: &Path, nodes: usize, options: &Options) -> Result<Split, Error> {
    let folder = path.join("split");
    let is_split =
        |path: &PathBuf| text::find(path, "train.csv").is_some() || path.join(SPLIT_DICT).is_file();
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(is_split)
        .collect();
    found.sort_unstable();
    if found.is_empty() {
        let problem = format!(
            "no folder in it has train.csv or {SPLIT_DICT}; --draw-split draws a split instead"
        );
        return Err(bad(&folder, problem));
    }
    let index = options.split_of(found.len()).map_err(|problem| bad(&folder, problem))?;
    let folder = &found[index];
    if folder.join(SPLIT_DICT).is_file() {
        return split_dict(&folder.join(SPLIT_DICT), nodes);
    }
    let set = |name: &str| {
        let mut lines = Lines::open(&text::need(folder, name)?)?;
        let mut set = vec![];
        while let Some(line) = lines.next()? {
            set.push(line.id(line.bytes, nodes, "a node")?);
        }
        set.sort_unstable();
        Ok::<_, Error>(set)
    };
    Ok(Split { train: set("train.csv")?, valid: set("valid.csv")?, test: set("test.csv")? })
}

/// A dictionary of three arrays or tensors of nodes, as `torch.save` writes it.
fn split_dict(path: &Path, nodes: usize) -> Result<Split, Error> {
    let file = Checkpoint::open(path)?;
    let set = |name: &str| {
        let tensor = file.tensors.get(name).cloned();
        let tensor = tensor.ok_or_else(|| bad(path, format!("array `{name}` is missing")))?;
        let mut set = NamedArray { path, name, tensor }.ids(nodes, "a node")?;
        set.sort_unstable();
        Ok::<_, Error>(set)
    };
    Ok(Split { train: set("train")?, valid: set("valid")?, test: set("test")? })
}
