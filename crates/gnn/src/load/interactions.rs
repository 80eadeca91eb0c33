//! User–item graphs: which users took which items.
//!
//! Either `train.txt` and `test.txt` with one line per user, the user's number and the numbers of its items
//! (the layout of LightGCN and its kin), or tables with the columns `user` and `item`: `train.csv` and
//! `test.csv`, or one file. Users and items are numbered apart, each from 0; in the graph users come first.

use std::path::{Path, PathBuf};

use super::delimited::{Record, Records, RowForm};
use super::node_table::Ids;
use super::text::{Lines, find, find_table, shown};
use super::{bad, name_of};
use crate::dataset::UNLABELLED;
use crate::links::Held;
use crate::{Dataset, Error, Features, Graph, Labels, Links, Metric, Names, Split};

const USER_HEADS: [&str; 5] = ["user", "user_id", "userid", "uid", "user:token"];
const ITEM_HEADS: [&str; 5] = ["item", "item_id", "itemid", "iid", "item:token"];
/// Numbers of users or items may have gaps, but most of them must be in use.
const GAPS_MAX: usize = 16;

/// The files of a dataset.
struct Files {
    train: PathBuf,
    test: Option<PathBuf>,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `user item item …`
    Lists,
    /// One row per interaction.
    Table,
}

/// Whether a folder holds such files.
pub fn fits(folder: &Path) -> bool {
    files(folder).is_some()
}

/// Whether a file begins with the heads of columns of users and items.
pub fn is_table(path: &Path) -> bool {
    let head = || -> Result<Vec<String>, Error> { Records::open(path, RowForm::List)?.header() };
    head().is_ok_and(|head| columns(&head).is_some())
}

fn files(folder: &Path) -> Option<Files> {
    if let (Some(train), Some(test)) = (find(folder, "train.txt"), find(folder, "test.txt")) {
        return Some(Files { train, test: Some(test), form: Form::Lists });
    }
    let table = |name: &str| find_table(folder, name).filter(|path| is_table(path));
    let (train, test) = match table("interactions") {
        Some(all) => (all, None),
        None => (table("train")?, Some(table("test")?)),
    };
    Some(Files { train, test, form: Form::Table })
}

/// Where the users and the items stand in a table with these heads.
fn columns(head: &[String]) -> Option<(usize, usize)> {
    let find = |heads: &[&str]| head.iter().position(|name| heads.contains(&name.as_str()));
    Some((find(&USER_HEADS)?, find(&ITEM_HEADS)?))
}

/// Pairs of a user and an item, each by its own number.
type Pairs = Vec<(u32, u32)>;

/// What the files call users and items.
enum Called {
    /// By numbers below these.
    Numbers {
        users: usize,
        items: usize,
    },
    Names {
        users: Ids,
        items: Ids,
    },
}

