//! The Open Graph Benchmark's datasets of nodes' properties, as they are downloaded: `raw/` with
//! text or, for the larger ones, arrays, and `split/<name>/`. Edges become undirected.

use std::path::{Path, PathBuf};

use hither_data::Npz;

use super::arrays::{array, classes};
use super::sparse::{dense, single};
use super::text::{self, Lines, float, integer, shown, table};
use super::{bad, name_of};
use crate::{Dataset, Error, Features, Graph, Labels, Metric, Split};

pub fn fits(folder: &Path) -> bool {
    let raw = folder.join("raw");
    text::find(&raw, "edge.csv").is_some() || raw.join("data.npz").is_file()
}

pub fn read(path: &Path) -> Result<Dataset, Error> {
    let raw = path.join("raw");
    let binary = raw.join("data.npz");
    let (graph, features, labels) =
        if binary.is_file() { from_arrays(&raw, &binary)? } else { from_text(&raw)? };
    let metric =
        if matches!(labels, Labels::Tasks { .. }) { Metric::RocAuc } else { Metric::Accuracy };
    let split = split(path, graph.nodes())?;
    Ok(Dataset { name: name_of(path), graph, features, labels, split, metric })
}

fn from_text(raw: &Path) -> Result<(Graph, Features, Labels), Error> {
    let nodes = count(&text::need(raw, "num-node-list.csv")?)?;
    // Labels first: they show that there are as many nodes as the count says.
    let labels = labels(&text::need(raw, "node-label.csv")?, nodes)?;
    let mut edges = vec![];
    let path = text::need(raw, "edge.csv")?;
    let mut lines = Lines::open(&path)?;
    while let Some(line) = lines.next()? {
        edges.push(line.pair(nodes)?);
    }
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
    let features = Features::Dense { values: values.into(), dim };
    let graph = Graph::from_edges(nodes, &edges)
        .ok_or_else(|| bad(&path, format!("an edge leads to a node that is not below {nodes}")))?;
    Ok((graph, features, labels))
}

/// A file of one number. Several would be a dataset of many graphs.
fn count(path: &Path) -> Result<usize, Error> {
    let mut lines = Lines::open(path)?;
    let Some(line) = lines.next()? else { return Err(bad(path, "it is empty")) };
    let count = line.id(line.bytes, u32::MAX as usize, "a count")? as usize;
    match lines.next()? {
        Some(line) => Err(line.bad("a second graph; expected a dataset of one")),
        None => Ok(count),
    }
}

/// One column: classes. More: as many questions to be answered by 0 or 1.
fn labels(path: &Path, nodes: usize) -> Result<Labels, Error> {
    let mut lines = Lines::open(path)?;
    let (mut of, mut tasks, mut columns, mut rows) = (vec![], vec![], 0, 0);
    while let Some(line) = lines.next()? {
        let found = line.fields().count();
        if rows == 0 {
            columns = found;
        }
        if rows == nodes || found != columns {
            let problem = format!("expected {nodes} rows of {columns} columns, one row a node");
            return Err(line.bad(problem));
        }
        if columns == 1 {
            of.push(class(line.bytes).ok_or_else(|| {
                line.bad(format!("`{}`: expected a class, 0, 1, 2, …", shown(line.bytes)))
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
        return Err(bad(path, format!("it has {rows} rows; expected {nodes}, one a node")));
    }
    if columns == 1 {
        return classes(&of).map_err(|problem| bad(path, problem));
    }
    Ok(Labels::Tasks { of: tasks.into(), count: columns })
}

const MISSING: &str = "nodes without an answer are not supported where there are several tasks";

/// −1 where there is none; some writers make all numbers fractions.
fn class(field: &[u8]) -> Option<i64> {
    integer(field).or_else(|| match float(field)? {
        value if value.is_nan() => Some(-1),
        value if value.fract() == 0.0 => Some(value as i64),
        _ => None,
    })
}

fn answer(value: Option<f32>) -> Option<u8> {
    match value? {
        0.0 => Some(0),
        1.0 => Some(1),
        _ => None,
    }
}

/// Where nodes have no features but edges do (proteins): the mean over a node's edges.
fn edge_means(raw: &Path, nodes: usize, edges: &[(u32, u32)]) -> Result<(Vec<f32>, usize), Error> {
    let Some(path) = text::find(raw, "edge-feat.csv") else {
        return Err(bad(raw, "it has neither node-feat.csv nor edge-feat.csv, packed or not"));
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
        let Some((u, v)) = edges.get(found).filter(|_| len == dim) else {
            let edges = edges.len();
            return Err(line.bad(format!("expected {edges} rows of {dim} columns, one an edge")));
        };
        for node in [*u, *v] {
            let sum = &mut sums[node as usize * dim..][..dim];
            sum.iter_mut().zip(&row).for_each(|(sum, value)| *sum += value);
        }
        found += 1;
    }
    if found != edges.len() || dim == 0 {
        let edges = edges.len();
        return Err(bad(&path, format!("it has {found} rows; expected {edges}, one an edge")));
    }
    let mut degrees = vec![0_u32; nodes];
    for (u, v) in edges {
        degrees[*u as usize] += 1;
        degrees[*v as usize] += 1;
    }
    for (sum, degree) in sums.chunks_exact_mut(dim).zip(degrees) {
        sum.iter_mut().for_each(|sum| *sum /= degree.max(1) as f32);
    }
    Ok((sums, dim))
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
        return Err(ends.bad(format!("is of shape {:?}; expected [2, edges]", ends.tensor.shape)));
    };
    let ids = ends.ids(nodes, "a node")?;
    let (from, to) = ids.split_at(count);
    let edges: Vec<(u32, u32)> = from.iter().copied().zip(to.iter().copied()).collect();
    drop(ids);
    let graph = Graph::from_edges(nodes, &edges)
        .ok_or_else(|| ends.bad(format!("leads to a node that is not below {nodes}")))?;
    let features = dense(&array(&npz, "node_feat")?)?;
    Ok((graph, features, labels))
}

/// `split/<whatever>/{train,valid,test}.csv`, a node a line.
fn split(path: &Path, nodes: usize) -> Result<Split, Error> {
    let folder = path.join("split");
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder)
        .map_err(|source| Error::Io { action: "open", path: folder.clone(), source })?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| text::find(path, "train.csv").is_some())
        .collect();
    found.sort_unstable();
    let Some(folder) = found.first() else {
        return Err(bad(&folder, "no folder in it has a train.csv, packed or not"));
    };
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
