//! One archive with `edges`, `node_features`, `node_labels` and a mask a split for each set, as
//! the heterophilous graphs of Platonov and others (2023) come.

use std::path::Path;

use hither_data::Npz;

use super::arrays::{array, metric};
use super::sparse::dense;
use super::{Options, bad, name_of};
use crate::{Dataset, Error, Graph, Split};

pub fn fits(npz: &Npz) -> bool {
    ["edges", "node_features", "node_labels", "train_masks"].iter().all(|name| npz.contains(name))
}

pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let npz = Npz::open(path)?;
    let features = dense(&array(&npz, "node_features")?)?;
    let nodes = features.rows();
    let graph = edges(&npz, nodes)?;
    let labels = array(&npz, "node_labels")?.classes(nodes)?;
    let set = |name| mask(&npz, name, nodes, options.split_index);
    let split =
        Split { train: set("train_masks")?, valid: set("val_masks")?, test: set("test_masks")? };
    let metric = metric(&labels);
    Ok(Dataset { name: name_of(path), graph, features, labels, split, metric })
}

/// The array `edges`: a pair of nodes a row.
pub fn edges(npz: &Npz, nodes: usize) -> Result<Graph, Error> {
    let named = array(npz, "edges")?;
    let [_, 2] = named.table()? else {
        return Err(named.bad(format!("is of shape {:?}; expected [edges, 2]", named.tensor.shape)));
    };
    let ends = named.ids(nodes, "a node")?;
    let pairs: Vec<(u32, u32)> = ends.as_chunks().0.iter().map(|[u, v]| (*u, *v)).collect();
    let graph = Graph::from_edges(nodes, &pairs);
    graph.ok_or_else(|| bad(npz.path(), format!("an edge leads to a node not below {nodes}")))
}

fn mask(npz: &Npz, name: &str, nodes: usize, index: usize) -> Result<Vec<u32>, Error> {
    let named = array(npz, name)?;
    let [splits, columns] = named.table()?;
    if columns != nodes {
        return Err(named.bad(format!("has {columns} columns; there are {nodes} nodes")));
    }
    if index >= splits {
        return Err(named.bad(format!("has {splits} splits; there is no number {index}")));
    }
    let row = &named.integers()?[index * nodes..(index + 1) * nodes];
    Ok((0..nodes as u32).filter(|node| row[*node as usize] != 0).collect())
}
