//! An undirected simple graph in compressed rows: the neighbours of each node, sorted by their numbers
//! in the user's files.

use std::sync::OnceLock;

use hither_data::Array;
use rayon::prelude::*;
use serde::Serialize;

/// Each edge is stored at both of its ends and only once; there are no self-loops (layers add the
/// node itself where they want it). Being symmetric, the graph is its own
/// transpose, which is why no layer keeps a second copy for its backward pass.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    offsets: Array<u64>,
    neighbours: Array<u32>,
    /// One per entry of `neighbours`, the same at both ends of an edge. None: all edges count alike.
    weights: Option<Array<f32>>,
    listed: Listed,
    /// 1/√(1 + degree) of each node, which symmetric normalisation needs in every step.
    roots: OnceLock<Vec<f32>>,
    /// 1/√degree of each node, 0 for nodes without edges.
    edge_roots: OnceLock<Vec<f32>>,
}

/// What a list of pairs held before it became a simple undirected graph. All zero where the graph
/// was not made from a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub pairs: u64,
    /// Pairs of a node with itself: dropped.
    pub self_loops: u64,
    /// Pairs that stand in the list a second time in the same direction: dropped.
    pub repeated: u64,
    /// Edges that stand in the list in both directions: merged into one.
    pub reciprocal: u64,
}

/// What is wrong with the weights of a list of edges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightProblem {
    /// Not a number above 0.
    Unfit { u: u32, v: u32, weight: f32 },
    /// The edge stands in the list more than once, with different weights.
    Differ { u: u32, v: u32, weights: [f32; 2] },
    /// The edge is not in the list, or not in the graph.
    Missing { u: u32, v: u32 },
}

impl std::fmt::Display for WeightProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unfit { u, v, weight } => write!(
                f,
                "the edge of nodes {u} and {v} has the weight {weight}; expected a number above 0"
            ),
            Self::Differ { u, v, weights: [a, b] } => write!(
                f,
                "the edge of nodes {u} and {v} has the weights {a} and {b}; graphs are undirected, so give \
                 each edge one weight"
            ),
            Self::Missing { u, v } => write!(f, "the edge of nodes {u} and {v} has no weight"),
        }
    }
}

impl Graph {
    fn from_parts(offsets: Array<u64>, neighbours: Array<u32>) -> Self {
        Self { offsets, neighbours, ..Self::default() }
    }

    /// Makes a graph of any list of pairs: directions, repetitions and self-loops are dropped, and
    /// [`Graph::listed`] counts them. None if a pair names a node that is not below `nodes`.
    pub fn from_edges(nodes: usize, edges: &[(u32, u32)]) -> Option<Self> {
        Self::from_each(nodes, edges.iter().copied())
    }

    /// As [`Graph::from_edges`], of pairs that need not be in memory at once: they are gone through
    /// several times.
    pub fn from_each(
        nodes: usize,
        edges: impl ExactSizeIterator<Item = (u32, u32)> + Clone,
    ) -> Option<Self> {
        if edges.clone().any(|(u, v)| u as usize >= nodes || v as usize >= nodes) {
            return None;
        }
        let mut ends = vec![0_u64; nodes + 1];
        let mut outgoing = vec![0_u32; nodes];
        let proper = || edges.clone().filter(|(u, v)| u != v);
        for (u, v) in proper() {
            ends[u as usize + 1] += 1;
            ends[v as usize + 1] += 1;
            outgoing[u as usize] += 1;
        }
        for node in 0..nodes {
            ends[node + 1] += ends[node];
        }
        let mut neighbours = vec![0_u32; ends[nodes] as usize];
        // Filling moves each row's start to its end, which is the next row's start. Targets come
        // before sources in each row, so that repetitions can be told from opposite directions.
        let mut fill = |from: u32, to: u32| {
            let at = &mut ends[from as usize];
            neighbours[*at as usize] = to;
            *at += 1;
        };
        proper().for_each(|(u, v)| fill(u, v));
        proper().for_each(|(u, v)| fill(v, u));
        ends.rotate_right(1);
        ends[0] = 0;
        let pairs = edges.len() as u64;
        let self_loops = pairs - proper().count() as u64;
        let (mut graph, repeated) = Self::from_rows(ends, neighbours, &outgoing);
        let reciprocal = pairs - self_loops - repeated - graph.edges() as u64;
        graph.listed = Listed { pairs, self_loops, repeated, reciprocal };
        Some(graph)
    }

