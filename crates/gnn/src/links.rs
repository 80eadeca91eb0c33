//! Link prediction: a graph some of whose edges are held out, to be found again.
//!
//! The graph that a model sees has the training edges only; these are also what it learns from. In a user–item
//! graph users are numbered first, so that the entries of the users' rows are the training edges, each once.

pub mod metric;
pub mod pairs;
mod rank;

use hither_core::seed;
use rand::seq::SliceRandom;

use crate::{Dataset, Error, Features, Graph};

pub use rank::{Ranked, each_top, top};

/// The edges that are held out of a graph, and who is linked to whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Nodes below this number are users, which are linked to the others, the items. None: there is one
    /// kind of nodes.
    pub users: Option<usize>,
    pub valid: Held,
    pub test: Held,
}

/// Held-out edges, by source: the targets of each, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub sources: Vec<u32>,
    pub offsets: Vec<usize>,
    pub targets: Vec<u32>,
}

impl Held {
    /// Edges in any order; repetitions are dropped.
    pub fn from_pairs(mut pairs: Vec<(u32, u32)>) -> Self {
        pairs.sort_unstable();
        pairs.dedup();
        let mut held = Self { offsets: vec![0], ..Self::default() };
        for edges in pairs.chunk_by(|a, b| a.0 == b.0) {
            held.sources.push(edges[0].0);
            held.targets.extend(edges.iter().map(|(_, target)| *target));
            held.offsets.push(held.targets.len());
        }
        held
    }

    /// The number of edges.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Each source and its targets.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u32])> {
        let rows = self.offsets.windows(2).map(|bounds| &self.targets[bounds[0]..bounds[1]]);
        self.sources.iter().copied().zip(rows)
    }

    /// The targets of a source; empty if it has none.
    pub fn of(&self, source: u32) -> &[u32] {
        match self.sources.binary_search(&source) {
            Ok(at) => &self.targets[self.offsets[at]..self.offsets[at + 1]],
            Err(_) => &[],
        }
    }
}

/// Shares of the edges that are held out, where the data do not say which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    pub valid: f64,
    pub test: f64,
}

impl Dataset {
    /// Holds edges out of the graph, drawn by seed, so that every node keeps at least one edge. Test
    /// edges that the data bring along stay.
    pub fn hold_out(&mut self, shares: Shares, seed: u64) -> Result<(), Error> {
        if self.graph.weights().is_some() {
            let problem =
                "its edges have weights, which links are not learnt by; leave --edge-weights out";
            return Err(Error::Dataset { name: self.name.clone(), problem: problem.into() });
        }
        let mut links = self.links.take().unwrap_or_default();
        let has_test = !links.test.is_empty();
        let wanted = [shares.valid, if has_test { 0.0 } else { shares.test }];
        let edges = self.graph.edges();
        let wanted = wanted.map(|share| (share * edges as f64).round() as usize);
        let held = draw(&self.graph, wanted, seed);
        let bad =
            |problem: &str| Error::Dataset { name: self.name.clone(), problem: problem.into() };
        if !has_test && held[1].is_empty() {
            return Err(bad(
                "no edge can be held out for the test: every node needs an edge to learn from; take a \
                 larger graph or a larger --test-share",
            ));
        }
        self.graph = without(&self.graph, &held);
        let [valid, test] = held.map(Held::from_pairs);
        links.valid = valid;
        if !has_test {
            links.test = test;
        }
        self.links = Some(links);
        Ok(())
    }
}

impl Features {
    /// For nodes without features: each is a column of its own.
    pub fn one_hot(nodes: usize) -> Self {
        let offsets: Vec<u64> = (0..=nodes as u64).collect();
        let indices: Vec<u32> = (0..nodes as u32).collect();
        Self::Sparse { offsets: offsets.into(), indices: indices.into(), values: None, dim: nodes }
    }
}

/// Two sets of edges, each from its lower to its higher node.
fn draw(graph: &Graph, wanted: [usize; 2], seed: u64) -> [Vec<(u32, u32)>; 2] {
    if wanted == [0, 0] {
        return [vec![], vec![]];
    }
    let nodes = 0..graph.nodes() as u32;
    let row = |u: u32| graph.neighbours(u).iter().filter(move |v| **v > u).map(move |v| (u, *v));
    let mut edges: Vec<(u32, u32)> = nodes.clone().flat_map(row).collect();
    edges.shuffle(&mut seed::stream(seed, "links/held"));
    let mut left: Vec<usize> = nodes.map(|node| graph.degree(node)).collect();
    let (mut valid, mut test) = (vec![], vec![]);
    for (u, v) in edges {
        let set = match (valid.len() < wanted[0], test.len() < wanted[1]) {
            (true, _) => &mut valid,
            (_, true) => &mut test,
            _ => break,
        };
        if left[u as usize] > 1 && left[v as usize] > 1 {
            left[u as usize] -= 1;
            left[v as usize] -= 1;
            set.push((u, v));
        }
    }
    [valid, test]
}

/// The graph without some of its edges.
fn without(graph: &Graph, held: &[Vec<(u32, u32)>; 2]) -> Graph {
    if held.iter().all(Vec::is_empty) {
        return graph.clone();
    }
    let both = |(u, v): &(u32, u32)| [(*u, *v), (*v, *u)];
    let mut gone: Vec<(u32, u32)> = held.iter().flatten().flat_map(both).collect();
    gone.sort_unstable();
    let mut offsets = vec![0_u64];
    let mut neighbours = Vec::with_capacity(graph.targets().len() - gone.len());
    for node in 0..graph.nodes() as u32 {
        let start = gone.partition_point(|(u, _)| *u < node);
        let own = gone[start..].iter().take_while(|(u, _)| *u == node).count();
        let own = &gone[start..start + own];
        let stays = |other: &&u32| own.binary_search(&(node, **other)).is_err();
        neighbours.extend(graph.neighbours(node).iter().filter(stays));
        offsets.push(neighbours.len() as u64);
    }
    graph.with_rows(offsets, neighbours)
}
