//! A weighted graph: a larger one whose clusters of nodes became nodes.

use std::borrow::Cow;

use rayon::prelude::*;

use super::kinds::KindCounts;
use super::quota::Quota;
use super::tally::Tally;
use crate::Graph;

/// A weighted graph in compressed rows, at one level of coarsening.
pub struct Level<'a> {
    pub offsets: Cow<'a, [u64]>,
    pub targets: Cow<'a, [u32]>,
    /// Edges of the whole graph behind each entry; empty if that is one each.
    weights: Vec<u32>,
    /// Nodes of the whole graph behind each node, by kind.
    pub sizes: KindCounts,
}

/// Coarse nodes whose rows are computed at a time.
const CHUNK: usize = 1 << 12;

impl<'a> Level<'a> {
    pub fn whole(graph: &'a Graph, quota: &Quota) -> Self {
        Self {
            offsets: graph.offsets().into(),
            targets: graph.targets().into(),
            weights: vec![],
            sizes: KindCounts::of_nodes(graph.nodes(), &quota.kinds),
        }
    }

    pub fn nodes(&self) -> usize {
        self.sizes.rows()
    }

    pub fn degree(&self, node: u32) -> usize {
        (self.offsets[node as usize + 1] - self.offsets[node as usize]) as usize
    }

    /// Neighbours and the weights of the edges to them.
    pub fn row(&self, node: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let at = self.offsets[node as usize] as usize..self.offsets[node as usize + 1] as usize;
        let weights = self.weights.get(at.clone()).unwrap_or(&[]);
        let weights = weights.iter().copied().chain(std::iter::repeat(1));
        self.targets[at].iter().copied().zip(weights)
    }

    /// Weights of all entries, even if all are one.
    pub fn weights(&self) -> &[u32] {
        &self.weights
    }

    /// Weight of the edges between different parts.
    pub fn cut_weight(&self, of: &[u32]) -> u64 {
        let cut = |node: usize| {
            let row = self.row(node as u32).filter(|(to, _)| of[*to as usize] != of[node]);
            row.map(|(_, weight)| u64::from(weight)).sum::<u64>()
        };
        (0..self.nodes()).into_par_iter().with_min_len(CHUNK).map(cut).sum::<u64>() / 2
    }

    /// The graph between clusters, which are numbered without gaps.
    pub fn contract(&self, cluster_of: &[u32], clusters: usize) -> Level<'static> {
        let mut sizes = KindCounts::none(clusters, self.sizes.row(0).len());
        // Members of each cluster, one cluster after the other.
        let mut starts = vec![0_u32; clusters + 1];
        for (node, cluster) in cluster_of.iter().enumerate() {
            starts[*cluster as usize + 1] += 1;
            sizes.add(*cluster as usize, self.sizes.row(node));
        }
        for cluster in 0..clusters {
            starts[cluster + 1] += starts[cluster];
        }
        let mut next = starts.clone();
        let mut members = vec![0_u32; self.nodes()];
        for (node, cluster) in cluster_of.iter().enumerate() {
            let at = &mut next[*cluster as usize];
            members[*at as usize] = node as u32;
            *at += 1;
        }
        drop(next);
        let members_of =
            |cluster: usize| &members[starts[cluster] as usize..starts[cluster + 1] as usize];
        let chunks: Vec<CoarseRows> = (0..clusters.div_ceil(CHUNK))
            .into_par_iter()
            .map_init(Tally::default, |tally, chunk| {
                let mut rows = CoarseRows::default();
                for cluster in chunk * CHUNK..clusters.min((chunk + 1) * CHUNK) {
                    let ends = members_of(cluster).iter().flat_map(|node| self.row(*node));
                    let ends = ends.map(|(end, weight)| (cluster_of[end as usize], weight));
                    let sums = tally.sum(ends.filter(|(end, _)| *end as usize != cluster));
                    sums.sort_unstable();
                    rows.push(sums);
                }
                rows
            })
            .collect();
        CoarseRows::join(chunks, sizes)
    }
}

/// Rows of some coarse nodes: their neighbours and the weights of the edges.
#[derive(Default)]
struct CoarseRows {
    lens: Vec<u32>,
    targets: Vec<u32>,
    weights: Vec<u32>,
}

impl CoarseRows {
    fn push(&mut self, sums: &[(u32, u32)]) {
        self.lens.push(sums.len() as u32);
        self.targets.extend(sums.iter().map(|(target, _)| *target));
        self.weights.extend(sums.iter().map(|(_, weight)| *weight));
    }

    fn join(chunks: Vec<Self>, sizes: KindCounts) -> Level<'static> {
        let entries = chunks.iter().map(|chunk| chunk.targets.len()).sum();
        let mut offsets = Vec::with_capacity(sizes.rows() + 1);
        let (mut targets, mut weights) = (Vec::with_capacity(entries), Vec::with_capacity(entries));
        let mut end = 0;
        offsets.push(end);
        for chunk in chunks {
            for len in chunk.lens {
                end += u64::from(len);
                offsets.push(end);
            }
            targets.extend_from_slice(&chunk.targets);
            weights.extend_from_slice(&chunk.weights);
        }
        Level { offsets: offsets.into(), targets: targets.into(), weights, sizes }
    }
}
