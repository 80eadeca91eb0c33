//! Figures of a partition that decide the cost of training on it.

use rayon::prelude::*;
use serde::Serialize;

use super::Partition;
use crate::{Graph, Labels};

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PartQuality {
    pub nodes: u64,
    pub train: u64,
    pub edges_inside: u64,
    /// Edges to other parts.
    pub edges_cut: u64,
    /// Nodes with a neighbour in another part.
    pub boundary_nodes: u64,
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
        label_skew: label_skew(labels, &parts),
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

/// Mean over parts of the total-variation distance between the part's classes and the whole graph's;
/// with several labels per node, the mean over tasks.
fn label_skew(labels: &Labels, parts: &[PartQuality]) -> f64 {
    let mut all = vec![0; labels.count()];
    for part in parts {
        for (all, count) in all.iter_mut().zip(&part.labels) {
            *all += count;
        }
    }
    let nodes: u64 = parts.iter().map(|part| part.nodes).sum();
    let distance = |counts: &[u64], of: u64, whole_of: u64| -> f64 {
        let share = |count: u64, of: u64| count as f64 / of as f64;
        counts.iter().zip(&all).map(|(a, b)| (share(*a, of) - share(*b, whole_of)).abs()).sum()
    };
    let skews: Vec<f64> = parts
        .iter()
        .filter_map(|part| match labels {
            Labels::Classes { .. } => {
                let known: u64 = part.labels.iter().sum();
                (known > 0).then(|| distance(&part.labels, known, all.iter().sum()) / 2.0)
            }
            Labels::Tasks { count, .. } => (part.nodes > 0)
                .then(|| distance(&part.labels, part.nodes, nodes) / (*count).max(1) as f64),
        })
        .collect();
    skews.iter().sum::<f64>() / skews.len().max(1) as f64
}

impl Spread {
    fn over(counts: impl Iterator<Item = u64> + Clone) -> Self {
        let mean = counts.clone().sum::<u64>() as f64 / counts.clone().count().max(1) as f64;
        let max = counts.clone().max().unwrap_or(0);
        let imbalance = if mean > 0.0 { max as f64 / mean } else { 1.0 };
        Self { min: counts.min().unwrap_or(0), mean, max, imbalance }
    }
}
