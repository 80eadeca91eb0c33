//! The tables beside a list of edges: who the nodes are, and their features, labels and sets.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hither_data::{Bytes, Spill, npy};

use super::arrays::NamedArray;
use super::bad;
use super::delimited::{Record, Records, RowForm};
use super::labels::Cell;
use super::sparse::dense;
use super::text::{self, float, shown};
use crate::{Error, Features, Names, Split};

/// Heads of a column of labels or sets, where labels may be any text.
const LABEL_HEADS: [&str; 6] = ["label", "labels", "class", "target", "set", "split"];
/// Heads of a column of nodes, where nodes may have any name.
const ID_HEADS: [&str; 4] = ["id", "node", "name", "node_id"];

/// How files speak of nodes.
pub enum Nodes {
    /// By the numbers from 0 to below `count`, which are the rows of the file `by`.
    Numbered { count: usize, by: String },
    /// By names, which the file `by` lists.
    Named { ids: Ids, by: String },
}

/// Names, numbered as they come.
#[derive(Clone, Default)]
pub struct Ids {
    numbers: HashMap<String, u32>,
    names: Vec<String>,
}

impl Ids {
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn get(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The number of a name, which is a new one where the name is.
    pub fn insert(&mut self, name: &str) -> u32 {
        if let Some(number) = self.get(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        number
    }

    /// Whether the names are the numbers from 0 on, in any order.
    fn are_numbers(&self) -> bool {
        let is_number = |name: &String| {
            name.parse().is_ok_and(|number: usize| {
                number < self.names.len() && number.to_string().len() == name.len()
            })
        };
        self.names.iter().all(is_number)
    }
}

impl Nodes {
    /// Nodes whose names a file lists, which may be plain numbers.
    fn listed(ids: Ids, by: &Path) -> Self {
        let by = by.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match ids.are_numbers() {
            true => Self::Numbered { count: ids.len(), by },
            false => Self::Named { ids, by },
        }
    }

    pub fn count(&self) -> usize {
        match self {
            Self::Numbered { count, .. } => *count,
            Self::Named { ids, .. } => ids.len(),
        }
    }

    fn number(&self, name: &str) -> Option<u32> {
        match self {
            Self::Numbered { count, .. } => {
                name.parse().ok().filter(|number: &u32| (*number as usize) < *count)
            }
            Self::Named { ids, .. } => ids.get(name),
        }
    }

    /// Whether a field can name no node, as in a header.
    pub fn is_head(&self, name: &str) -> bool {
        match self {
            Self::Numbered { .. } => name.parse::<i64>().is_err(),
            Self::Named { ids, .. } => ids.get(name).is_none(),
        }
    }

    fn expected(&self, name: &str) -> String {
        let name = shown(name.as_bytes());
        match self {
            Self::Numbered { count, by } => format!(
                "`{name}`: expected a node from 0 to below {count}, the rows of {by}; list nodes \
                 with other ids in nodes.csv, or in a first column `id` of features.csv"
            ),
            Self::Named { by, .. } => format!("`{name}`: expected a node that {by} lists"),
        }
    }

    /// The node that a field names.
    pub fn find(&self, record: &Record<'_>, column: usize) -> Result<u32, Error> {
        let name = record.get(column)?;
        self.number(name).ok_or_else(|| record.bad(self.expected(name)))
    }

    /// None where nodes are called by their numbers.
    pub fn names(&self) -> Option<Names> {
        match self {
            Self::Numbered { .. } => None,
            Self::Named { ids, .. } => Some(ids.names().iter().collect()),
        }
    }
}

/// `nodes.csv`: an `id` per node, and in columns of their own its label and its set.
#[derive(Default)]
pub struct NodeList {
    ids: Ids,
    pub labels: Option<Vec<Cell>>,
    pub sets: Option<Vec<Cell>>,
}

impl NodeList {
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut records = Records::open(path, RowForm::Table)?;
        let header = records.header()?;
        let known = ["id", "label", "set"];
        let [id, label, set] = known.map(|name| header.iter().position(|found| found == name));
        let is_known = |name: &String| known.contains(&name.as_str());
        let Some(id) = id.filter(|_| header.iter().all(is_known)) else {
            let found = header.join(", ");
            let problem =
                format!("the columns are {found}; expected `id` and, if wanted, `label` and `set`");
            return Err(Error::Line { path: path.into(), line: 1, problem });
        };
        let mut list =
            Self { labels: label.map(|_| vec![]), sets: set.map(|_| vec![]), ..Self::default() };
        while let Some(record) = records.next()? {
            let name = record.get(id)?;
            if list.ids.insert(name) as usize + 1 != list.ids.len() {
                return Err(record.bad(format!("node `{name}` is listed twice")));
            }
            for (column, values) in [(label, &mut list.labels), (set, &mut list.sets)] {
                if let (Some(column), Some(values)) = (column, values) {
                    let text = record.get(column)?.to_owned();
                    values.push(Cell { text, line: record.number });
                }
            }
        }
        Ok(list)
    }

    /// The order of the list is that of the nodes, even if their ids are numbers.
    pub fn into_nodes(self, path: &Path) -> Nodes {
        let in_order = self.ids.names().iter().zip(0..).all(|(id, row)| *id == row.to_string());
        let by = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match in_order {
            true => Nodes::Numbered { count: self.ids.len(), by },
            false => Nodes::Named { ids: self.ids, by },
        }
    }
}

/// `features.npy` or `features.csv`.
pub struct FeatureTable {
    path: PathBuf,
    features: Features,
    /// The nodes that the rows are of, where the table says so; else rows are in the nodes' order.
    ids: Option<Ids>,
}

impl FeatureTable {
    /// None if there is no such file.
    pub fn find(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join("features.npy");
        if path.is_file() {
            let tensor = npy::read(&path, &Bytes::map(&path)?)?;
            let features = dense(&NamedArray { path: &path, name: "features", tensor })?;
            return Ok(Some(Self { path, features, ids: None }));
        }
        text::find_table(folder, "features").map(|path| Self::read(&path)).transpose()
    }