/// Reads a dataset; `path` is the folder, or the one table.
pub fn read(path: &Path) -> Result<Dataset, Error> {
    let files = if path.is_dir() {
        files(path).ok_or_else(|| {
            bad(
                path,
                "expected train.txt and test.txt, or interactions.csv with columns user and item",
            )
        })?
    } else {
        Files { train: path.into(), test: None, form: Form::Table }
    };
    let (mut notes, mut sets) = (vec![], vec![]);
    let mut called = match files.form {
        Form::Lists => Called::Numbers { users: 0, items: 0 },
        Form::Table => Called::Names { users: Ids::default(), items: Ids::default() },
    };
    for file in [Some(&files.train), files.test.as_ref()].into_iter().flatten() {
        sets.push(match &mut called {
            Called::Numbers { users, items } => lists(file, users, items)?,
            Called::Names { users, items } => table(file, users, items, &mut notes)?,
        });
    }
    let (users, items) = match &called {
        Called::Numbers { users, items } => (*users, *items),
        Called::Names { users, items } => (users.len(), items.len()),
    };
    if users + items >= u32::MAX as usize {
        return Err(bad(path, format!("{users} users and {items} items are too many")));
    }
    let shift = |pairs: Pairs| -> Pairs {
        pairs.into_iter().map(|(user, item)| (user, users as u32 + item)).collect()
    };
    let mut sets = sets.into_iter().map(shift);
    let train = sets.next().unwrap_or_default();
    if train.is_empty() {
        return Err(bad(&files.train, "it holds no interactions"));
    }
    let graph = Graph::from_edges(users + items, &train)
        .ok_or_else(|| bad(&files.train, "an item is out of range"))?;
    let test = sets.next().unwrap_or_default();
    let (listed, mut test) = (test.len(), test);
    test.retain(|(user, item)| graph.neighbours(*user).binary_search(item).is_err());
    if test.len() < listed {
        let known = listed - test.len();
        notes.push(format!("{known} test interactions are also training interactions: left out"));
    }
    let labels = Labels::Classes { of: vec![UNLABELLED; users + items].into(), count: 0 };
    let features = Features::Dense { values: vec![].into(), dim: 0 };
    let (name, split) = (name_of(path), Split::default());
    let mut dataset = Dataset::new(name, graph, features, labels, split, Metric::Accuracy);
    dataset.links =
        Some(Links { users: Some(users), test: Held::from_pairs(test), ..Links::default() });
    dataset.notes = notes;
    if let Called::Names { users, items } = called {
        let names: Names = users.names().iter().chain(items.names()).collect();
        dataset.node_names = Some(names);
    }
    Ok(dataset)
}

/// One line per user: its number and those of its items. The counts grow to what is found.
fn lists(path: &Path, users: &mut usize, items: &mut usize) -> Result<Pairs, Error> {
    let mut lines = Lines::open(path)?;
    let (mut pairs, mut rows) = (vec![], 0);
    while let Some(line) = lines.next()? {
        let words = line.bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut numbers = words.enumerate().map(|(place, word)| {
            let what = if place == 0 { "the number of a user" } else { "the number of an item" };
            line.id(word, u32::MAX as usize / 4, what)
        });
        let Some(user) = numbers.next() else { continue };
        let user = user?;
        (*users, rows) = ((*users).max(user as usize + 1), rows + 1);
        for item in numbers {
            let item = item?;
            *items = (*items).max(item as usize + 1);
            pairs.push((user, item));
        }
    }
    for (what, count, seen) in [("user", *users, rows), ("item", *items, pairs.len())] {
        if count > GAPS_MAX * (seen + 1) {
            return Err(bad(
                path,
                format!(
                    "the largest {what} number is {}, but there are {seen} lines or items; number \
                         them from 0 without gaps",
                    count - 1
                ),
            ));
        }
    }
    Ok(pairs)
}

/// One row per interaction, by names.
fn table(
    path: &Path,
    users: &mut Ids,
    items: &mut Ids,
    notes: &mut Vec<String>,
) -> Result<Pairs, Error> {
    let mut records = Records::open(path, RowForm::List)?;
    let head = records.header()?;
    let (user, item) = columns(&head).ok_or_else(|| {
        let head = head.join(", ");
        bad(path, format!("its columns are {head}; expected the columns `user` and `item`"))
    })?;
    let mut pairs = vec![];
    let name = |record: &Record<'_>, column: usize, what: &str| -> Result<String, Error> {
        let text = if column < record.len() { record.get(column)?.trim() } else { "" };
        match text.is_empty() {
            true => Err(record.bad(format!("the {what} is missing"))),
            false => Ok(text.to_owned()),
        }
    };
    while let Some(record) = records.next()? {
        let (user, item) = (name(&record, user, "user")?, name(&record, item, "item")?);
        pairs.push((users.insert(&user), items.insert(&item)));
        if users.len() + items.len() >= u32::MAX as usize {
            return Err(record.bad("more users and items than 32 bits can number"));
        }
    }
    if head.len() > 2 {
        let file = shown(path.file_name().unwrap_or_default().as_encoded_bytes());
        notes.push(format!("of {file} only the columns of users and items are used"));
    }
    Ok(pairs)
}
