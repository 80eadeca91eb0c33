//! From the labels of any layout to classes. One rule for all: a negative number (usually −1), NaN,
//! `NA` and an empty field stand for "no label", and every other label is a class.

use std::collections::BTreeMap;
use std::path::Path;

use super::text::shown;
use crate::dataset::UNLABELLED;
use crate::{Dataset, Error, Labels, Names};

/// Fewer classes than this are never suspicious: toy graphs have few nodes per class.
const CLASSES_SUSPICIOUS: usize = 10;

/// A label as it stands in a text file.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub text: String,
    pub line: u64,
}

/// Classes by their numbers, negative for none.
pub fn from_integers(of: &[i64]) -> Result<Labels, String> {
    only_one_negative(of)?;
    let count = of.iter().max().map_or(0, |max| max.saturating_add(1).max(0)) as usize;
    // A model has one output per class: a stray number must not make it huge.
    if count > of.len() {
        let node = of.iter().position(|class| *class == count as i64 - 1).unwrap_or_default();
        let (class, nodes) = (count - 1, of.len());
        return Err(format!(
            "gives node {node} the class {class}, but there are only {nodes} nodes; number the \
             classes 0, 1, 2, …"
        ));
    }
    let class = |class: &i64| u32::try_from(*class).unwrap_or(UNLABELLED);
    Ok(Labels::Classes { of: of.iter().map(class).collect::<Vec<_>>().into(), count })
}

/// Two negative labels could both be classes, as in −2, −1, 0, 1, 2.
fn only_one_negative(of: &[i64]) -> Result<(), String> {
    let mut negative = of.iter().filter(|class| **class < 0);
    let Some(first) = negative.next() else { return Ok(()) };
    match negative.find(|class| *class != first) {
        Some(other) => Err(format!(
            "has the labels {first} and {other}; number the classes 0, 1, 2, … and use -1 for \
             unlabelled nodes"
        )),
        None => Ok(()),
    }
}

/// The class that a number stands for, −1 for none, or None if it is a fraction.
pub fn integer_of(value: f64) -> Option<i64> {
    match value {
        value if value.is_nan() => Some(-1),
        value if value.fract() == 0.0 => Some(value as i64),
        _ => None,
    }
}

/// How a label reads.
enum Reading {
    Missing,
    Integer(i64),
    Fraction,
    Name,
}

fn reading(text: &str) -> Reading {
    match (text.parse::<i64>(), text.parse::<f64>()) {
        _ if text.is_empty() || text == "NA" || text.eq_ignore_ascii_case("nan") => {
            Reading::Missing
        }
        (Ok(number), _) => Reading::Integer(number),
        // 3.0: programs that know no missing integers write fractions.
        (_, Ok(number)) => integer_of(number).map_or(Reading::Fraction, Reading::Integer),
        _ => Reading::Name,
    }
}

/// Classes in the order of their names, or of their numbers if all labels are integers, and what
/// the file calls them unless that is 0, 1, 2, …
pub fn from_texts(path: &Path, of: &[Cell]) -> Result<(Labels, Option<Names>), Error> {
    let bad = |cell: &Cell, problem: &str| Error::Line {
        path: path.into(),
        line: cell.line,
        problem: format!("label {:?} is {problem}", shown(cell.text.as_bytes())),
    };
    let readings: Vec<Reading> = of.iter().map(|cell| reading(&cell.text)).collect();
    let find = |is: fn(&Reading) -> bool| readings.iter().position(is).map(|at| &of[at]);
    let integer = find(|reading| matches!(reading, Reading::Integer(number) if *number >= 0));
    let fraction = find(|reading| matches!(reading, Reading::Fraction));
    match (find(|reading| matches!(reading, Reading::Name)), fraction, integer) {
        (None, Some(fraction), _) => Err(bad(
            fraction,
            "a real number, not a class; node classification needs classes, and a regression \
             target must be put into classes first",
        )),
        (None, None, _) => from_numbers(path, &readings),
        (Some(name), _, Some(_)) => Err(bad(
            name,
            "not an integer, but others are; use -1 for unlabelled nodes, or names for all classes",
        )),
        (Some(_), _, None) => {
            // Beside names, -1 can only stand for "no label".
            let missing = |at: usize| !matches!(readings[at], Reading::Name | Reading::Fraction);
            let keys = of.iter().enumerate();
            let keys = keys.map(|(at, cell)| (!missing(at)).then_some(cell.text.as_str()));
            let (labels, names) = numbered(keys);
            Ok((labels, Some(names.into_iter().collect())))
        }
    }
}

fn from_numbers(path: &Path, readings: &[Reading]) -> Result<(Labels, Option<Names>), Error> {
    let number = |reading: &Reading| match reading {
        Reading::Integer(number) => *number,
        _ => -1,
    };
    let numbers: Vec<i64> = readings.iter().map(number).collect();
    // A missing field may stand beside any negative number.
    let written: Vec<i64> = readings
        .iter()
        .filter_map(|reading| match reading {
            Reading::Integer(number) => Some(*number),
            _ => None,
        })
        .collect();
    only_one_negative(&written)
        .map_err(|problem| Error::File { path: path.into(), problem: format!("it {problem}") })?;
    let (labels, names) = numbered(numbers.iter().map(|number| (*number >= 0).then_some(*number)));
    let are_indices = names.iter().zip(0..).all(|(name, index)| *name == index);
    let names = (!are_indices).then(|| names.iter().map(i64::to_string).collect());
    Ok((labels, names))
}

/// Numbers the distinct keys in their order; None for nodes without one.
fn numbered<K: Ord + Copy>(of: impl Iterator<Item = Option<K>> + Clone) -> (Labels, Vec<K>) {
    let mut numbers: BTreeMap<K, u32> = of.clone().flatten().map(|key| (key, 0)).collect();
    for (number, value) in (0..).zip(numbers.values_mut()) {
        *value = number;
    }
    let class = |key: Option<K>| key.map_or(UNLABELLED, |key| numbers[&key]);
    let of: Vec<u32> = of.map(class).collect();
    let names: Vec<K> = numbers.into_keys().collect();
    (Labels::Classes { of: of.into(), count: names.len() }, names)
}

/// Refuses labels that cannot be learned as classes: none at all, a single one, or nearly one per node.
pub fn check(dataset: &Dataset) -> Result<(), Error> {
    let Labels::Classes { of, count } = &dataset.labels else { return Ok(()) };
    let mut nodes_of_class = vec![0_usize; *count];
    for class in of.iter().filter(|class| **class != UNLABELLED) {
        if let Some(nodes) = nodes_of_class.get_mut(*class as usize) {
            *nodes += 1;
        }
    }
    let labelled: usize = nodes_of_class.iter().sum();
    let classes = nodes_of_class.iter().filter(|nodes| **nodes > 0).count();
    let problem = if labelled == 0 {
        "no node has a label".to_owned()
    } else if classes == 1 {
        let class = nodes_of_class.iter().position(|nodes| *nodes > 0).unwrap_or_default();
        let name = dataset.class_name(class as u32);
        format!(
            "all {labelled} labelled nodes have the class {name}; training needs at least two \
             (-1 stands for unlabelled nodes: number two classes 0 and 1)"
        )
    } else if classes > CLASSES_SUSPICIOUS && 2 * classes > labelled {
        format!(
            "{classes} classes for {labelled} labelled nodes; node classification needs classes \
             that many nodes share: are these ids, or a regression target?"
        )
    } else {
        return Ok(());
    };
    Err(Error::Dataset { name: dataset.name.clone(), problem })
}
