//! What is trained on: a graph, features and labels of its nodes, and which nodes are for what.

use hither_data::Array;
use serde::{Deserialize, Serialize};

use crate::{Error, Graph};

/// A node without a class.
pub const UNLABELLED: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub struct Dataset {
    pub name: String,
    pub graph: Graph,
    pub features: Features,
    pub labels: Labels,
    pub split: Split,
    pub metric: Metric,
}

/// One row of features a node.
#[derive(Clone, Debug)]
pub enum Features {
    /// Row after row.
    Dense { values: Array<f32>, dim: usize },
    /// Only what is not zero, as bags of words are; without `values` it is all ones.
    Sparse { offsets: Array<u64>, indices: Array<u32>, values: Option<Array<f32>>, dim: usize },
}

impl Features {
    pub fn dim(&self) -> usize {
        match self {
            Self::Dense { dim, .. } | Self::Sparse { dim, .. } => *dim,
        }
    }

    /// How many nodes have a row.
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense { values, dim } => values.len() / (*dim).max(1),
            Self::Sparse { offsets, .. } => offsets.len().saturating_sub(1),
        }
    }

    /// Bytes of node `row`, as they would cross a network.
    pub fn row_bytes(&self, row: u32) -> u64 {
        match self {
            Self::Dense { dim, .. } => 4 * *dim as u64,
            Self::Sparse { offsets, values, .. } => {
                let len = offsets[row as usize + 1] - offsets[row as usize];
                len * if values.is_some() { 8 } else { 4 }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub enum Labels {
    /// One class a node, or [`UNLABELLED`].
    Classes { of: Array<u32>, count: usize },
    /// `count` yes-or-no answers a node, row after row: 1, 0.
    Tasks { of: Array<u8>, count: usize },
}

impl Labels {
    /// Outputs of a model for them.
    pub fn count(&self) -> usize {
        match self {
            Self::Classes { count, .. } | Self::Tasks { count, .. } => *count,
        }
    }

    pub fn nodes(&self) -> usize {
        match self {
            Self::Classes { of, .. } => of.len(),
            Self::Tasks { of, count } => of.len() / (*count).max(1),
        }
    }
}

/// Nodes to learn from, to choose the model by, and to test it on; sorted, and no node twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub train: Vec<u32>,
    pub valid: Vec<u32>,
    pub test: Vec<u32>,
}

/// What a model is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Share of nodes whose class is right.
    Accuracy,
    /// Area under the ROC curve, averaged over tasks.
    RocAuc,
    /// F1 over all answers of all nodes.
    F1Micro,
}

impl Metric {
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy => "accuracy",
            Self::RocAuc => "roc-auc",
            Self::F1Micro => "f1-micro",
        }
    }
}

impl Dataset {
    /// Whether its parts fit each other, so that no later step has to ask.
    pub fn check(&self) -> Result<(), Error> {
        let nodes = self.graph.nodes();
        let bad = |problem: String| Err(Error::Dataset { name: self.name.clone(), problem });
        if nodes == 0 {
            return bad("there are no nodes".into());
        }
        if self.features.rows() != nodes {
            return bad(format!("{nodes} nodes, but {} rows of features", self.features.rows()));
        }
        if self.features.dim() == 0 {
            return bad("features have no columns".into());
        }
        if let Features::Dense { values, dim } = &self.features
            && values.len() != nodes * dim
        {
            return bad(format!("features are no whole rows of {dim}"));
        }
        if let Features::Sparse { offsets, indices, values, dim } = &self.features {
            let falls = offsets.windows(2).any(|pair| pair[0] > pair[1]);
            if falls || offsets[0] != 0 || offsets[nodes] != indices.len() as u64 {
                return bad("offsets of the features do not run from 0 to their number".into());
            }
            if let Some(index) = indices.iter().find(|index| **index as usize >= *dim) {
                return bad(format!("feature {index} is not below {dim}"));
            }
            if values.as_ref().is_some_and(|values| values.len() != indices.len()) {
                return bad("there are not as many values as indices of features".into());
            }
        }
        self.check_labels()
    }

    fn check_labels(&self) -> Result<(), Error> {
        let nodes = self.graph.nodes();
        let bad = |problem: String| Err(Error::Dataset { name: self.name.clone(), problem });
        if self.labels.nodes() != nodes {
            return bad(format!("{nodes} nodes, but labels of {}", self.labels.nodes()));
        }
        if self.labels.count() == 0 {
            return bad("there are no classes".into());
        }
        match &self.labels {
            Labels::Classes { of, count } => {
                let unknown = |class: &u32| *class as usize >= *count && *class != UNLABELLED;
                if let Some(node) = of.iter().position(unknown) {
                    return bad(format!("node {node} is of class {}, not below {count}", of[node]));
                }
            }
            Labels::Tasks { of, count } => {
                if of.len() != nodes * count || of.iter().any(|answer| *answer > 1) {
                    return bad(format!("labels are not {count} times 0 or 1 a node"));
                }
            }
        }
        let mut seen = vec![false; nodes];
        let Split { train, valid, test } = &self.split;
        for (name, set) in [("train", train), ("valid", valid), ("test", test)] {
            if set.is_empty() {
                return bad(format!("no node is for {name}"));
            }
            if !set.is_sorted() {
                return bad(format!("the nodes for {name} are not sorted"));
            }
            for node in set {
                let Some(seen) = seen.get_mut(*node as usize) else {
                    return bad(format!("node {node} for {name} is not below {nodes}"));
                };
                if std::mem::replace(seen, true) {
                    return bad(format!("node {node} is in the split twice"));
                }
                if let Labels::Classes { of, count } = &self.labels {
                    let class = of[*node as usize];
                    if class as usize >= *count {
                        return bad(format!("node {node} for {name} has no class"));
                    }
                }
            }
        }
        match (&self.labels, self.metric) {
            (Labels::Classes { .. }, Metric::F1Micro)
            | (Labels::Tasks { .. }, Metric::Accuracy) => {
                bad(format!("labels of this kind are not judged by {}", self.metric.name()))
            }
            (Labels::Classes { count, .. }, Metric::RocAuc) if *count != 2 => {
                bad(format!("roc-auc needs 2 classes, not {count}"))
            }
            _ => Ok(()),
        }
    }
}
