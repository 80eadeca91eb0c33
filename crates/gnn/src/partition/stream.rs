//! Streaming partitions: nodes come in an order drawn by the seed, and each goes to the part with most
//! of its neighbours, less so the fuller a part is. The stream is repeated a few times: from the
//! second pass on a node sees the parts of all of its neighbours, which gains most of the advantage
//! of a multilevel partition over one pass.

use rand::seq::SliceRandom;

use super::Settings;
use super::quota::{Quota, parts_of};
use super::tally::{Least, Links};
use crate::Graph;

const PASSES: usize = 5;
const NOWHERE: u32 = u32::MAX;

/// Penalty on the size of a part.
#[derive(Clone, Copy, Debug)]
pub enum Price {
    /// Links count less in proportion to how full a part is: `links · (1 − size / most)`.
    Ldg,
    /// `links − alpha · gamma · size^(gamma − 1)` with gamma 3/2, as Fennel's authors chose.
    Fennel { alpha: f64 },
}

impl Price {
    pub fn fennel(graph: &Graph, parts: usize) -> Self {
        let (nodes, edges) = (graph.nodes() as f64, graph.edges() as f64);
        Self::Fennel { alpha: edges * (parts as f64).sqrt() / nodes.powf(1.5) }
    }

    fn score(self, links: i64, size: u32, most: u32) -> f64 {
        match self {
            Self::Ldg => links as f64 * (1.0 - f64::from(size) / f64::from(most)),
            Self::Fennel { alpha } => links as f64 - alpha * 1.5 * f64::from(size).sqrt(),
        }
    }
}

pub fn cut(graph: &Graph, quota: &Quota, settings: &Settings, price: Price) -> Vec<u32> {
    let parts = settings.parts;
    let mut order: Vec<u32> = (0..graph.nodes() as u32).collect();
    order.shuffle(&mut hither_core::seed::stream(settings.seed, "partition"));
    let mut of = vec![NOWHERE; graph.nodes()];
    let mut links = Links::new(parts);
    let mut sizes = Least::new(vec![0; parts]);
    // A part's size by kind, to keep each below its bound.
    let none = || Least::new(vec![0; parts]);
    let mut held: Vec<Least> = quota.most.iter().map(|_| none()).collect();
    let most = quota.most.iter().sum();
    for _ in 0..PASSES {
        for node in &order {
            let kind = quota.kind(*node as usize);
            let from = of[*node as usize];
            if from != NOWHERE {
                sizes.add(from, -1);
                held[kind].add(from, -1);
            }
            links.count(parts_of(graph, &of, *node));
            // Only parts with neighbours can win, and of all others only the smallest.
            let others = [sizes.least(), held[kind].least()];
            let open = links.parts().iter().copied().chain(others);
            let open = open.filter(|part| held[kind].count(*part) < quota.most[kind]);
            let score = |part: u32| price.score(links.to(part), sizes.count(part), most);
            let best = open.map(|part| (score(part), part)).reduce(|best, next| {
                let wins = next.0 > best.0
                    || next.0 == best.0
                        && (sizes.count(next.1), next.1) < (sizes.count(best.1), best.1);
                if wins { next } else { best }
            });
            // The part that holds the fewest of a kind is always open.
            let to = best.map_or(others[1], |(_, part)| part);
            sizes.add(to, 1);
            held[kind].add(to, 1);
            of[*node as usize] = to;
        }
    }
    of
}
