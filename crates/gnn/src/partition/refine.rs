//! Moves nodes between parts while that cuts fewer edges.

use super::kinds::KindCounts;
use super::level::Level;
use super::quota::Quota;
use super::tally::Links;

const PASSES: usize = 12;

/// Passes over the nodes in order; after the first, only over those whose neighbours moved.
pub fn refine(level: &Level, quota: &Quota, of: &mut [u32]) {
    let mut held = KindCounts::none(quota.parts, quota.kinds.count);
    for (node, part) in of.iter().enumerate() {
        held.add(*part as usize, level.sizes.row(node));
    }
    let mut links = Links::new(quota.parts);
    let mut due = vec![true; level.nodes()];
    for _ in 0..PASSES {
        let mut moved = 0;
        for node in 0..level.nodes() as u32 {
            if !std::mem::take(&mut due[node as usize]) {
                continue;
            }
            let from = of[node as usize];
            links
                .count(level.row(node).map(|(neighbour, weight)| (of[neighbour as usize], weight)));
            let size = level.sizes.row(node as usize);
            let Some(to) = better(&links, quota, &held, from, size) else { continue };
            of[node as usize] = to;
            held.take(from as usize, size);
            held.add(to as usize, size);
            moved += 1;
            for (neighbour, _) in level.row(node) {
                due[neighbour as usize] |= of[neighbour as usize] != to;
            }
        }
        if moved * 1000 < level.nodes() {
            break;
        }
    }
}

/// A part with room and more links than the own one, or as many and fewer nodes.
fn better(links: &Links, quota: &Quota, held: &KindCounts, from: u32, size: &[u32]) -> Option<u32> {
    if links.parts() == [from] {
        return None;
    }
    let to = links.best(|part| part != from && held.has_room(part as usize, size, &quota.most))?;
    let gain = links.to(to) - links.to(from);
    let evens = held.total(to as usize) + size.iter().sum::<u32>() < held.total(from as usize);
    (gain > 0 || gain == 0 && evens).then_some(to)
}
