//! What each worker holds of a dataset that was cut into parts.

pub mod stored;
mod write;

use std::collections::BTreeMap;

use hither_core::seed;
use rand::RngExt;

use crate::partition::Partition;
use crate::{Dataset, Features, Labels, Links, Split};

pub use stored::{FetchedGraph, PartAlone, StoredParts, open_part};
pub use write::PartWriter;

impl Dataset {
    /// The graph between some of the nodes, with what is known of these; numbered anew in the
    /// order given. Of the split only the training nodes that `learns` says yes to remain.
    pub fn induced(&self, nodes: &[u32], learns: impl Fn(u32) -> bool, number: &mut [u32]) -> Self {
        let original = |node: &u32| self.original_number(*node);
        let in_train =
            |node: &u32| self.split.train.binary_search_by_key(&original(node), original).is_ok();
        let numbered = nodes.iter().zip(0..);
        let train = numbered.filter(|(node, _)| learns(**node) && in_train(node));
        let part = Self::new(
            self.name.clone(),
            self.graph.induced(nodes, number),
            features_of(&self.features, nodes),
            labels_of(&self.labels, nodes),
            Split { train: train.map(|(_, new)| new).collect(), ..Split::default() },
            self.metric,
        );
        Self { class_weights: self.class_weights.clone(), ..part }
    }
}

fn features_of(features: &Features, nodes: &[u32]) -> Features {
    use crate::layer::Rows;
    match Rows::collect(features, nodes) {
        Rows::Dense { values, dim } => Features::Dense { values: values.into_owned().into(), dim },
        Rows::Sparse { offsets, indices, values, dim } => Features::Sparse {
            offsets: offsets.into_owned().into(),
            indices: indices.into_owned().into(),
            values: values.map(|values| values.into_owned().into()),
            dim,
        },
    }
}

fn labels_of(labels: &Labels, nodes: &[u32]) -> Labels {
    match labels {
        Labels::Classes { of, count } => {
            let of: Vec<u32> = nodes.iter().map(|node| of[*node as usize]).collect();
            Labels::Classes { of: of.into(), count: *count }
        }
        Labels::Tasks { of, count } => {
            let row = |node: &u32| &of[*node as usize * count..(*node as usize + 1) * count];
            let of: Vec<u8> = nodes.iter().flat_map(row).copied().collect();
            Labels::Tasks { of: of.into(), count: *count }
        }
    }
}

/// One dataset per part: its nodes and the edges between them. Features and labels are copied, unless
/// the dataset was written by part.
pub fn cut(data: &Dataset, partition: &Partition) -> Vec<Dataset> {
    if let Some(stored) = data.parts.as_ref().filter(|stored| stored.partition() == *partition) {
        let weights = &data.class_weights;
        let part = |part: &Dataset| Dataset { class_weights: weights.clone(), ..part.clone() };
        return stored.datasets().iter().map(part).collect();
    }
    let mut number = vec![u32::MAX; data.graph.nodes()];
    let parts = partition.nodes_of();
    parts.iter().map(|nodes| data.induced(nodes, |_| true, &mut number)).collect()
}

/// One dataset per part of a graph whose edges are learnt, and its nodes. Between alike nodes a part has the
/// edges inside of it. Of a user–item graph it has its users, all their items and the edges between them: an
/// edge is in one part, an item in as many as have users of it. In both, the factors of nodes in symmetric
/// normalisation are those of the whole graph.
pub fn cut_links(data: &Dataset, partition: &Partition) -> Vec<(Vec<u32>, Dataset)> {
    let users = data.links.as_ref().and_then(|links| links.users);
    let mut number = vec![u32::MAX; data.graph.nodes()];
    let part = |mut nodes: Vec<u32>| {
        let mut own_users = None;
        if let Some(users) = users {
            nodes.retain(|node| (*node as usize) < users);
            own_users = Some(nodes.len());
            let items = nodes.iter().flat_map(|user| data.graph.neighbours(*user));
            let items: std::collections::BTreeSet<u32> = items.copied().collect();
            nodes.extend(items);
        }
        let mut part = data.induced(&nodes, |_| false, &mut number);
        let roots = |all: &[f32]| nodes.iter().map(|node| all[*node as usize]).collect();
        part.graph = part.graph.with_edge_roots(roots(data.graph.edge_roots()));
        part.links = Some(Links { users: own_users, ..Links::default() });
        (nodes, part)
    };
    partition.nodes_of().into_iter().map(part).collect()
}

/// As [`cut`], and each part also stores some nodes of other parts that its own have edges to:
/// `count` of them, drawn by the number of these edges. Also returns the bytes that sending them takes.
pub fn cut_with_copies(
    data: &Dataset,
    partition: &Partition,
    count: usize,
    seed: u64,
) -> (Vec<Dataset>, u64) {
    let mut number = vec![u32::MAX; data.graph.nodes()];
    let mut bytes = 0;
    let mut parts = vec![];
    for (part, own) in partition.nodes_of().into_iter().enumerate() {
        let mut random = seed::stream(seed, &format!("copies/{part}"));
        // By original number, so that the draws do not depend on how nodes are numbered.
        let mut edges = BTreeMap::<u32, (u32, u32)>::new();
        for node in &own {
            for other in data.graph.neighbours(*node) {
                if partition.of[*other as usize] != part as u32 {
                    edges.entry(data.original_number(*other)).or_insert((*other, 0)).1 += 1;
                }
            }
        }
        // Weighted draws without replacement: the largest of u^(1/w), as logarithms.
        let mut keyed: Vec<(f64, u32)> = edges
            .into_values()
            .map(|(node, edges)| (random.random::<f64>().ln() / f64::from(edges), node))
            .collect();
        // The sort is stable: equal keys stay in the order of the original numbers.
        keyed.sort_by(|a, b| b.0.total_cmp(&a.0));
        keyed.truncate(count);
        let mut nodes = own;
        let own_len = nodes.len();
        nodes.extend(keyed.iter().map(|(_, node)| *node));
        let copies = &nodes[own_len..];
        // A copy comes with its features and its edges into what is here.
        bytes += copies.iter().map(|node| data.features.row_bytes(*node)).sum::<u64>();
        let learns = |node: u32| partition.of[node as usize] == part as u32;
        let dataset = data.induced(&nodes, learns, &mut number);
        let copied = own_len..nodes.len();
        bytes += 4 * copied.map(|new| dataset.graph.degree(new as u32) as u64).sum::<u64>();
        parts.push(dataset);
    }
    (parts, bytes)
}

/// For workers that see the whole graph: each part's training nodes, and which nodes it holds.
pub fn homes(data: &Dataset, partition: &Partition) -> Vec<(Vec<u32>, Vec<bool>)> {
    let home = |part: usize| -> (Vec<u32>, Vec<bool>) {
        let is_home = |node: &u32| partition.of[*node as usize] == part as u32;
        let train = data.split.train.iter().copied().filter(is_home).collect();
        (train, partition.of.iter().map(|of| *of == part as u32).collect())
    };
    (0..partition.parts).map(home).collect()
}
