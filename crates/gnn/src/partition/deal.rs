//! Nodes, or clusters of them, dealt to parts: at random, by kind, or by label.

use std::cmp::Ordering;

use rand::seq::SliceRandom;

use super::kinds::{KindCounts, Kinds};
use super::quota::Quota;
use super::{Settings, multilevel};
use crate::dataset::UNLABELLED;
use crate::{Error, Graph, Labels};

/// Clusters per part, where clusters are dealt: fewer cannot be dealt evenly, more cut more edges.
const CLUSTERS_PER_PART: usize = 16;

/// Shuffles the nodes and deals them like cards, kind by kind: parts differ by at most one node of each kind.
pub fn random(nodes: usize, quota: &Quota, settings: &Settings) -> Vec<u32> {
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    order.shuffle(&mut hither_core::seed::stream(settings.seed, "partition"));
    order.sort_by_key(|node| std::cmp::Reverse(quota.kind(*node as usize)));
    let mut of = vec![0; nodes];
    for (place, node) in order.into_iter().enumerate() {
        of[node as usize] = (place % settings.parts) as u32;
    }
    of
}

/// Cuts the graph into small clusters and deals these, the largest first, each to the part that is then most like the
/// whole graph.
pub fn clusters(graph: &Graph, quota: &Quota, settings: &Settings) -> Result<Vec<u32>, Error> {
    let (nodes, parts) = (graph.nodes(), settings.parts);
    let count = (CLUSTERS_PER_PART * parts).min(nodes);
    let fine = Settings { parts: count, ..*settings };
    let cluster_of = multilevel::cut(graph, &Quota::new(nodes, Kinds::one(), &fine), &fine)?;
    let mut sizes = KindCounts::none(count, quota.kinds.count);
    let of_node = KindCounts::of_nodes(nodes, &quota.kinds);
    for (node, cluster) in cluster_of.iter().enumerate() {
        sizes.add(*cluster as usize, of_node.row(node));
    }
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|cluster| std::cmp::Reverse(sizes.total(*cluster)));
    let mut held = KindCounts::none(parts, quota.kinds.count);
    let mut part_of = vec![0; count];
    for cluster in order {
        let more = sizes.row(cluster);
        // What is already held of each kind that comes, as a share of the kind: sums of squares would grow least there.
        let fullness = |part: usize| -> f64 {
            let kinds = held.row(part).iter().zip(more).zip(&quota.total);
            kinds
                .map(|((held, more), total)| {
                    let total = f64::from((*total).max(1));
                    f64::from(*more) * f64::from(2 * held + more) / (total * total)
                })
                .sum()
        };
        let to = (0..parts).min_by(|a, b| fullness(*a).total_cmp(&fullness(*b))).unwrap_or(0);
        held.add(to, more);
        part_of[cluster] = to as u32;
    }
    Ok(cluster_of.into_iter().map(|cluster| part_of[cluster as usize]).collect())
}

/// Sorts the nodes by class (by their row of labels if they have several) and cuts the line into equal
/// pieces. Unlabelled nodes fill the room that is left, so that every part has its share of
/// labelled ones.
pub fn by_label(labels: &Labels, parts: usize) -> Vec<u32> {
    let (mut known, unknown): (Vec<u32>, Vec<u32>) =
        (0..labels.nodes() as u32).partition(|node| is_known(labels, *node));
    known.sort_by(|a, b| order(labels, *a, *b));
    let nodes = known.len() + unknown.len();
    let mut of = vec![0; nodes];
    let (mut known, mut unknown) = (known.into_iter(), unknown.into_iter());
    let known_count = known.len();
    for part in 0..parts {
        let of_known = share(known_count, part, parts);
        let of_unknown = share(nodes, part, parts) - of_known;
        for node in known.by_ref().take(of_known).chain(unknown.by_ref().take(of_unknown)) {
            of[node as usize] = part as u32;
        }
    }
    of
}

/// The size of one of `parts` equal pieces, where the first ones take what does not divide. It
/// never falls when `count` grows.
fn share(count: usize, part: usize, parts: usize) -> usize {
    count / parts + usize::from(part < count % parts)
}

fn is_known(labels: &Labels, node: u32) -> bool {
    match labels {
        Labels::Classes { of, .. } => of[node as usize] != UNLABELLED,
        Labels::Tasks { .. } => true,
    }
}

fn order(labels: &Labels, a: u32, b: u32) -> Ordering {
    match labels {
        Labels::Classes { of, .. } => of[a as usize].cmp(&of[b as usize]),
        Labels::Tasks { of, count } => {
            let row = |node: u32| &of[node as usize * count..][..*count];
            row(b).cmp(row(a))
        }
    }
}
