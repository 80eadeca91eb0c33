//! `adj_full.npz`, `feats.npy`, `class_map.json`, `role.json`: the layout of GraphSAINT.

use std::collections::BTreeMap;
use std::path::Path;

use hither_data::{Bytes, Npz, npy};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::arrays::NamedArray;
use super::labels;
use super::sparse::{Parts, dense};
use super::text::reader;
use super::{Options, bad, name_of};
use crate::{Dataset, Error, Graph, Labels, Metric, Split};

pub const ADJACENCY: &str = "adj_full.npz";

#[derive(Deserialize)]
struct Roles {
    tr: Vec<u32>,
    va: Vec<u32>,
    te: Vec<u32>,
}

/// A node's labels in `class_map.json`.
#[derive(Deserialize)]
#[serde(untagged)]
enum NodeLabels {
    Class(i64),
    Tasks(Vec<u8>),
}

pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let graph = adjacency(&path.join(ADJACENCY))?;
    let nodes = graph.nodes();
    let file = path.join("feats.npy");
    let tensor = npy::read(&file, &Bytes::map(&file)?)?;
    let features = dense(&NamedArray { path: &file, name: "feats", tensor })?;
    let labels = read_labels(&path.join("class_map.json"), nodes)?;
    let split = options.split(&labels, || {
        let Roles { tr, va, te } = json(&path.join("role.json"))?;
        let [train, valid, test] = [tr, va, te].map(|mut set: Vec<u32>| {
            set.sort_unstable();
            set
        });
        Ok(Some(Split { train, valid, test }))
    })?;
    let metric = match labels {
        Labels::Classes { .. } => Metric::Accuracy,
        Labels::Tasks { .. } => Metric::F1Micro,
    };
    Ok(Dataset::new(name_of(path), graph, features, labels, split, metric))
}

/// A matrix as `scipy.sparse.save_npz` writes it. Its transpose (csc) is the same undirected graph.
fn adjacency(path: &Path) -> Result<Graph, Error> {
    let npz = Npz::open(path)?;
    let format = npz.text("format")?.unwrap_or_default();
    if format != "csr" && format != "csc" {
        let problem = format!("array `format` is `{format}`; expected a matrix saved as csr");
        return Err(bad(path, problem));
    }
    let names = ["shape", "indptr", "indices", "data"].map(String::from);
    Parts::find(&npz, &names)?.read()?.graph(path)
}

fn read_labels(path: &Path, nodes: usize) -> Result<Labels, Error> {
    let answers: BTreeMap<u32, NodeLabels> = json(path)?;
    if let Some(node) = answers.keys().find(|node| **node as usize >= nodes) {
        return Err(bad(
            path,
            format!("node {node} has a class, but there are only {nodes} nodes"),
        ));
    }
    let count = answers.values().find_map(|answer| match answer {
        NodeLabels::Tasks(answers) => Some(answers.len()),
        NodeLabels::Class(_) => None,
    });
    let Some(count) = count else {
        let class = |node| match answers.get(&node) {
            Some(NodeLabels::Class(class)) => *class,
            _ => -1,
        };
        let of: Vec<i64> = (0..nodes as u32).map(class).collect();
        return labels::from_integers(&of).map_err(|problem| bad(path, format!("it {problem}")));
    };
    let mut of = Vec::new();
    for node in 0..nodes as u32 {
        match answers.get(&node) {
            Some(NodeLabels::Tasks(answers)) if answers.len() == count => of.extend(answers),
            _ => return Err(bad(path, format!("node {node} has no list of {count} labels"))),
        }
    }
    Ok(Labels::Tasks { of: of.into(), count })
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    serde_json::from_reader(reader(path)?).map_err(|error| Error::Line {
        path: path.into(),
        line: error.line() as u64,
        problem: error.to_string(),
    })
}