    fn read(path: &Path) -> Result<Self, Error> {
        let mut records = Records::open(path, RowForm::List)?;
        let (mut values, mut row) = (Spill::default(), vec![]);
        let (mut dim, mut ids, mut is_first) = (None, None, true);
        while let Some(record) = records.next()? {
            let head = record.get(0)?;
            if std::mem::take(&mut is_first) && float(head.as_bytes()).is_none() {
                let is_named = matches!(&*head.to_lowercase(), "id" | "node");
                ids = is_named.then(Ids::default);
                continue;
            }
            if let Some(ids) = &mut ids
                && ids.insert(head) as usize + 1 != ids.len()
            {
                return Err(record.bad(format!("node `{head}` has a row already")));
            }
            row.clear();
            let found = record.floats(usize::from(ids.is_some()), &mut row)?;
            values.extend(&row)?;
            let expected = *dim.get_or_insert(found.max(1));
            if found != expected {
                return Err(record.bad(format!("{found} features; expected {expected}")));
            }
        }
        let dim = dim.ok_or_else(|| bad(path, "it has no rows"))?;
        let features = Features::Dense { values: values.finish()?, dim };
        Ok(Self { path: path.into(), features, ids })
    }

    /// The nodes, as the rows tell them.
    pub fn nodes(&self) -> Nodes {
        match &self.ids {
            Some(ids) => Nodes::listed(ids.clone(), &self.path),
            None => {
                let by = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Nodes::Numbered { count: self.features.rows(), by }
            }
        }
    }

