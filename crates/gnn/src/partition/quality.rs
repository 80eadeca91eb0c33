//! Figures of a partition that decide the cost of training on it.

use rayon::prelude::*;
use serde::Serialize;

use super::Partition;
use crate::layer::Rows;
use crate::{Features, Graph, Labels};

/// Hubs are this share of the nodes: those with the most neighbours.
const HUBS: f64 = 0.01;

/// Figures of a whole partition, and of each of its parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Quality {
    /// Edges whose ends are in different parts.
    pub cut_edges: u64,
    /// Share of edges that are cut.
    pub cut_share: f64,
    pub nodes: Spread,
    pub train: Spread,
    /// Mean over parts of the distance of a part's classes from the whole graph's, 0 to 1.
    pub label_skew: f64,
    /// Share of the variance of the features that lies between the parts' means, 0 to 1; `None` without features.
    pub feature_skew: Option<f64>,
    /// Sum over nodes of the number of other parts among their neighbours: the rows that cross the
    /// network when every part fetches its remote neighbours once.
    pub communication_volume: u64,
    /// Copies per node, the original included, if every part also stored its remote neighbours.
    pub replication: f64,
    pub parts: Vec<PartQuality>,
}

/// A count over the parts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Spread {
    pub min: u64,
    pub mean: f64,
    pub max: u64,
    /// The largest over the mean; 1 means equal parts.
    pub imbalance: f64,
}

/// Figures of one part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PartQuality {
    pub nodes: u64,
    pub train: u64,
    pub edges_inside: u64,
    /// Edges to other parts.
    pub edges_cut: u64,
    /// Nodes with a neighbour in another part.
    pub boundary_nodes: u64,
    /// Nodes among the hundredth of all with the most neighbours.
    pub hubs: u64,
    /// Distance of its classes from the whole graph's, 0 to 1; 0 if none of its nodes has a label.
    pub label_skew: f64,
    /// Distance of the mean of its features from the whole graph's, as a multiple of their standard deviation.
    pub feature_skew: Option<f64>,
    /// Nodes per class; with several labels per node, nodes with label 1 per task.
    pub labels: Vec<u64>,
}

/// Counts over the edges of one part.
#[derive(Clone, Copy, Default)]
struct Ends {
    inside: u64,
    cut: u64,
    boundary: u64,
    foreign: u64,
}

pub fn quality(graph: &Graph, labels: &Labels, train: &[u32], partition: &Partition) -> Quality {
    let mut parts = vec![PartQuality::default(); partition.parts];
    for part in &mut parts {
        part.labels = vec![0; labels.count()];
    }
    for (node, part) in partition.of.iter().enumerate() {
        let part = &mut parts[*part as usize];
        part.nodes += 1;
        count_labels(labels, node, &mut part.labels);
    }
    for node in train {
        parts[partition.of[*node as usize] as usize].train += 1;
    }
    for node in hubs(graph) {
        parts[partition.of[node as usize] as usize].hubs += 1;
    }
    let label_skew = label_skew(labels, &mut parts);
    let mut communication_volume = 0;
    for (part, ends) in parts.iter_mut().zip(ends(graph, partition)) {
        part.edges_inside = ends.inside / 2;
        part.edges_cut = ends.cut;
        part.boundary_nodes = ends.boundary;
        communication_volume += ends.foreign;
    }
    let nodes = graph.nodes().max(1) as f64;
    let cut_edges = parts.iter().map(|part| part.edges_cut).sum::<u64>() / 2;
    Quality {
        cut_edges,
        cut_share: cut_edges as f64 / graph.edges().max(1) as f64,
        nodes: Spread::over(parts.iter().map(|part| part.nodes)),
        train: Spread::over(parts.iter().map(|part| part.train)),
        label_skew,
        feature_skew: None,
        communication_volume,
        replication: (nodes + communication_volume as f64) / nodes,
        parts,
    }
}

/// Counts per part. Threads count stretches of the nodes; integer sums do not depend on the order.
fn ends(graph: &Graph, partition: &Partition) -> Vec<Ends> {
    let of = &partition.of;
    let stretch = graph.nodes().div_ceil(rayon::current_num_threads()).max(1);
    let stretches: Vec<Vec<Ends>> = (0..graph.nodes().div_ceil(stretch))
        .into_par_iter()
        .map(|at| {
            let mut ends = vec![Ends::default(); partition.parts];
            let mut seen = vec![u32::MAX; partition.parts];
            for node in at * stretch..graph.nodes().min((at + 1) * stretch) {
                let own = &mut ends[of[node] as usize];
                let before = own.foreign;
                for neighbour in graph.neighbours(node as u32) {
                    let part = of[*neighbour as usize];
                    if part == of[node] {
                        own.inside += 1;
                        continue;
                    }
                    own.cut += 1;
                    let new = std::mem::replace(&mut seen[part as usize], node as u32);
                    own.foreign += u64::from(new != node as u32);
                }
                own.boundary += u64::from(own.foreign > before);
            }
            ends
        })
        .collect();
    let mut sums = vec![Ends::default(); partition.parts];
    for stretch in stretches {
        for (sum, ends) in sums.iter_mut().zip(stretch) {
            sum.inside += ends.inside;
            sum.cut += ends.cut;
            sum.boundary += ends.boundary;
            sum.foreign += ends.foreign;
        }
    }
    sums
}

