//! A list of edges in a text file, with tables of the nodes' features, labels and sets beside it.
//! Without these it is a graph that can be described and partitioned, but not trained on.

use std::path::{Path, PathBuf};

use super::delimited::{Record, Records, RowForm};
use super::labels::{self, Cell};
use super::node_table::{FeatureTable, Ids, NodeList, Nodes, column, split};
use super::text::{find_table, float, shown};
use super::{Lacks, Options, bad, name_of};
use crate::dataset::UNLABELLED;
use crate::{Dataset, Error, Features, Graph, Labels, Metric, Names, Split};

/// Columns of an edge: two nodes, and perhaps a weight and a time.
const COLUMNS_MAX: usize = 4;
/// Heads of columns of nodes, where nodes may have any name.
const NODE_HEADS: [&str; 20] = [
    "source",
    "target",
    "src",
    "dst",
    "from",
    "to",
    "head",
    "tail",
    "u",
    "v",
    "node1",
    "node2",
    "node_1",
    "node_2",
    "id1",
    "id2",
    "id_1",
    "id_2",
    "fromnodeid",
    "tonodeid",
];
/// Integer ids number the nodes if at least one in so many is in use; else they are mere names.
const GAPS_MAX: usize = 4;

/// Reads a dataset; `path` is the folder, or the file of edges in it.
pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let (folder, edges) = if path.is_dir() {
        let edges = find_table(path, "edges").ok_or_else(|| bad(path, "edges.csv is missing"))?;
        (path, edges)
    } else {
        (path.parent().unwrap_or(Path::new("")), path.to_path_buf())
    };
    let tables = Tables::find(folder)?;
    let (graph, names, notes) = match &tables.nodes {
        Some(nodes) => {
            let list = EdgeList::read(
                &edges,
                options.edge_weights,
                |record| Ok((nodes.find(record, 0)?, nodes.find(record, 1)?)),
                |name| nodes.is_head(name),
            )?;
            (list.graph(&edges, nodes.count())?, nodes.names(), list.notes)
        }
        None if options.lacks == Lacks::Features => {
            let (graph, names, mut notes) = unlisted(&edges, options.edge_weights)?;
            let unused =
                ["labels", "split"].into_iter().filter_map(|name| find_table(folder, name));
            notes.extend(unused.filter(|path| *path != edges).map(|path| {
                format!(
                    "{} is not read: features.csv or nodes.csv must list the nodes first",
                    shown(path.file_name().unwrap_or_default().as_encoded_bytes())
                )
            }));
            (graph, names, notes)
        }
        None => {
            return Err(bad(
                &edges,
                "features.csv (or features.npy) is missing beside it; training needs features and \
                 labels of the nodes",
            ));
        }
    };
    let name = name_of(path);
    let mut dataset = tables.dataset(folder, name, graph, options)?;
    (dataset.node_names, dataset.notes) = (names, notes);
    Ok(dataset)
}

/// What stands beside the edges.
struct Tables {
    /// None without any table: the edges alone tell.
    nodes: Option<Nodes>,
    features: Option<FeatureTable>,
    /// Of each node, and the file.
    labels: Option<(PathBuf, Vec<Cell>)>,
    sets: Option<(PathBuf, Vec<Cell>)>,
}

impl Tables {
    fn find(folder: &Path) -> Result<Self, Error> {
        let features = FeatureTable::find(folder)?;
        let (mut labels, mut sets) = (None, None);
        let nodes = match find_table(folder, "nodes") {
            Some(path) => {
                let mut list = NodeList::read(&path)?;
                labels = list.labels.take().map(|cells| (path.clone(), cells));
                sets = list.sets.take().map(|cells| (path.clone(), cells));
                Some(list.into_nodes(&path))
            }
            None => features.as_ref().map(FeatureTable::nodes),
        };
        if let Some(nodes) = &nodes {
            for (name, cells) in [("labels", &mut labels), ("split", &mut sets)] {
                if let (None, Some(path)) = (&cells, find_table(folder, name)) {
                    let found = column(&path, nodes)?;
                    *cells = Some((path, found));
                }
            }
        }
        Ok(Self { nodes, features, labels, sets })
    }

    fn dataset(
        self,
        folder: &Path,
        name: String,
        graph: Graph,
        options: &Options,
    ) -> Result<Dataset, Error> {
        let missing = |what| bad(folder, format!("{what} is missing; training needs it"));
        let features = match (self.features, &self.nodes) {
            (Some(features), Some(nodes)) => features.ordered(nodes)?,
            _ if options.lacks == Lacks::Features => {
                Features::Dense { values: vec![].into(), dim: 0 }
            }
            _ => return Err(missing("features.csv (or features.npy)")),
        };
        let (labels, class_names) = match self.labels {
            Some((path, cells)) => labels::from_texts(&path, &cells)?,
            None if options.lacks != Lacks::Nothing => {
                let of = vec![UNLABELLED; graph.nodes()];
                (Labels::Classes { of: of.into(), count: 0 }, None)
            }
            None => return Err(missing("labels.csv")),
        };
        let split = if labels.count() == 0 {
            Split::default()
        } else {
            options
                .split(&labels, || self.sets.map(|(path, sets)| split(&path, &sets)).transpose())?
        };
        let dataset = Dataset::new(name, graph, features, labels, split, Metric::Accuracy);
        Ok(Dataset { class_names, ..dataset })
    }
}

