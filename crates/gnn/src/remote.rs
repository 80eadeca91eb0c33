//! What neighbours in other parts contribute to a part's sums, as last known.
//!
//! A worker does not see the neighbours that the partition cut off. In the mode `psgd-sums` it holds, for each
//! of its nodes and each graph layer, the sum over these neighbours as the server last computed it, and
//! adds it to the sum over the local ones (in the manner of VR-GCN and GNNAutoScale). The sums
//! over features never change and are sent once; those over hidden rows are sent anew at every
//! refresh and grow old until the next. No gradient flows through them.

use hither_core::record::train::Work;
use hither_kernels::memory::zeros;
use hither_kernels::spmm::{self, Csr, Gather};

use crate::graph::distinct;
use crate::layer::{Layer, Norm, Rows, plain};
use crate::model::{Model, Weights};
use crate::partition::Partition;
use crate::{Dataset, parts};

/// The sums over hidden rows of one part: one vector per graph layer that reads hidden rows, with one row
/// per node.
pub type HiddenSums = Vec<Vec<f32>>;

/// What a worker holds of its remote neighbours.
#[derive(Clone, Debug)]
pub struct RemoteSums {
    /// The number of neighbours of each node in the whole graph.
    pub degrees: Vec<u32>,
    /// One per graph layer, the first layer's first; one row per node, with the layer's factors.
    pub layers: Vec<Rows<'static>>,
}

impl RemoteSums {
    /// Replaces the sums over hidden rows, which are those of the last layers.
    pub fn refresh(&mut self, hidden: HiddenSums) {
        let first = self.layers.len() - hidden.len();
        for (layer, values) in self.layers[first..].iter_mut().zip(hidden) {
            let dim = layer.dim();
            *layer = Rows::Dense { values: values.into(), dim };
        }
    }
}

/// The server's side: the edges that were cut, and all that follows from them.
pub struct Remote {
    /// The cut neighbours of each node of the whole graph.
    offsets: Vec<u64>,
    columns: Vec<u32>,
    nodes_of: Vec<Vec<u32>>,
    /// Nodes with cut neighbours: only their sums are sent.
    boundary: u64,
    /// The model of the last refresh, from which a resumed run computes the sums again.
    pub at: Option<Weights>,
}

impl Remote {
    pub fn new(data: &Dataset, partition: &Partition) -> Self {
        let mut offsets = vec![0];
        let mut columns = vec![];
        let mut boundary = 0;
        for node in 0..data.graph.nodes() as u32 {
            let part = partition.of[node as usize];
            let is_cut = |other: &&u32| partition.of[**other as usize] != part;
            columns.extend(data.graph.neighbours(node).iter().filter(is_cut));
            boundary += u64::from(columns.len() as u64 > offsets[node as usize]);
            offsets.push(columns.len() as u64);
        }
        Self { offsets, columns, nodes_of: partition.nodes_of(), boundary, at: None }
    }

    /// What each worker holds before the first refresh, and the bytes that sending its sums takes.
    ///
    /// # Panics
    /// If the model is not one that [`is_supported`].
    pub fn parts(
        &self,
        model: &Model,
        data: &Dataset,
        partition: &Partition,
    ) -> (Vec<(Dataset, RemoteSums)>, u64) {
        assert!(is_supported(model), "sums over neighbours that the model does not read");
        let features = model.stages[0].layer.norm().map(|norm| self.feature_sums(norm, data));
        let mut bytes = 4 * data.graph.nodes() as u64;
        bytes += match &features {
            Some(Rows::Dense { dim, .. }) => self.boundary * 4 * *dim as u64,
            Some(Rows::Sparse { indices, .. }) => 8 * indices.len() as u64,
            None => 0,
        };
        let part = |(mut part, nodes): (Dataset, &Vec<u32>)| {
            let roots = data.graph.roots();
            let roots = nodes.iter().map(|node| roots[*node as usize]).collect();
            part.graph = part.graph.with_roots(roots);
            let degrees = nodes.iter().map(|node| data.graph.degree(*node) as u32).collect();
            let hidden = hidden_layers(model).map(|(_, _, dim)| Rows::Dense {
                values: vec![0.0; nodes.len() * dim].into(),
                dim,
            });
            let layers = features.iter().map(|rows| rows.pick(nodes)).chain(hidden).collect();
            (part, RemoteSums { degrees, layers })
        };
        let parts = parts::cut(data, partition).into_iter().zip(&self.nodes_of);
        (parts.map(part).collect(), bytes)
    }

