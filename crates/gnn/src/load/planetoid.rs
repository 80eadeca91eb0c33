//! `ind.<name>.{x,tx,allx,y,ty,ally,graph,test.index}`: the citation graphs as Yang and others
//! (2016) published them, with their public split.

use std::path::{Path, PathBuf};

use hither_data::pickle::numpy::{self, Csr};
use hither_data::pickle::{Node, Pickle, Value};
use hither_data::{Bytes, Tensor};

use super::arrays::NamedArray;
use super::labels;
use super::sparse::{Parts, SparseMatrix};
use super::text::Lines;
use super::{Options, bad, sparse};
use crate::{Dataset, Error, Graph, Metric, Split};

/// Size of the validation set, which follows the training set.
const VALID_MAX: usize = 500;

/// The folder itself or its `raw`, and the name of the graph in it.
pub fn find(folder: &Path) -> Option<(PathBuf, String)> {
    [folder.to_path_buf(), folder.join("raw")].into_iter().find_map(|folder| {
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .ok()?
            .filter_map(|entry| {
                let file = entry.ok()?.file_name();
                let name = file.to_str()?.strip_prefix("ind.")?.strip_suffix(".graph")?;
                Some(name.to_string())
            })
            .collect();
        names.sort_unstable();
        Some((folder, names.into_iter().next()?))
    })
}

pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let none = || bad(path, "the file `ind.<name>.graph` is missing");
    let (folder, name) = find(path).ok_or_else(none)?;
    let file = |part: &str| folder.join(format!("ind.{name}.{part}"));
    let known = matrix(&file("allx"))?;
    let tested = matrix(&file("tx"))?;
    let indices = test_indices(&file("test.index"), known.rows(), tested.rows())?;
    // Test nodes without edges have neither features nor a class (Citeseer): the range counts.
    let span = indices.iter().max().map_or(0, |last| *last as usize + 1 - known.rows());
    let nodes = known.rows() + span;
    let mut place = vec![None; span];
    for (row, index) in indices.iter().enumerate() {
        place[*index as usize - known.rows()] = Some(row);
    }
    let of_known = answers(&file("ally"), known.rows())?;
    let of_tested = answers(&file("ty"), tested.rows())?;
    let behind = place.iter().map(|row| row.map_or(-1, |row| of_tested[row]));
    let of: Vec<i64> = of_known.into_iter().chain(behind).collect();
    let labels = labels::from_integers(&of)
        .map_err(|problem| bad(&file("ally"), format!("it {problem}")))?;
    let learned = matrix(&file("x"))?.rows();
    if learned != answers(&file("y"), learned)?.len() || learned > known.rows() {
        let problem = format!("it has {learned} rows, more than the {} of allx", known.rows());
        return Err(bad(&file("x"), problem));
    }
    let split = options.split(&labels, || {
        let valid_end = (learned + VALID_MAX).min(known.rows());
        let mut test = indices;
        test.sort_unstable();
        let (train, valid) = (0..learned as u32, learned as u32..valid_end as u32);
        Ok(Some(Split { train: train.collect(), valid: valid.collect(), test }))
    })?;
    let graph = graph(&file("graph"), nodes)?;
    let features = joined(known, &tested, &place, &file("tx"))?.features();
    Ok(Dataset::new(name, graph, features, labels, split, Metric::Accuracy))
}

