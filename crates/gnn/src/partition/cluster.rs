//! Clusters of nodes that belong together, found by label propagation with a bound on their size:
//! each node joins the cluster to which most of its edges lead, a few times over.

use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

use super::kinds::KindCounts;
use super::level::Level;
use super::tally::Tally;

const PASSES: usize = 3;
const NONE: u32 = u32::MAX;

/// The cluster of each node, numbered without gaps, and how many there are.
pub fn cluster(level: &Level, most: &[u32], random: &mut Pcg64Mcg) -> (Vec<u32>, usize) {
    let mut clusters = Clusters {
        of: (0..level.nodes() as u32).collect(),
        sizes: level.sizes.clone(),
        wish: vec![NONE; level.nodes()],
        most,
    };
    let order = order(level, random);
    let mut tally = Tally::default();
    for _ in 0..PASSES {
        let moved = order.iter().filter(|node| clusters.settle(level, **node, &mut tally)).count();
        if moved * 50 < order.len() {
            break;
        }
    }
    clusters.pair_loners(level, &order);
    clusters.number()
}

/// Nodes with few neighbours first, because they have the least choice; ties in random order.
fn order(level: &Level, random: &mut Pcg64Mcg) -> Vec<u32> {
    let mut order: Vec<u32> = (0..level.nodes() as u32).collect();
    order.shuffle(random);
    order.sort_by_key(|node| level.degree(*node).checked_ilog2());
    order
}

struct Clusters<'a> {
    of: Vec<u32>,
    sizes: KindCounts,
    /// The cluster that a node would have joined if there had been room for all.
    wish: Vec<u32>,
    most: &'a [u32],
}

impl Clusters<'_> {
    /// Moves a node to the cluster that it has most edges to. Returns whether it moved.
    fn settle(&mut self, level: &Level, node: u32, tally: &mut Tally) -> bool {
        let row = level.row(node);
        let sums = tally.sum(row.map(|(neighbour, weight)| (self.of[neighbour as usize], weight)));
        let from = self.of[node as usize];
        // Ties are broken by a hash; otherwise low numbers would flood the graph.
        let key = |(to, links): (u32, u32)| (links, (to ^ node).wrapping_mul(0x9e37_79b1), to);
        let (mut best, mut wish) = ((0, 0, from), (0, 0, NONE));
        for sum in sums.iter() {
            let key = key(*sum);
            wish = wish.max(key);
            if key > best && (sum.0 == from || self.has_room(sum.0, level.sizes.row(node as usize)))
            {
                best = key;
            }
        }
        self.wish[node as usize] = wish.2;
        self.join(node, best.2, level);
        best.2 != from
    }

    fn has_room(&self, cluster: u32, size: &[u32]) -> bool {
        self.sizes.has_room(cluster as usize, size, self.most)
    }

    fn join(&mut self, node: u32, to: u32, level: &Level) {
        let from = std::mem::replace(&mut self.of[node as usize], to);
        let size = level.sizes.row(node as usize);
        self.sizes.take(from as usize, size);
        self.sizes.add(to as usize, size);
    }

    /// Nodes that stayed alone join others that wished for the same cluster, as the leaves of a
    /// star do whose centre is full; those without any neighbour join each other. Without this,
    /// graphs with hubs would hardly shrink.
    fn pair_loners(&mut self, level: &Level, order: &[u32]) {
        let mut hosts = vec![NONE; level.nodes() + 1];
        for node in order {
            let own = self.of[*node as usize];
            let size = level.sizes.row(*node as usize);
            if own != *node || self.sizes.row(own as usize) != size {
                continue;
            }
            let host = &mut hosts[(self.wish[*node as usize] as usize).min(level.nodes())];
            let to = *host;
            if to != NONE && self.has_room(to, size) {
                self.join(*node, to, level);
            } else {
                *host = own;
            }
        }
    }

    fn number(self) -> (Vec<u32>, usize) {
        let mut numbers = vec![NONE; self.of.len()];
        let mut count = 0;
        let mut of = self.of;
        for cluster in &mut of {
            let number = &mut numbers[*cluster as usize];
            if *number == NONE {
                *number = count;
                count += 1;
            }
            *cluster = *number;
        }
        (of, count as usize)
    }
}
