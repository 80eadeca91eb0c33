//! Bounds on the nodes per part, which hold whatever a method does.

use super::Settings;
use super::kinds::Kinds;
use super::tally::{Least, Links};
use crate::Graph;

/// Each kind of nodes has its own bound per part: a part with room for a kind always exists, and moving a node of one
/// kind never affects the others.
pub struct Quota {
    pub parts: usize,
    pub kinds: Kinds,
    /// Upper bound on the nodes of each kind per part.
    pub most: Vec<u32>,
    /// Nodes of each kind in the graph.
    pub total: Vec<u32>,
}

impl Quota {
    pub fn new(nodes: usize, kinds: Kinds, settings: &Settings) -> Self {
        let mut total = vec![0; kinds.count];
        (0..nodes).for_each(|node| total[kinds.of(node)] += 1);
        let most = |total: &u32| {
            let allowed = settings.imbalance * f64::from(*total) / settings.parts as f64;
            (allowed as u32).max(total.div_ceil(settings.parts as u32)).min(*total)
        };
        Self { parts: settings.parts, most: total.iter().map(most).collect(), kinds, total }
    }

    pub fn kind(&self, node: usize) -> usize {
        self.kinds.of(node)
    }

    /// Moves nodes out of parts that hold too many, and into parts that hold none, at the least
    /// cost in cut edges that a greedy order finds.
    pub fn enforce(&self, graph: &Graph, of: &mut [u32]) {
        let mut held = vec![vec![0_u32; self.parts]; self.kinds.count];
        for (node, part) in of.iter().enumerate() {
            held[self.kind(node)][*part as usize] += 1;
        }
        for (kind, held) in held.iter_mut().enumerate() {
            let most = self.most[kind];
            if held.iter().any(|held| *held > most) {
                self.relieve(graph, of, kind, held);
            }
            if self.total[kind] as usize >= self.parts && held.contains(&0) {
                self.fill(graph, of, held, |node| self.kind(node) == kind);
            }
        }
        let sum = |part: usize| held.iter().map(|held| held[part]).sum();
        let mut all: Vec<u32> = (0..self.parts).map(sum).collect();
        if all.contains(&0) {
            self.fill(graph, of, &mut all, |_| true);
        }
    }

    /// Empties parts down to their bound: first those nodes that lose the fewest neighbours.
    fn relieve(&self, graph: &Graph, of: &mut [u32], kind: usize, held: &mut [u32]) {
        let most = self.most[kind];
        let mut links = Links::new(self.parts);
        let mut moves = vec![];
        for node in 0..of.len() {
            let from = of[node];
            if self.kind(node) == kind && held[from as usize] > most {
                links.count(parts_of(graph, of, node as u32));
                let to = links.best(|part| held[part as usize] < most).map_or(0, |to| links.to(to));
                moves.push((links.to(from) - to, node as u32));
            }
        }
        moves.sort_unstable();
        let mut left = Least::new(held.to_vec());
        for (_, node) in moves {
            let from = of[node as usize];
            if left.count(from) <= most {
                continue;
            }
            links.count(parts_of(graph, of, node));
            let to = links.best(|part| left.count(part) < most).unwrap_or(left.least());
            left.add(from, -1);
            left.add(to, 1);
            of[node as usize] = to;
        }
        held.copy_from_slice(left.counts());
    }

    /// Gives one node to every part without any, from the part that then holds the most: the one
    /// with the fewest neighbours there.
    fn fill(
        &self,
        graph: &Graph,
        of: &mut [u32],
        held: &mut [u32],
        counts: impl Fn(usize) -> bool,
    ) {
        let mut givers: Vec<Vec<u32>> = vec![vec![]; self.parts];
        for (node, part) in of.iter().enumerate().filter(|(node, _)| counts(*node)) {
            givers[*part as usize].push(node as u32);
        }
        // Most expensive first, so that the cheapest is popped.
        for (part, nodes) in givers.iter_mut().enumerate() {
            let inside = |node: &u32| {
                let row = graph.neighbours(*node).iter();
                row.filter(|to| of[**to as usize] == part as u32).count()
            };
            nodes.sort_by_cached_key(|node| (std::cmp::Reverse(inside(node)), *node));
        }
        let mut fullest: std::collections::BinaryHeap<(u32, usize)> =
            held.iter().enumerate().map(|(part, held)| (*held, part)).collect();
        for empty in 0..self.parts {
            if held[empty] > 0 {
                continue;
            }
            let Some((count, giver)) = fullest.pop() else { return };
            let Some(node) = givers[giver].pop() else { return };
            of[node as usize] = empty as u32;
            held[giver] -= 1;
            held[empty] += 1;
            fullest.push((count - 1, giver));
        }
    }
}

/// The parts of a node's neighbours, each edge with a weight of one.
pub fn parts_of(graph: &Graph, of: &[u32], node: u32) -> impl Iterator<Item = (u32, u32)> {
    graph.neighbours(node).iter().map(|neighbour| (of[*neighbour as usize], 1))
}
