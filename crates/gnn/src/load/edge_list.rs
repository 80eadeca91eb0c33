//! A folder of plain tables: `edges.csv`, `features.csv` or `.npy`, `labels.csv`, and if wanted
//! `nodes.csv`, which gives nodes names of their own, and `split.csv`.

use std::collections::HashMap;
use std::path::Path;

use hither_data::{Bytes, npy};

use super::arrays::Named;
use super::delimited::{Record, Records, classes_by_name};
use super::sparse::dense;
use super::text::{self, Lines, float, shown};
use super::{Options, bad, drawn, name_of};
use crate::{Dataset, Error, Features, Graph, Metric, Split};

/// What heads a lone column of labels, which may be any text.
const LABEL_HEADS: [&str; 4] = ["label", "labels", "class", "target"];

/// `path` is the folder or the file of edges in it.
pub fn read(path: &Path, options: &Options) -> Result<Dataset, Error> {
    let (folder, edges) = if path.is_dir() {
        (path, text::need(path, "edges.csv")?)
    } else {
        (path.parent().unwrap_or(Path::new("")), path.to_path_buf())
    };
    let listed = text::find(folder, "nodes.csv").map(|path| Listed::read(&path)).transpose()?;
    let (mut nodes, labels, sets) = match listed {
        Some(Listed { names, labels, sets }) => (Nodes::Named(names), labels, sets),
        None => (Nodes::Numbered(0), None, None),
    };
    let features = features(folder, &mut nodes)?;
    let labels = match labels {
        Some(labels) => labels,
        None => column(&text::need(folder, "labels.csv")?, &nodes)?,
    };
    let sets = match (sets, text::find(folder, "split.csv")) {
        (Some(sets), _) => Some(sets),
        (None, Some(path)) => Some(column(&path, &nodes)?),
        (None, None) => None,
    };
    let labels = classes_by_name(&labels);
    let split = match sets {
        Some(sets) => split(folder, &sets)?,
        None => drawn(&labels, options.split_seed),
    };
    let graph = graph(&edges, &nodes)?;
    let name = name_of(path);
    Ok(Dataset { name, graph, features, labels, split, metric: Metric::Accuracy })
}

/// How files speak of nodes.
enum Nodes {
    /// From 0 to below this.
    Numbered(usize),
    Named(HashMap<String, u32>),
}

impl Nodes {
    fn count(&self) -> usize {
        match self {
            Self::Numbered(count) => *count,
            Self::Named(names) => names.len(),
        }
    }

    fn number(&self, name: &str) -> Option<u32> {
        match self {
            Self::Numbered(count) => {
                name.parse().ok().filter(|number: &u32| (*number as usize) < *count)
            }
            Self::Named(names) => names.get(name).copied(),
        }
    }

    /// Whether a first line is none of data: it begins with what can be no node.
    fn is_head(&self, name: &str) -> bool {
        match self {
            Self::Numbered(_) => name.parse::<i64>().is_err(),
            Self::Named(names) => !names.contains_key(name),
        }
    }

    fn expected(&self, name: &str) -> String {
        let name = shown(name.as_bytes());
        match self {
            Self::Numbered(count) => {
                format!("`{name}`: expected a node from 0 to below {count}")
            }
            Self::Named(_) => format!("`{name}`: expected a node that nodes.csv lists"),
        }
    }

    fn of(&self, record: &Record<'_>, column: usize) -> Result<u32, Error> {
        let name = record.get(column)?;
        self.number(name).ok_or_else(|| record.bad(self.expected(name)))
    }
}

/// What `nodes.csv` says: nodes are numbered as they stand there.
struct Listed {
    names: HashMap<String, u32>,
    labels: Option<Vec<String>>,
    sets: Option<Vec<String>>,
}

impl Listed {
    fn read(path: &Path) -> Result<Self, Error> {
        let mut records = Records::open(path)?;
        let header = records.header()?;
        let known = ["id", "label", "set"];
        if !header.iter().all(|name| known.contains(&name.as_str())) || header.is_empty() {
            let problem = format!("columns {header:?}; expected id and, if wanted, label and set");
            return Err(Error::Line { path: path.into(), line: 1, problem });
        }
        let [id, label, set] = known.map(|name| header.iter().position(|found| found == name));
        let Some(id) = id else {
            let problem = "there is no column `id`".into();
            return Err(Error::Line { path: path.into(), line: 1, problem });
        };
        let mut listed = Self {
            names: HashMap::new(),
            labels: label.map(|_| vec![]),
            sets: set.map(|_| vec![]),
        };
        while let Some(record) = records.next()? {
            let name = record.get(id)?.to_string();
            let number = listed.names.len() as u32;
            if listed.names.insert(name.clone(), number).is_some() {
                return Err(record.bad(format!("node `{name}` stands there twice")));
            }
            for (column, values) in [(label, &mut listed.labels), (set, &mut listed.sets)] {
                if let (Some(column), Some(values)) = (column, values) {
                    values.push(record.get(column)?.to_string());
                }
            }
        }
        Ok(listed)
    }
}

