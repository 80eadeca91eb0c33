//! Partitions a graph into parts for workers, and measures partitions.

mod cluster;
mod deal;
mod file;
mod kinds;
mod level;
mod metis;
mod multilevel;
mod quality;
mod quota;
mod refine;
mod stream;
mod tally;

use serde::{Deserialize, Serialize};

pub use file::{read, write};
pub use quality::{PartQuality, Quality, Spread, quality};

use crate::named::named;
use crate::{Error, Graph, Labels};
use kinds::Kinds;
use quota::Quota;

/// Upper bound on the number of parts, which bounds the memory of a partition and its report.
pub const PARTS_MAX: usize = 1 << 16;

named! {
    /// A method of partitioning.
    #[derive(Default)]
    pub enum Method("partitioning method") {
        /// Multilevel, with METIS at the coarsest level: cuts the fewest edges.
        #[default]
        Metis = "metis",
        /// As `Metis`, and every part has its share of the training nodes of each class.
        MetisEven = "metis-even",
        /// Small clusters by `Metis`, dealt so that every part has its share of each class.
        Clusters = "clusters",
        /// Linear deterministic greedy: each node goes to the part with most of its neighbours.
        Ldg = "ldg",
        /// As `Ldg`, with Fennel's penalty on the size of parts.
        Fennel = "fennel",
        /// Nodes dealt at random, the training nodes of each class by themselves: cuts the most edges.
        Random = "random",
        /// Nodes sorted by class and cut into equal pieces: the most skewed labels.
        Label = "label",
    }
}

/// How to partition a graph.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    pub method: Method,
    pub parts: usize,
    pub seed: u64,
    /// Largest allowed part, as a multiple of the average size; at least 1.
    pub imbalance: f64,
    /// Also bounds each part's training nodes by `imbalance`; those of each class, in methods that keep parts alike.
    pub balance_train: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { method: Method::Metis, parts: 8, seed: 1, imbalance: 1.03, balance_train: true }
    }
}

/// The part of each node. Parts are numbered from 0, and none is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub of: Vec<u32>,
    pub parts: usize,
}

impl Partition {
    /// The nodes of each part, sorted.
    pub fn nodes_of(&self) -> Vec<Vec<u32>> {
        let mut counts = vec![0; self.parts];
        for part in &self.of {
            counts[*part as usize] += 1;
        }
        let mut nodes: Vec<Vec<u32>> = counts.into_iter().map(Vec::with_capacity).collect();
        for (node, part) in self.of.iter().enumerate() {
            nodes[*part as usize].push(node as u32);
        }
        nodes
    }
}

/// Partitions the graph; the same settings give the same parts. Whatever the method, no part exceeds
/// the bound of `imbalance` (rounded up to whole nodes), and none is empty.
pub fn partition(
    graph: &Graph,
    labels: &Labels,
    train: &[u32],
    settings: &Settings,
) -> Result<Partition, Error> {
    check(graph, labels, train, settings)?;
    let parts = settings.parts;
    if parts == 1 {
        return Ok(Partition { of: vec![0; graph.nodes()], parts });
    }
    let nodes = graph.nodes();
    let kinds = match settings.method {
        _ if !settings.balance_train => Kinds::one(),
        Method::MetisEven | Method::Clusters | Method::Random => {
            Kinds::by_class(nodes, labels, train, parts)
        }
        _ => Kinds::by_training(nodes, train),
    };
    let quota = Quota::new(nodes, kinds, settings);
    let mut of = match settings.method {
        Method::Metis | Method::MetisEven => multilevel::cut(graph, &quota, settings)?,
        Method::Clusters => deal::clusters(graph, &quota, settings)?,
        Method::Ldg => stream::cut(graph, &quota, settings, stream::Price::Ldg),
        Method::Fennel => stream::cut(graph, &quota, settings, stream::Price::fennel(graph, parts)),
        Method::Random => deal::random(nodes, &quota, settings),
        Method::Label => deal::by_label(labels, parts),
    };
    // Balancing the training nodes would undo the order by label.
    if settings.method != Method::Label {
        quota.enforce(graph, &mut of);
    }
    Ok(Partition { of, parts })
}

fn check(graph: &Graph, labels: &Labels, train: &[u32], settings: &Settings) -> Result<(), Error> {
    let (nodes, parts) = (graph.nodes(), settings.parts);
    if parts == 0 {
        return Err(refused(nodes, parts, "ask for at least 1 part"));
    }
    if parts > nodes {
        return Err(refused(nodes, parts, "ask for at most one part per node"));
    }
    if parts > PARTS_MAX {
        return Err(refused(nodes, parts, &format!("ask for at most {PARTS_MAX} parts")));
    }
    if !(settings.imbalance.is_finite() && settings.imbalance >= 1.0) {
        let problem =
            format!("the imbalance is {}; expected 1 or more, such as 1.03", settings.imbalance);
        return Err(refused(nodes, parts, &problem));
    }
    if labels.nodes() != nodes {
        let problem = format!("there are {} labels", labels.nodes());
        return Err(refused(nodes, parts, &problem));
    }
    match train.iter().find(|node| **node as usize >= nodes) {
        Some(node) => {
            Err(refused(nodes, parts, &format!("training node {node} is not in the graph")))
        }
        None => Ok(()),
    }
}

fn refused(nodes: usize, parts: usize, problem: &str) -> Error {
    Error::Settings(format!(
        "cannot partition a graph of {nodes} nodes into {parts} parts: {problem}"
    ))
}
