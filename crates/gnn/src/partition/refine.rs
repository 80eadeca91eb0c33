//! Moves nodes between parts while that cuts fewer edges.

use super::level::Level;
use super::quota::{KindCounts, Quota};
use super::tally::Links;

const PASSES: usize = 12;

/// Passes over the nodes in order; after the first, only over those whose neighbours moved.
pub fn refine(level: &Level, quota: &Quota, of: &mut [u32]) {
    let mut held = vec![KindCounts::default(); quota.parts];
    for (node, part) in of.iter().enumerate() {
        held[*part as usize] = held[*part as usize] + level.sizes[node];
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
            let size = level.sizes[node as usize];
            let Some(to) = better(&links, quota, &held, from, size) else { continue };
            of[node as usize] = to;
            held[from as usize] = held[from as usize] - size;
            held[to as usize] = held[to as usize] + size;
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
fn better(
    links: &Links,
    quota: &Quota,
    held: &[KindCounts],
    from: u32,
    size: KindCounts,
) -> Option<u32> {
    if links.parts() == [from] {
        return None;
    }
    let to =
        links.best(|part| part != from && held[part as usize].leaves_room(size, quota.most))?;
    let gain = links.to(to) - links.to(from);
    let evens = (held[to as usize] + size).total() < held[from as usize].total();
    (gain > 0 || gain == 0 && evens).then_some(to)
}
