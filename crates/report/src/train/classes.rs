//! Scores of the single classes: an average over all nodes hides the rare ones.

use std::cmp::Reverse;

use hither_core::record::train::{ClassScore, RunRecord};
use minijinja::{Value, context};

use super::group::ModeGroup;
use crate::format::{count, percent};

/// Rows of the table; of more classes, those with the most test nodes are shown.
const SHOWN_MAX: usize = 60;

/// The table of classes.
pub struct Classes {
    /// Headings beside the class and its test nodes.
    pub columns: Vec<String>,
    pub rows: Vec<Value>,
    /// Number of classes that are not shown.
    pub left_out: usize,
}

/// The classes with the most test nodes first; `None` where runs have no classes, or not the same ones.
/// Recall by group, and the precision too if there is only one group.
pub fn classes(groups: &[ModeGroup]) -> Option<Classes> {
    let runs = || groups.iter().flat_map(|group| group.runs.iter().copied());
    let names = class_names(runs().next()?);
    if names.is_empty() || runs().any(|run| class_names(run) != names) {
        return None;
    }
    let test_nodes = |class: usize| {
        let all = Counts::over(runs(), class);
        (all.nodes as f64 / runs().count() as f64).round() as u64
    };
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_key(|&class| (Reverse(test_nodes(class)), class));
    let left_out = order.len().saturating_sub(SHOWN_MAX);
    order.truncate(SHOWN_MAX);
    let row = |&class: &usize| {
        let of_group = |group: &ModeGroup| Counts::over(group.runs.iter().copied(), class);
        let cells: Vec<f64> = match groups {
            [one] => vec![of_group(one).recall(), of_group(one).precision()],
            _ => groups.iter().map(|group| of_group(group).recall()).collect(),
        };
        let cells: Vec<Value> = cells.into_iter().map(cell).collect();
        context! { name => names[class], nodes => count(test_nodes(class)), cells }
    };
    let columns = match groups {
        [_] => vec!["recall".to_owned(), "precision".to_owned()],
        _ => groups.iter().map(|group| group.label.clone()).collect(),
    };
    Some(Classes { columns, rows: order.iter().map(row).collect(), left_out })
}

fn class_names(run: &RunRecord) -> Vec<&str> {
    run.summary.classes.iter().map(|class| class.name.as_str()).collect()
}

/// A share as text, and as the width of its bar; neither where no node decides it.
fn cell(share: f64) -> Value {
    let width = if share.is_finite() { format!("{:.1}", share * 100.0) } else { String::new() };
    context! { text => percent(share), width }
}

/// Nodes of one class, summed over runs.
#[derive(Default)]
struct Counts {
    nodes: u64,
    correct: u64,
    predicted: u64,
}

impl Counts {
    fn over<'a>(runs: impl Iterator<Item = &'a RunRecord>, class: usize) -> Self {
        runs.map(|run| &run.summary.classes[class]).fold(Self::default(), |sum, score| {
            let ClassScore { nodes, correct, predicted, .. } = score;
            Self {
                nodes: sum.nodes + nodes,
                correct: sum.correct + correct,
                predicted: sum.predicted + predicted,
            }
        })
    }

    /// NaN for a class without test nodes.
    fn recall(&self) -> f64 {
        self.correct as f64 / self.nodes as f64
    }

    /// NaN for a class that is never predicted.
    fn precision(&self) -> f64 {
        self.correct as f64 / self.predicted as f64
    }
}