/// Their rows count the nodes where no list does.
fn features(folder: &Path, nodes: &mut Nodes) -> Result<Features, Error> {
    let array = folder.join("features.npy");
    let (file, features, ids) = if array.is_file() {
        let tensor = npy::read(&array, &Bytes::map(&array)?)?;
        let features = dense(&Named { path: &array, name: "features", tensor })?;
        (array, features, None)
    } else {
        let Some(file) = text::find(folder, "features.csv") else {
            return Err(bad(folder, "it has neither features.csv nor features.npy"));
        };
        let (values, dim, ids) = feature_table(&file)?;
        (file, Features::Dense { values: values.into(), dim }, ids)
    };
    let rows = features.rows();
    match nodes {
        Nodes::Numbered(count) => *count = rows,
        Nodes::Named(names) if names.len() == rows => {}
        Nodes::Named(names) => {
            let nodes = names.len();
            return Err(bad(&file, format!("it has {rows} rows; nodes.csv lists {nodes} nodes")));
        }
    }
    match (ids, features) {
        (Some(ids), Features::Dense { values, dim }) => ordered(&file, nodes, &ids, &values, dim),
        (_, features) => Ok(features),
    }
}

/// Values, columns, and the nodes' names where the first column is headed `id` or `node`.
type FeatureTable = (Vec<f32>, usize, Option<Vec<String>>);

fn feature_table(path: &Path) -> Result<FeatureTable, Error> {
    let mut lines = Lines::open(path)?;
    let (mut values, mut columns, mut ids, mut first) = (vec![], None, None, true);
    while let Some(line) = lines.next()? {
        let mut fields = line.fields();
        let head = fields.clone().next().unwrap_or_default();
        if std::mem::take(&mut first) && float(head).is_none() {
            let named = matches!(&*shown(head).to_lowercase(), "id" | "node");
            ids = named.then(Vec::new);
            continue;
        }
        if let Some(ids) = &mut ids {
            let id = fields.next().unwrap_or_default();
            ids.push(String::from_utf8_lossy(id).into_owned());
        }
        let len = line.floats(fields, &mut values)?;
        if *columns.get_or_insert(len) != len || len == 0 {
            let expected = columns.unwrap_or_default().max(1);
            return Err(line.bad(format!("{len} features; expected {expected}")));
        }
    }
    let columns = columns.ok_or_else(|| bad(path, "it has no rows"))?;
    Ok((values, columns, ids))
}

/// Rows in the order of the nodes that they name.
fn ordered(
    path: &Path,
    nodes: &Nodes,
    ids: &[String],
    values: &[f32],
    dim: usize,
) -> Result<Features, Error> {
    let mut place = vec![None; nodes.count()];
    for (row, id) in ids.iter().enumerate() {
        let number = nodes.number(id).ok_or_else(|| bad(path, nodes.expected(id)))?;
        if place[number as usize].replace(row).is_some() {
            return Err(bad(path, format!("node `{id}` stands there twice")));
        }
    }
    // As many rows as nodes, and no node twice: every node has its row.
    let rows = place.into_iter().flatten().flat_map(|row| &values[row * dim..(row + 1) * dim]);
    Ok(Features::Dense { values: rows.copied().collect::<Vec<_>>().into(), dim })
}

/// A text for each node: one column in the order of the nodes, or two, the first of them nodes.
fn column(path: &Path, nodes: &Nodes) -> Result<Vec<String>, Error> {
    let mut records = Records::open(path)?;
    let mut of: Vec<Option<String>> = vec![None; nodes.count()];
    let (mut first, mut row) = (true, 0);
    while let Some(record) = records.next()? {
        let was_first = std::mem::take(&mut first);
        let (node, text) = match record.len() {
            1 => {
                let text = record.get(0)?;
                if was_first && LABEL_HEADS.contains(&&*text.to_lowercase()) {
                    continue;
                }
                row += 1;
                (row - 1, text)
            }
            2 if was_first && nodes.is_head(record.get(0)?) => continue,
            2 => (nodes.of(&record, 0)? as usize, record.get(1)?),
            found => return Err(record.bad(format!("{found} columns; expected 1 or 2"))),
        };
        let Some(of) = of.get_mut(node) else {
            return Err(record.bad(format!("there are but {} nodes", nodes.count())));
        };
        if of.replace(text.to_string()).is_some() {
            return Err(record.bad("its node stands there twice"));
        }
    }
    Ok(of.into_iter().map(Option::unwrap_or_default).collect())
}

fn split(folder: &Path, sets: &[String]) -> Result<Split, Error> {
    let mut split = Split::default();
    for (node, set) in sets.iter().enumerate() {
        let set = match set.as_str() {
            "train" => &mut split.train,
            "valid" | "val" => &mut split.valid,
            "test" => &mut split.test,
            "" | "none" => continue,
            other => {
                let other = shown(other.as_bytes());
                let problem = format!(
                    "node number {node} is in the set `{other}`; expected train, valid, test or none"
                );
                return Err(bad(folder, problem));
            }
        };
        set.push(node as u32);
    }
    Ok(split)
}

fn graph(path: &Path, nodes: &Nodes) -> Result<Graph, Error> {
    let mut records = Records::open(path)?;
    let (mut edges, mut first) = (vec![], true);
    while let Some(record) = records.next()? {
        if record.len() != 2 {
            let found = record.len();
            let problem = format!("{found} columns; expected two nodes and a comma between");
            return Err(record.bad(problem));
        }
        if std::mem::take(&mut first) && nodes.is_head(record.get(0)?) {
            continue;
        }
        edges.push((nodes.of(&record, 0)?, nodes.of(&record, 1)?));
    }
    let count = nodes.count();
    let graph = Graph::from_edges(count, &edges);
    graph.ok_or_else(|| bad(path, format!("an edge leads to a node that is not below {count}")))
}
