//! `edges.csv`, `features.json` (a bag of features per node) and `target.csv`, with or without a
//! prefix such as `musae_facebook_`: the web graphs of Rozemberczki and others (2019).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::delimited::{Records, RowForm};
use super::labels::{self, Cell};
use super::sparse::SparseMatrix;
use super::text::reader;
use super::{Options, bad, name_of};
use crate::{Dataset, Error, Graph, Metric};

/// Columns of `target.csv` that are known to hold a class, the better first.
const TARGETS: [&str; 4] = ["page_type", "ml_target", "mature", "target"];
/// Columns that hold the number by which edges name a node, the better first: if there is a new
/// one, the other one is a website's.
const IDS: [&str; 2] = ["new_id", "id"];
/// Upper bound on the vocabulary: a stray number must not make rows of billions.
const FEATURES_MAX: u32 = 1 << 24;

/// The files of edges, features and targets, if all are there.
pub fn find(folder: &Path) -> Option<[PathBuf; 3]> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    let features = names.iter().find(|name| name.ends_with("features.json"))?;
    let prefix = features.strip_suffix("features.json")?;
    let file = |part: &str| {
        let path = folder.join(format!("{prefix}{part}"));
        path.is_file().then_some(path)
    };
    Some([file("edges.csv")?, folder.join(features), file("target.csv")?])
}

pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let none = || bad(path, "edges.csv, features.json or target.csv is missing");
    let [edges, features, target] = find(path).ok_or_else(none)?;
    let targets = targets(&target)?;
    let nodes = targets.len();
    let (labels, class_names) = labels::from_texts(&target, &targets)?;
    let features = bags(&features, nodes)?.features();
    let graph = graph(&edges, nodes)?;
    let split = options.split(&labels, || Ok(None))?;
    let dataset = Dataset::new(name_of(path), graph, features, labels, split, Metric::Accuracy);
    Ok(Dataset { class_names, ..dataset })
}

/// The label of each node.
fn targets(path: &Path) -> Result<Vec<Cell>, Error> {
    let mut records = Records::open(path, RowForm::Table)?;
    let header = records.header()?;
    let column =
        |known: &[&str]| known.iter().find_map(|name| header.iter().position(|h| h == name));
    let (Some(id), Some(class)) = (column(&IDS), column(&TARGETS)) else {
        let known = TARGETS.join(", ");
        let found = header.join(", ");
        let problem = format!("the columns are {found}; expected `id` and one of {known}");
        return Err(Error::Line { path: path.into(), line: 1, problem });
    };
    let mut of: BTreeMap<u32, Cell> = BTreeMap::new();
    while let Some(record) = records.next()? {
        let node = record.id(id, u32::MAX as usize, "a node")?;
        let cell = Cell { text: record.get(class)?.to_owned(), line: record.number };
        if of.insert(node, cell).is_some() {
            return Err(record.bad(format!("node {node} has a row already")));
        }
    }
    let nodes = of.len();
    match of.last_key_value() {
        Some((last, _)) if *last as usize + 1 == nodes => Ok(of.into_values().collect()),
        Some((last, _)) => {
            Err(bad(path, format!("{nodes} nodes up to {last}; expected all from 0 on")))
        }
        None => Err(bad(path, "it has no nodes")),
    }
}

fn bags(path: &Path, nodes: usize) -> Result<SparseMatrix, Error> {
    let bags: BTreeMap<u32, Vec<u32>> =
        serde_json::from_reader(reader(path)?).map_err(|error| {
            let (line, problem) =
                (error.line() as u64, format!("expected lists of features: {error}"));
            Error::Line { path: path.into(), line, problem }
        })?;
    if let Some(node) = bags.keys().find(|node| **node as usize >= nodes) {
        return Err(bad(path, format!("node {node} has features; target.csv has {nodes} nodes")));
    }
    let columns = bags.values().flatten().max().map_or(0, |max| max.saturating_add(1));
    if columns > FEATURES_MAX {
        return Err(bad(
            path,
            format!("feature {}; expected less than {FEATURES_MAX}", columns - 1),
        ));
    }
    let (mut offsets, mut indices) = (vec![0], vec![]);
    for node in 0..nodes as u32 {
        indices.extend(bags.get(&node).into_iter().flatten());
        offsets.push(indices.len() as u64);
    }
    Ok(SparseMatrix { columns: columns as usize, offsets, indices, values: None })
}

fn graph(path: &Path, nodes: usize) -> Result<Graph, Error> {
    let mut records = Records::open(path, RowForm::Table)?;
    records.header()?;
    let mut edges = vec![];
    while let Some(record) = records.next()? {
        edges.push((record.id(0, nodes, "a node")?, record.id(1, nodes, "a node")?));
    }
    let graph = Graph::from_edges(nodes, &edges);
    graph.ok_or_else(|| bad(path, format!("an edge leads to a node that is not below {nodes}")))
}
