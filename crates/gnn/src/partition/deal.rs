//! Partitions that ignore the edges: random, and by label.

use std::cmp::Ordering;

use rand::seq::SliceRandom;

use super::Settings;
use super::quota::Quota;
use crate::Labels;
use crate::dataset::UNLABELLED;

/// Shuffles the nodes and deals them like cards, training nodes first if they are balanced: parts
/// differ by at most one node in either count.
pub fn random(nodes: usize, quota: &Quota, settings: &Settings) -> Vec<u32> {
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    order.shuffle(&mut hither_core::seed::stream(settings.seed, "partition"));
    if quota.is_split() {
        order.sort_by_key(|node| std::cmp::Reverse(quota.kind(*node as usize)));
    }
    let mut of = vec![0; nodes];
    for (place, node) in order.into_iter().enumerate() {
        of[node as usize] = (place % settings.parts) as u32;
    }
    of
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