    /// The sums over hidden rows at `weights`, part by part, with the work that this takes.
    pub fn refresh(
        &mut self,
        model: &Model,
        weights: &Weights,
        data: &Dataset,
    ) -> (Vec<HiddenSums>, Work) {
        let mut sums = vec![vec![]; self.nodes_of.len()];
        let mut work = Work::default();
        let layers: Vec<(usize, Norm, usize)> = hidden_layers(model).collect();
        let pass = model.infer_seeing(weights, data, |stage, rows| {
            let wanted = layers.iter().find(|(at, ..)| *at == stage);
            if let (Some((_, norm, dim)), Rows::Dense { values, .. }) = (wanted, rows) {
                let all = self.dense_sums(*norm, values, *dim, data);
                for (part, nodes) in sums.iter_mut().zip(&self.nodes_of) {
                    let mut picked = Vec::with_capacity(nodes.len() * dim);
                    for at in nodes.iter().map(|node| *node as usize * dim) {
                        picked.extend_from_slice(&all[at..at + dim]);
                    }
                    part.push(picked);
                }
                work += Work::sums(self.columns.len(), *dim);
            }
        });
        self.at = Some(weights.clone());
        (sums, pass + work)
    }

    /// Bytes of one refresh, over all workers.
    pub fn refresh_bytes(&self, model: &Model) -> u64 {
        hidden_layers(model).map(|(.., dim)| self.boundary * 4 * dim as u64).sum()
    }

    /// Factors of the sources, if they have any, and of the targets.
    fn factors(norm: Norm, data: &Dataset) -> (Option<&[f32]>, Vec<f32>) {
        let degrees = (0..data.graph.nodes() as u32).map(|node| data.graph.degree(node));
        match norm {
            Norm::Symmetric => (Some(data.graph.roots()), data.graph.roots().to_vec()),
            Norm::SymmetricNeighbours => {
                (Some(data.graph.edge_roots()), data.graph.edge_roots().to_vec())
            }
            Norm::Neighbours => (None, degrees.map(|all| 1.0 / all.max(1) as f32).collect()),
            Norm::Mean => (None, degrees.map(|all| 1.0 / (1 + all) as f32).collect()),
            Norm::Sum => (None, degrees.map(|_| 1.0).collect()),
        }
    }

    fn dense_sums(&self, norm: Norm, x: &[f32], dim: usize, data: &Dataset) -> Vec<f32> {
        let (source_scale, target_scale) = Self::factors(norm, data);
        let csr = Csr { offsets: &self.offsets, columns: &self.columns };
        let gather = Gather { source_scale, target_scale: Some(&target_scale), ..plain(csr) };
        let mut sums = zeros(data.graph.nodes() * dim);
        spmm::gather(&gather, x, dim, &mut sums, false);
        sums
    }

    fn feature_sums(&self, norm: Norm, data: &Dataset) -> Rows<'static> {
        let (indices, offsets, values, dim) = match Rows::all(&data.features) {
            Rows::Dense { values, dim } => {
                let sums = self.dense_sums(norm, &values, dim, data);
                return Rows::Dense { values: sums.into(), dim };
            }
            Rows::Sparse { offsets, indices, values, dim } => (indices, offsets, values, dim),
        };
        let (sources, targets) = Self::factors(norm, data);
        let mut sum = vec![0.0_f32; dim];
        let (mut ends, mut entries, mut numbers) = (vec![0], vec![], vec![]);
        for (node, scale) in targets.iter().enumerate() {
            let start = entries.len();
            let cut = self.offsets[node] as usize..self.offsets[node + 1] as usize;
            for other in self.columns[cut].iter().map(|other| *other as usize) {
                let factor = scale * sources.map_or(1.0, |factors| factors[other]);
                for at in offsets[other] as usize..offsets[other + 1] as usize {
                    let value = values.as_ref().map_or(1.0, |values| values[at]);
                    sum[indices[at] as usize] += factor * value;
                    entries.push(indices[at]);
                }
            }
            entries[start..].sort_unstable();
            let distinct = start + distinct(&mut entries[start..]);
            entries.truncate(distinct);
            let taken =
                entries[start..].iter().map(|entry| std::mem::take(&mut sum[*entry as usize]));
            numbers.extend(taken);
            ends.push(entries.len() as u64);
        }
        Rows::Sparse {
            offsets: ends.into(),
            indices: entries.into(),
            values: Some(numbers.into()),
            dim,
        }
    }
}

/// The graph layers that read hidden rows: stage, factors, and elements of a row.
fn hidden_layers(model: &Model) -> impl Iterator<Item = (usize, Norm, usize)> {
    let stages = model.stages.iter().enumerate().skip(1);
    stages.filter_map(|(at, stage)| Some((at, stage.layer.norm()?, model.stages[at - 1].outputs)))
}

/// Whether every layer that reads neighbours is a weighted sum: attention weighs each neighbour by
/// rows that a worker does not have.
pub fn is_supported(model: &Model) -> bool {
    let is_sum = |layer: &Layer| layer.hops() == 0 || layer.norm().is_some();
    model.stages.iter().all(|stage| is_sum(&stage.layer))
}