/// Reads a pickle and hands its values to `take`.
fn unpickle<T>(
    path: &Path,
    take: impl FnOnce(&Pickle<'_>) -> Result<T, String>,
) -> Result<T, Error> {
    let bytes = Bytes::map(path)?;
    let pickle =
        Pickle::read(&bytes, numpy::allow).map_err(|error| bad(path, error.to_string()))?;
    take(&pickle).map_err(|problem| bad(path, problem))
}

fn matrix(path: &Path) -> Result<SparseMatrix, Error> {
    let Csr { shape, offsets, indices, values } =
        unpickle(path, |pickle| numpy::csr(pickle, pickle.root))?;
    let named = |name, tensor| NamedArray { path, name, tensor };
    Parts {
        shape: sparse::MatrixShape::Known(shape),
        offsets: named("indptr", offsets),
        indices: named("indices", indices),
        values: Some(named("data", values)),
    }
    .read()
}

/// The column of the 1 in each row, or −1 if the row is all zeros.
fn answers(path: &Path, rows: usize) -> Result<Vec<i64>, Error> {
    let tensor: Tensor = unpickle(path, |pickle| numpy::tensor(pickle, pickle.root))?;
    let named = NamedArray { path, name: "labels", tensor };
    let [found, columns] = named.table()?;
    if found != rows {
        return Err(bad(path, format!("it has {found} rows; expected {rows}")));
    }
    let values = named.floats()?;
    if columns == 0 {
        return Err(bad(path, "it has no columns; expected one per class"));
    }
    let class = |row: &[f32]| row.iter().position(|value| *value != 0.0).map_or(-1, |c| c as i64);
    Ok(values.chunks_exact(columns).map(class).collect())
}

/// Which nodes the rows of tx are, in any order, each once, from `first` on.
fn test_indices(path: &Path, first: usize, rows: usize) -> Result<Vec<u32>, Error> {
    let mut lines = Lines::open(path)?;
    let mut indices: Vec<u32> = vec![];
    // A range with more holes than this is no range.
    let limit = first + rows.saturating_mul(2).saturating_add(1000);
    while let Some(line) = lines.next()? {
        let index = line.id(line.bytes, limit, "a node")?;
        if (index as usize) < first {
            return Err(line.bad(format!("node {index} is in allx, which has {first} rows")));
        }
        if indices.len() == rows {
            return Err(line.bad(format!("expected {rows} nodes, as tx has rows; there are more")));
        }
        indices.push(index);
    }
    if indices.len() != rows {
        let found = indices.len();
        return Err(bad(path, format!("it has {found} nodes; expected {rows}, as tx has rows")));
    }
    let mut sorted = indices.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(bad(path, format!("node {} is listed twice", pair[0]))),
        None => Ok(indices),
    }
}

/// A dictionary of each node's neighbours.
fn graph(path: &Path, nodes: usize) -> Result<Graph, Error> {
    let edges = unpickle(path, |pickle| {
        let Value::Node(root) = pickle.root else { return Err("it is not a dictionary".into()) };
        let Node::Dict(pairs) = pickle.node(root) else {
            return Err("it is not a dictionary".into());
        };
        let node = |value: &Value<'_>| match value {
            Value::Int(node) if (0..nodes as i64).contains(node) => Ok(*node as u32),
            value => Err(format!("{value:?}: expected a node from 0 to below {nodes}")),
        };
        let mut edges = vec![];
        for (key, value) in pairs {
            let from = node(key)?;
            let list = pickle.items(*value);
            let list = list.ok_or_else(|| format!("the neighbours of {from} are not a list"))?;
            for to in list {
                edges.push((from, node(to)?));
            }
        }
        Ok(edges)
    })?;
    let graph = Graph::from_edges(nodes, &edges);
    graph.ok_or_else(|| bad(path, format!("an edge leads to a node that is not below {nodes}")))
}

/// The rows of allx, and behind them those of tx in the order of their nodes.
fn joined(
    mut known: SparseMatrix,
    tested: &SparseMatrix,
    place: &[Option<usize>],
    path: &Path,
) -> Result<SparseMatrix, Error> {
    if known.columns != tested.columns {
        let (found, expected) = (tested.columns, known.columns);
        return Err(bad(path, format!("it has {found} columns; allx has {expected}")));
    }
    for row in place {
        if let Some(row) = row {
            let range = tested.offsets[*row] as usize..tested.offsets[*row + 1] as usize;
            known.indices.extend(&tested.indices[range.clone()]);
            if let (Some(values), Some(more)) = (&mut known.values, &tested.values) {
                values.extend(&more[range]);
            }
        }
        known.offsets.push(known.indices.len() as u64);
    }
    Ok(known)
}