    /// Sorts each row and drops repetitions. Also returns how many of the first `outgoing[row]`
    /// entries of all rows repeat another one of these.
    fn from_rows(mut offsets: Vec<u64>, mut neighbours: Vec<u32>, outgoing: &[u32]) -> (Self, u64) {
        let mut rows = Vec::with_capacity(outgoing.len());
        let mut rest = neighbours.as_mut_slice();
        for (bounds, outgoing) in offsets.windows(2).zip(outgoing) {
            let (row, behind) = rest.split_at_mut((bounds[1] - bounds[0]) as usize);
            rows.push((row, *outgoing as usize));
            rest = behind;
        }
        let (lens, repeated): (Vec<u32>, Vec<u32>) = rows
            .into_par_iter()
            .with_min_len(1024)
            .map(|(row, outgoing)| {
                row[..outgoing].sort_unstable();
                let repeated = row[..outgoing].windows(2).filter(|pair| pair[0] == pair[1]).count();
                row.sort_unstable();
                (distinct(row) as u32, repeated as u32)
            })
            .unzip();
        let mut end = 0;
        for (node, len) in lens.iter().enumerate() {
            let start = offsets[node] as usize;
            neighbours.copy_within(start..start + *len as usize, end);
            offsets[node] = end as u64;
            end += *len as usize;
        }
        offsets[lens.len()] = end as u64;
        neighbours.truncate(end);
        let repeated = repeated.into_iter().map(u64::from).sum();
        (Self::from_parts(offsets.into(), neighbours.into()), repeated)
    }

    /// Takes rows as they were written, in memory or mapped, or says what is wrong with them. That
    /// every edge stands at both of its ends is too costly to check and up to the writer.
    pub fn from_arrays(offsets: Array<u64>, neighbours: Array<u32>) -> Result<Self, String> {
        let is_sorted = |row: &[u32]| row.windows(2).all(|pair| pair[0] < pair[1]);
        Self::checked(offsets, neighbours, is_sorted)
    }

    /// As [`Graph::from_arrays`], for nodes that were renumbered: rows keep the order of the old
    /// numbers, so that whatever is drawn from them or summed over them stays the same. That
    /// neighbours are distinct is up to the writer too.
    pub fn from_renumbered(offsets: Array<u64>, neighbours: Array<u32>) -> Result<Self, String> {
        Self::checked(offsets, neighbours, |_| true)
    }

    fn checked(
        offsets: Array<u64>,
        neighbours: Array<u32>,
        is_in_order: impl Fn(&[u32]) -> bool + Sync,
    ) -> Result<Self, String> {
        let nodes = offsets.len().checked_sub(1).ok_or("offsets are empty")?;
        if nodes > u32::MAX as usize {
            return Err(format!("{nodes} nodes are more than 32 bits can number"));
        }
        if offsets[0] != 0 || offsets[nodes] != neighbours.len() as u64 {
            let (first, last, len) = (offsets[0], offsets[nodes], neighbours.len());
            return Err(format!("offsets run from {first} to {last}, expected 0 to {len}"));
        }
        if let Some(node) = offsets.par_windows(2).position_first(|pair| pair[0] > pair[1]) {
            return Err(format!("offsets fall at node {node}"));
        }
        let (bounds, all) = (&offsets[..], &neighbours[..]);
        let unsound = (0..nodes).into_par_iter().with_min_len(1024).find_first(|node| {
            let row = &all[bounds[*node] as usize..bounds[*node + 1] as usize];
            let last = row.iter().fold(0, |last, node| last.max(*node));
            !is_in_order(row) || (last as usize >= nodes && !row.is_empty())
        });
        match unsound {
            Some(node) => Err(format!(
                "neighbours of node {node} are not sorted, not distinct, or not below {nodes}"
            )),
            None => Ok(Self::from_parts(offsets, neighbours)),
        }
    }

