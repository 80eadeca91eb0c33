//! An undirected graph: the neighbours of each node, sorted, one after the other.

use std::sync::OnceLock;

use hither_data::Array;
use rayon::prelude::*;

/// Every edge stands with both of its ends; no edge stands twice, and none leads back to its own
/// node (layers add the node itself where they want it). Being symmetric, the graph is its own
/// transpose, which is why no layer keeps a second copy for its backward pass.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    offsets: Array<u64>,
    neighbours: Array<u32>,
    /// What symmetric normalisation asks for in every step.
    roots: OnceLock<Vec<f32>>,
}

impl Graph {
    fn of(offsets: Array<u64>, neighbours: Array<u32>) -> Self {
        Self { offsets, neighbours, roots: OnceLock::new() }
    }

    /// Any list of pairs makes a graph: directions, repetitions and loops are dropped.
    /// None if a pair names a node that is not there.
    pub fn from_edges(nodes: usize, edges: &[(u32, u32)]) -> Option<Self> {
        if edges.iter().any(|(u, v)| *u as usize >= nodes || *v as usize >= nodes) {
            return None;
        }
        let mut ends = vec![0_u64; nodes + 1];
        let proper = || edges.iter().filter(|(u, v)| u != v);
        for (u, v) in proper() {
            ends[*u as usize + 1] += 1;
            ends[*v as usize + 1] += 1;
        }
        for node in 0..nodes {
            ends[node + 1] += ends[node];
        }
        let mut neighbours = vec![0_u32; ends[nodes] as usize];
        // Filling moves each row's start to its end, which is the next row's start.
        for (u, v) in proper() {
            for (from, to) in [(*u, *v), (*v, *u)] {
                let at = &mut ends[from as usize];
                neighbours[*at as usize] = to;
                *at += 1;
            }
        }
        ends.rotate_right(1);
        ends[0] = 0;
        Some(Self::from_rows(ends, neighbours))
    }

    /// Sorts each row and drops repetitions.
    fn from_rows(mut offsets: Vec<u64>, mut neighbours: Vec<u32>) -> Self {
        let mut rows = Vec::with_capacity(offsets.len() - 1);
        let mut rest = neighbours.as_mut_slice();
        for bounds in offsets.windows(2) {
            let (row, behind) = rest.split_at_mut((bounds[1] - bounds[0]) as usize);
            rows.push(row);
            rest = behind;
        }
        let lens: Vec<u32> = rows
            .into_par_iter()
            .with_min_len(1024)
            .map(|row| {
                row.sort_unstable();
                distinct(row) as u32
            })
            .collect();
        let mut end = 0;
        for (node, len) in lens.iter().enumerate() {
            let start = offsets[node] as usize;
            neighbours.copy_within(start..start + *len as usize, end);
            offsets[node] = end as u64;
            end += *len as usize;
        }
        offsets[lens.len()] = end as u64;
        neighbours.truncate(end);
        Self::of(offsets.into(), neighbours.into())
    }

    /// Rows as they were written, in memory or mapped. Tells what is wrong with them; that every
    /// edge stands with both ends is too dear to check and up to the writer.
    pub fn from_arrays(offsets: Array<u64>, neighbours: Array<u32>) -> Result<Self, String> {
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
            let sorted = row.windows(2).all(|pair| pair[0] < pair[1]);
            !sorted || row.last().is_some_and(|last| *last as usize >= nodes)
        });
        match unsound {
            Some(node) => Err(format!(
                "neighbours of node {node} are not sorted, not distinct, or not below {nodes}"
            )),
            None => Ok(Self::of(offsets, neighbours)),
        }
    }

    pub fn nodes(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Each edge counted once.
    pub fn edges(&self) -> usize {
        self.neighbours.len() / 2
    }

    pub fn degree(&self, node: u32) -> usize {
        (self.offsets[node as usize + 1] - self.offsets[node as usize]) as usize
    }

    /// 1/√(1 + degree) of each node.
    pub fn roots(&self) -> &[f32] {
        let root = |bounds: &[u64]| 1.0 / ((1 + bounds[1] - bounds[0]) as f32).sqrt();
        self.roots.get_or_init(|| self.offsets.windows(2).map(root).collect())
    }

    pub fn neighbours(&self, node: u32) -> &[u32] {
        let (start, end) = (self.offsets[node as usize], self.offsets[node as usize + 1]);
        &self.neighbours[start as usize..end as usize]
    }

    /// Where each node's neighbours begin, and where the last one's end.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// The neighbours of all nodes, one node after the other.
    pub fn targets(&self) -> &[u32] {
        &self.neighbours
    }

    /// The graph between some of the nodes, which are numbered anew in the order given.
    /// `number` is scratch of one entry a node, all `u32::MAX` before and after.
    pub fn induced(&self, nodes: &[u32], number: &mut [u32]) -> Self {
        for (new, old) in nodes.iter().enumerate() {
            number[*old as usize] = new as u32;
        }
        let mut offsets = Vec::with_capacity(nodes.len() + 1);
        offsets.push(0);
        let mut neighbours = vec![];
        for old in nodes {
            let start = neighbours.len();
            let inside = self.neighbours(*old).iter().map(|old| number[*old as usize]);
            neighbours.extend(inside.filter(|new| *new != u32::MAX));
            neighbours[start..].sort_unstable();
            offsets.push(neighbours.len() as u64);
        }
        for old in nodes {
            number[*old as usize] = u32::MAX;
        }
        Self::of(offsets.into(), neighbours.into())
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