    /// The rows in the order of the nodes.
    pub fn ordered(self, nodes: &Nodes) -> Result<Features, Error> {
        let (rows, count) = (self.features.rows(), nodes.count());
        if rows != count {
            return Err(bad(&self.path, format!("it has {rows} rows; there are {count} nodes")));
        }
        let (Some(ids), Features::Dense { values, dim }) = (&self.ids, &self.features) else {
            return Ok(self.features);
        };
        let mut row_of = vec![0; count];
        // As many rows as nodes, and no node twice: every node has its row.
        for (row, id) in ids.names().iter().enumerate() {
            let node = nodes.number(id).ok_or_else(|| bad(&self.path, nodes.expected(id)))?;
            row_of[node as usize] = row;
        }
        let mut ordered = Spill::default();
        for row in row_of {
            ordered.extend(&values[row * dim..(row + 1) * dim])?;
        }
        Ok(Features::Dense { values: ordered.finish()?, dim: *dim })
    }
}

/// A text per node: one column in the order of the nodes, or two, the first of them nodes.
pub fn column(path: &Path, nodes: &Nodes) -> Result<Vec<Cell>, Error> {
    let mut records = Records::open(path, RowForm::Table)?;
    let mut of: Vec<Option<Cell>> = vec![None; nodes.count()];
    let (mut is_first, mut first_line, mut singles) = (true, 1, vec![]);
    while let Some(record) = records.next()? {
        let is_first = std::mem::take(&mut is_first);
        let cell = |column| {
            Ok::<_, Error>(Cell { text: record.get(column)?.to_owned(), line: record.number })
        };
        match record.len() {
            1 if is_first && LABEL_HEADS.contains(&&*record.get(0)?.to_lowercase()) => {
                first_line = record.number + 1;
            }
            1 => singles.push(cell(0)?),
            2 if is_first && is_header(nodes, record.get(0)?, record.get(1)?) => {}
            2 => {
                let node = nodes.find(&record, 0)?;
                if of[node as usize].replace(cell(1)?).is_some() {
                    return Err(record.bad("this node has a row already"));
                }
            }
            found => return Err(record.bad(format!("{found} columns; expected 1 or 2"))),
        }
    }
    if singles.is_empty() {
        return Ok(of.into_iter().map(Option::unwrap_or_default).collect());
    }
    in_order(path, singles, nodes.count(), first_line..records.end_line())
}

/// Whether a first row is a header. Where nodes have names, an unknown one may be a slip.
fn is_header(nodes: &Nodes, node: &str, text: &str) -> bool {
    let is_known = |heads: &[&str], text: &str| heads.contains(&&*text.to_lowercase());
    let is_head = is_known(&ID_HEADS, node) || is_known(&LABEL_HEADS, text);
    nodes.is_head(node) && (is_head || matches!(nodes, Nodes::Numbered { .. }))
}

/// One cell per node. Blank lines are empty cells if only so there are as many as nodes.
fn in_order(
    path: &Path,
    cells: Vec<Cell>,
    nodes: usize,
    lines: Range<u64>,
) -> Result<Vec<Cell>, Error> {
    let found = cells.len();
    if found == nodes {
        return Ok(cells);
    }
    let last = cells.last().map_or(0, |cell| cell.line);
    let fits = lines.start + nodes as u64 <= lines.end && last < lines.start + nodes as u64;
    if found > nodes || !fits {
        return Err(bad(path, format!("it has {found} rows; expected {nodes}, one per node")));
    }
    let mut of = vec![Cell::default(); nodes];
    for cell in cells {
        let at = (cell.line - lines.start) as usize;
        of[at] = cell;
    }
    Ok(of)
}

/// The sets that `path` puts the nodes into.
pub fn split(path: &Path, sets: &[Cell]) -> Result<Split, Error> {
    let mut split = Split::default();
    for (node, set) in sets.iter().enumerate() {
        let nodes = match &*set.text.to_lowercase() {
            "train" => &mut split.train,
            "valid" | "val" | "validation" => &mut split.valid,
            "test" => &mut split.test,
            "" | "none" => continue,
            _ => {
                let found = shown(set.text.as_bytes());
                let problem = format!("set `{found}`; expected train, valid, test or none");
                return Err(Error::Line { path: path.into(), line: set.line, problem });
            }
        };
        nodes.push(node as u32);
    }
    Ok(split)
}