    /// The same graph with weights, from a list that has all of its edges, in one direction or both.
    pub fn with_weights(
        mut self,
        list: impl Iterator<Item = (u32, u32, f32)>,
    ) -> Result<Self, WeightProblem> {
        let mut weights = vec![f32::NAN; self.neighbours.len()];
        for (u, v, weight) in list.filter(|(u, v, _)| u != v) {
            if !(weight > 0.0 && weight.is_finite()) {
                return Err(WeightProblem::Unfit { u, v, weight });
            }
            for (from, to) in [(u, v), (v, u)] {
                let Ok(at) = self.neighbours(from).binary_search(&to) else {
                    return Err(WeightProblem::Missing { u, v });
                };
                let place = &mut weights[self.offsets[from as usize] as usize + at];
                if !place.is_nan() && *place != weight {
                    return Err(WeightProblem::Differ { u, v, weights: [*place, weight] });
                }
                *place = weight;
            }
        }
        if let Some(at) = weights.iter().position(|weight| weight.is_nan()) {
            let u = self.offsets.partition_point(|start| *start <= at as u64) as u32 - 1;
            return Err(WeightProblem::Missing { u, v: self.neighbours[at] });
        }
        self.weights = Some(weights.into());
        Ok(self)
    }

    /// The same graph with weights as they were written: one per neighbour. That both ends of an edge have the
    /// same is up to the writer.
    pub fn with_weights_array(mut self, weights: Array<f32>) -> Result<Self, String> {
        let (found, expected) = (weights.len(), self.neighbours.len());
        if found != expected {
            return Err(format!("{found} weights; expected {expected}, one per neighbour"));
        }
        if let Some(weight) = weights.iter().find(|weight| !(**weight > 0.0 && weight.is_finite()))
        {
            return Err(format!("an edge has the weight {weight}; expected a number above 0"));
        }
        self.weights = Some(weights);
        Ok(self)
    }

    /// The weights of all entries of [`Graph::targets`], if edges have weights.
    pub fn weights(&self) -> Option<&[f32]> {
        self.weights.as_deref()
    }

    /// The weights of a node's edges, in the order of its neighbours.
    pub fn weights_of(&self, node: u32) -> Option<&[f32]> {
        let (start, end) = (self.offsets[node as usize], self.offsets[node as usize + 1]);
        self.weights().map(|weights| &weights[start as usize..end as usize])
    }

    /// The sum of the weights of a node's edges; without weights, its degree.
    fn strength(&self, node: usize) -> f32 {
        let (start, end) = (self.offsets[node] as usize, self.offsets[node + 1] as usize);
        match &self.weights {
            Some(weights) => weights[start..end].iter().sum(),
            None => (end - start) as f32,
        }
    }

    /// The same nodes with other rows, which are sorted like those of this graph.
    pub(crate) fn with_rows(&self, offsets: Vec<u64>, neighbours: Vec<u32>) -> Self {
        Self { listed: self.listed, ..Self::from_parts(offsets.into(), neighbours.into()) }
    }

    /// What the list of pairs held that the graph was made from.
    pub fn listed(&self) -> &Listed {
        &self.listed
    }

