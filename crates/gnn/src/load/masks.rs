//! One archive with `edges`, `node_features`, `node_labels` and masks of several splits, as the
//! heterophilous graphs of Platonov and others (2023) come.

use std::path::Path;

use hither_data::Npz;

use super::arrays::{NamedArray, array, metric};
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
    let split = options.split(&labels, || {
        let set = |name| mask(&array(&npz, name)?, nodes, options);
        let (train, valid) = (set("train_masks")?, set("val_masks")?);
        Ok(Some(Split { train, valid, test: set("test_masks")? }))
    })?;
    let metric = metric(&labels);
    Ok(Dataset::new(name_of(path), graph, features, labels, split, metric))
}

/// The array `edges`: two nodes per row.
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

/// The nodes of a mask: one value per node, or a row or a column per split.
pub fn mask(named: &NamedArray<'_>, nodes: usize, options: &Options) -> Result<Vec<u32>, Error> {
    let (splits, by_rows) = match named.tensor.shape[..] {
        [found] if found == nodes => (1, true),
        [found, splits] if found == nodes => (splits, false),
        [splits, found] if found == nodes => (splits, true),
        _ => {
            let shape = &named.tensor.shape;
            return Err(named.bad(format!("has shape {shape:?}; there are {nodes} nodes")));
        }
    };
    let index = options.split_of(splits).map_err(|problem| named.bad(problem))?;
    let values = named.integers()?;
    let value =
        |node: usize| values[if by_rows { index * nodes + node } else { node * splits + index }];
    Ok((0..nodes as u32).filter(|node| value(*node as usize) != 0).collect())
}