fn count_labels(labels: &Labels, node: usize, counts: &mut [u64]) {
    match labels {
        Labels::Classes { of, .. } => {
            // Unlabelled nodes do not count.
            if let Some(count) = counts.get_mut(of[node] as usize) {
                *count += 1;
            }
        }
        Labels::Tasks { of, count } => {
            for (count, answer) in counts.iter_mut().zip(&of[node * count..]) {
                *count += u64::from(*answer == 1);
            }
        }
    }
}

/// The nodes with the most neighbours.
fn hubs(graph: &Graph) -> Vec<u32> {
    let mut nodes: Vec<u32> = (0..graph.nodes() as u32).collect();
    let count = (nodes.len() as f64 * HUBS).ceil() as usize;
    if count < nodes.len() {
        let key = |node: &u32| (std::cmp::Reverse(graph.degree(*node)), *node);
        nodes.select_nth_unstable_by_key(count, key);
        nodes.truncate(count);
    }
    nodes
}

/// Puts the total-variation distance between its classes and the whole graph's into each part, and returns the mean over the
/// parts with labels; with several labels per node, the mean over tasks.
fn label_skew(labels: &Labels, parts: &mut [PartQuality]) -> f64 {
    let mut all = vec![0; labels.count()];
    for part in parts.iter() {
        for (all, count) in all.iter_mut().zip(&part.labels) {
            *all += count;
        }
    }
    let nodes: u64 = parts.iter().map(|part| part.nodes).sum();
    let known_of_all: u64 = all.iter().sum();
    let distance = |counts: &[u64], of: u64, whole_of: u64| -> f64 {
        let share = |count: u64, of: u64| count as f64 / of as f64;
        counts.iter().zip(&all).map(|(a, b)| (share(*a, of) - share(*b, whole_of)).abs()).sum()
    };
    let (mut sum, mut count) = (0.0, 0);
    for part in parts {
        let known: u64 = part.labels.iter().sum();
        part.label_skew = match labels {
            Labels::Classes { .. } if known > 0 => {
                distance(&part.labels, known, known_of_all) / 2.0
            }
            Labels::Tasks { count, .. } if part.nodes > 0 => {
                distance(&part.labels, part.nodes, nodes) / (*count).max(1) as f64
            }
            _ => continue,
        };
        sum += part.label_skew;
        count += 1;
    }
    sum / f64::from(count.max(1))
}

impl Quality {
    /// The same, with what features say of the parts.
    pub fn with_features(mut self, features: &Features, partition: &Partition) -> Self {
        if features.dim() == 0 {
            return self;
        }
        let (sums, squares) = feature_sums(features, partition);
        let nodes: u64 = self.parts.iter().map(|part| part.nodes).sum();
        let mut mean = vec![0.0; features.dim()];
        for (at, sum) in sums.iter().enumerate() {
            mean[at % features.dim()] += sum / nodes as f64;
        }
        let lengths: f64 = mean.iter().map(|mean| mean * mean).sum();
        // Of all features together; 0 if all rows are alike.
        let variance = (squares / nodes as f64 - lengths).max(0.0);
        let mut between = 0.0;
        for (part, sums) in self.parts.iter_mut().zip(sums.chunks(features.dim())) {
            let own = sums.iter().map(|sum| sum / part.nodes as f64);
            let squared: f64 = own.zip(&mean).map(|(own, mean)| (own - mean).powi(2)).sum();
            let share = if variance > 0.0 { squared / variance } else { 0.0 };
            part.feature_skew = Some(share.sqrt());
            between += share * part.nodes as f64 / nodes as f64;
        }
        self.feature_skew = Some(between);
        self
    }
}

/// The sum of the rows of each part, one part after the other, and the sum of the squares of all values.
fn feature_sums(features: &Features, partition: &Partition) -> (Vec<f64>, f64) {
    let dim = features.dim();
    let (mut sums, mut squares) = (vec![0.0; partition.parts * dim], 0.0);
    for node in 0..partition.of.len() as u32 {
        let own = &mut sums[partition.of[node as usize] as usize * dim..][..dim];
        let mut add = |column: usize, value: f32| {
            own[column] += f64::from(value);
            squares += f64::from(value) * f64::from(value);
        };
        match Rows::collect(features, &[node]) {
            Rows::Dense { values, .. } => {
                values.iter().enumerate().for_each(|(column, value)| add(column, *value));
            }
            Rows::Sparse { indices, values, .. } => {
                for (at, column) in indices.iter().enumerate() {
                    add(*column as usize, values.as_ref().map_or(1.0, |values| values[at]));
                }
            }
        }
    }
    (sums, squares)
}

impl Spread {
    fn over(counts: impl Iterator<Item = u64> + Clone) -> Self {
        let mean = counts.clone().sum::<u64>() as f64 / counts.clone().count().max(1) as f64;
        let max = counts.clone().max().unwrap_or(0);
        let imbalance = if mean > 0.0 { max as f64 / mean } else { 1.0 };
        Self { min: counts.min().unwrap_or(0), mean, max, imbalance }
    }
}