    pub fn nodes(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Number of edges, each counted once.
    pub fn edges(&self) -> usize {
        self.neighbours.len() / 2
    }

    pub fn degree(&self, node: u32) -> usize {
        (self.offsets[node as usize + 1] - self.offsets[node as usize]) as usize
    }

    /// 1/√(1 + degree) of each node; where edges have weights, these are summed instead.
    pub fn roots(&self) -> &[f32] {
        let root = |node: usize| 1.0 / (1.0 + self.strength(node)).sqrt();
        self.roots.get_or_init(|| (0..self.nodes()).map(root).collect())
    }

    /// 1/√degree of each node, 0 for nodes without edges; where edges have weights, these are summed instead.
    pub fn edge_roots(&self) -> &[f32] {
        let root = |node: usize| match self.strength(node) {
            0.0 => 0.0,
            strength => 1.0 / strength.sqrt(),
        };
        self.edge_roots.get_or_init(|| (0..self.nodes()).map(root).collect())
    }

    /// The same graph with other factors in place of 1/√degree: a part's nodes have more neighbours than the part shows.
    pub fn with_edge_roots(mut self, roots: Vec<f32>) -> Self {
        self.edge_roots = OnceLock::from(roots);
        self
    }

    pub fn neighbours(&self, node: u32) -> &[u32] {
        let (start, end) = (self.offsets[node as usize], self.offsets[node as usize + 1]);
        &self.neighbours[start as usize..end as usize]
    }

    /// Start of each node's neighbours in [`Graph::targets`], and behind them the end of the last.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// The neighbours of all nodes, one node after the other.
    pub fn targets(&self) -> &[u32] {
        &self.neighbours
    }

    /// The same nodes, with only the edges between nodes of one group.
    pub fn inside(&self, group_of: &[u32]) -> Self {
        let mut offsets = vec![0];
        let (mut neighbours, mut weights) = (vec![], self.weights().map(|_| vec![]));
        for node in 0..self.nodes() as u32 {
            let row = self.neighbours(node);
            let own = |other: &u32| group_of[*other as usize] == group_of[node as usize];
            neighbours.extend(row.iter().filter(|other| own(other)));
            if let (Some(weights), Some(all)) = (&mut weights, self.weights_of(node)) {
                let inside = row.iter().zip(all).filter(|(other, _)| own(other));
                weights.extend(inside.map(|(_, weight)| *weight));
            }
            offsets.push(neighbours.len() as u64);
        }
        let weights = weights.map(Array::from);
        Self { weights, ..Self::from_parts(offsets.into(), neighbours.into()) }
    }

    /// The graph between some of the nodes, which are numbered anew in the order given.
    /// `number` is scratch space with one entry per node, all `u32::MAX` before and after.
    pub fn induced(&self, nodes: &[u32], number: &mut [u32]) -> Self {
        for (new, old) in nodes.iter().enumerate() {
            number[*old as usize] = new as u32;
        }
        let mut offsets = Vec::with_capacity(nodes.len() + 1);
        offsets.push(0);
        let mut neighbours = vec![];
        let (mut weights, mut row) = (self.weights().map(|_| vec![]), vec![]);
        for old in nodes {
            let start = neighbours.len();
            let inside = self.neighbours(*old).iter().map(|old| number[*old as usize]);
            match (&mut weights, self.weights_of(*old)) {
                (Some(weights), Some(all)) => {
                    row.clear();
                    row.extend(inside.zip(all).filter(|(new, _)| *new != u32::MAX));
                    row.sort_unstable_by_key(|(new, _)| *new);
                    neighbours.extend(row.iter().map(|(new, _)| *new));
                    weights.extend(row.iter().map(|(_, weight)| **weight));
                }
                _ => {
                    neighbours.extend(inside.filter(|new| *new != u32::MAX));
                    neighbours[start..].sort_unstable();
                }
            }
            offsets.push(neighbours.len() as u64);
        }
        for old in nodes {
            number[*old as usize] = u32::MAX;
        }
        let weights = weights.map(Array::from);
        Self { weights, ..Self::from_parts(offsets.into(), neighbours.into()) }
    }
}

/// Moves the distinct elements of a sorted row to its front; how many there are.
fn distinct(row: &mut [u32]) -> usize {
    let mut len = 0;
    for at in 0..row.len() {
        if len == 0 || row[at] != row[len - 1] {
            row[len] = row[at];
            len += 1;
        }
    }
    len
}
