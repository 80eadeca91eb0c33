//! One archive with `edges`, bags of features (`feat_indptr`, `feat_indices`, `feat_dim`),
//! `label`, and `split`: 0 for training, 1 for validation, 2 for the test, 3 for none of these.

use std::path::Path;

use hither_data::Npz;

use super::arrays::array;
use super::sparse::{SparseMatrix, single};
use super::{Options, bad, masks, name_of};
use crate::{Dataset, Error, Metric, Split};

pub fn fits(npz: &Npz) -> bool {
    ["edges", "feat_indptr", "feat_indices", "label"].iter().all(|name| npz.contains(name))
}

pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let npz = Npz::open(path)?;
    let label = array(&npz, "label")?;
    let nodes = label.tensor.elements();
    if nodes >= u32::MAX as usize {
        return Err(bad(path, format!("{nodes} nodes are more than 32 bits can number")));
    }
    let labels = label.classes(nodes)?;
    let graph = masks::edges(&npz, nodes)?;
    let columns = single(&array(&npz, "feat_dim")?)?;
    let indices = array(&npz, "feat_indices")?;
    let offsets = array(&npz, "feat_indptr")?.offsets(nodes, indices.tensor.elements())?;
    let indices = indices.ids(columns, "a feature")?;
    let features = SparseMatrix { columns, offsets, indices, values: None }.features();
    let split = options.split(&labels, || {
        let sets = array(&npz, "split")?.sized(nodes, "one per node")?;
        let of = sets.ids(4, "0, 1, 2 or 3,")?;
        let set = |wanted: u32| (0..nodes as u32).filter(|n| of[*n as usize] == wanted).collect();
        Ok(Some(Split { train: set(0), valid: set(1), test: set(2) }))
    })?;
    Ok(Dataset::new(name_of(path), graph, features, labels, split, Metric::Accuracy))
}
