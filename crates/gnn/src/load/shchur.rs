//! One archive with `adj_*`, `attr_*` and `labels`, as Shchur and others (2018) published theirs.
//! No split comes with it.

use std::path::Path;

use hither_data::Npz;

use super::arrays::array;
use super::sparse::{Parts, dense};
use super::{Options, bad, name_of};
use crate::{Dataset, Error, Metric};

/// How different writers name the parts of a matrix: `adj_data`, `adj_matrix.data`.
const JOINTS: [&str; 3] = ["_", "_matrix.", "_matrix_"];

/// Whether the arrays are those of such an archive.
pub fn fits(npz: &Npz) -> bool {
    npz.contains("labels") && matrix(npz, "adj").is_some()
}

pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let npz = Npz::open(path)?;
    let Some(names) = matrix(&npz, "adj") else {
        return Err(bad(path, "`adj_indices`, `adj_indptr` or `adj_shape` is missing"));
    };
    let graph = Parts::find(&npz, &names)?.read()?.graph(path)?;
    let whole = ["attr_matrix", "attr", "features"].into_iter().find(|name| npz.contains(name));
    let features = match (matrix(&npz, "attr"), whole) {
        (Some(names), _) => Parts::find(&npz, &names)?.read()?.features(),
        (None, Some(name)) => dense(&array(&npz, name)?)?,
        (None, None) => {
            return Err(bad(path, "it has no features; expected `attr_indices` or `attr_matrix`"));
        }
    };
    let labels = array(&npz, "labels")?.classes(graph.nodes())?;
    let split = options.split(&labels, || Ok(None))?;
    Ok(Dataset::new(name_of(path), graph, features, labels, split, Metric::Accuracy))
}

/// The names of shape, offsets, indices and values of a matrix.
fn matrix(npz: &Npz, prefix: &str) -> Option<[String; 4]> {
    let names = |joint: &str| {
        ["shape", "indptr", "indices", "data"].map(|part| format!("{prefix}{joint}{part}"))
    };
    JOINTS.into_iter().map(names).find(|names| names[..3].iter().all(|name| npz.contains(name)))
}