/// What a file of edges holds.
struct EdgeList {
    pairs: Vec<(u32, u32)>,
    /// One per pair, if they are to be read.
    weights: Option<Vec<f32>>,
    /// What was not used of the file.
    notes: Vec<String>,
}

impl EdgeList {
    fn graph(&self, path: &Path, nodes: usize) -> Result<Graph, Error> {
        let graph = Graph::from_edges(nodes, &self.pairs).ok_or_else(|| {
            bad(path, format!("an edge leads to a node that is not below {nodes}"))
        })?;
        let Some(weights) = &self.weights else { return Ok(graph) };
        let list = self.pairs.iter().zip(weights).map(|((u, v), weight)| (*u, *v, *weight));
        graph.with_weights(list).map_err(|problem| bad(path, problem.to_string()))
    }

    /// Reads two nodes per line, and with `weighted` the weight behind them. `is_head` says whether a field of the
    /// first line is a heading.
    fn read(
        path: &Path,
        weighted: bool,
        mut pair: impl FnMut(&Record<'_>) -> Result<(u32, u32), Error>,
        is_head: impl Fn(&str) -> bool,
    ) -> Result<Self, Error> {
        let mut records = Records::open(path, RowForm::List)?;
        let (mut pairs, mut columns) = (vec![], None);
        let mut weights = weighted.then(Vec::new);
        while let Some(record) = records.next()? {
            let found = record.len();
            if !(2..=COLUMNS_MAX).contains(&found)
                || columns.is_some_and(|columns| columns != found)
            {
                let expected = match columns {
                    Some(columns) => format!("{columns} as before"),
                    None => "two nodes, and perhaps a weight and a time".into(),
                };
                let plural = if found == 1 { "" } else { "s" };
                let problem = format!("{found} column{plural}; expected {expected}");
                return Err(record.bad(problem));
            }
            if columns.replace(found).is_none() {
                let head = record.get(0)?;
                if head.starts_with("%%MatrixMarket") {
                    let problem = "Matrix Market files are not read; write two nodes per line";
                    return Err(record.bad(problem));
                }
                if weighted && found == 2 {
                    let problem = "2 columns; --edge-weights needs a third one with the weights";
                    return Err(record.bad(problem));
                }
                if is_head(head) && is_head(record.get(1)?) {
                    continue;
                }
            }
            pairs.push(pair(&record)?);
            if let Some(weights) = &mut weights {
                let text = record.get(2)?;
                let weight =
                    float(text.as_bytes()).filter(|weight| *weight > 0.0 && weight.is_finite());
                weights.push(weight.ok_or_else(|| {
                    record.bad(format!("weight `{text}`: expected a number above 0"))
                })?);
            }
        }
        let file = shown(path.file_name().unwrap_or_default().as_encoded_bytes());
        let note = match columns {
            Some(4) if weighted => Some(format!("column 4 of {file} is not used")),
            Some(3) if !weighted => {
                Some(format!("column 3 of {file} is not used; --edge-weights reads it as weights"))
            }
            Some(columns @ 4..) => Some(format!(
                "columns 3 to {columns} of {file} are not used; --edge-weights reads column 3 as weights"
            )),
            _ => None,
        };
        Ok(Self { pairs, weights, notes: note.into_iter().collect() })
    }
}

/// A graph of which only the edges are known. Integer ids number the nodes; other names, and
/// integers with many gaps, are numbered as they appear.
fn unlisted(path: &Path, weighted: bool) -> Result<(Graph, Option<Names>, Vec<String>), Error> {
    let (mut ids, mut list) =
        numbered(path, weighted, |name| NODE_HEADS.contains(&&*name.to_lowercase()))?;
    let is_number = |name: &String| name.parse::<u64>().is_ok();
    if let [from, to, others @ ..] = ids.names()
        && !(is_number(from) || is_number(to) || others.is_empty())
        && others.iter().all(is_number)
    {
        // Two words above integers are a header, whatever they are.
        (ids, list) = numbered(path, weighted, |_| true)?;
    }
    let numbers: Option<Vec<u32>> = ids.names().iter().map(|name| name.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| {
        let last = numbers.iter().max().map_or(0, |last| *last as usize);
        last < (GAPS_MAX * ids.len()).min(u32::MAX as usize - 1)
    });
    match numbers {
        Some(numbers) => {
            for (u, v) in &mut list.pairs {
                (*u, *v) = (numbers[*u as usize], numbers[*v as usize]);
            }
            let nodes = numbers.iter().max().map_or(0, |last| *last as usize + 1);
            Ok((list.graph(path, nodes)?, None, list.notes))
        }
        None => {
            let names = ids.names().iter().collect();
            Ok((list.graph(path, ids.len())?, Some(names), list.notes))
        }
    }
}

/// Reads pairs whose nodes are numbered as they appear.
fn numbered(
    path: &Path,
    weighted: bool,
    is_head: impl Fn(&str) -> bool,
) -> Result<(Ids, EdgeList), Error> {
    let mut ids = Ids::default();
    let pair = |record: &Record<'_>| {
        let ends = (ids.insert(record.get(0)?), ids.insert(record.get(1)?));
        if ids.len() >= u32::MAX as usize {
            return Err(record.bad("more nodes than 32 bits can number"));
        }
        Ok(ends)
    };
    let list = EdgeList::read(path, weighted, pair, is_head)?;
    Ok((ids, list))
}
