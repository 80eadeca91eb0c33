//! A graph with features, labels and a split of its nodes: everything that training needs.

use std::borrow::Cow;
use std::sync::Arc;

use hither_data::Array;

use crate::named::named;
use crate::parts::StoredParts;
use crate::{Error, Graph, Links, Names};

/// The class of a node without a label.
pub const UNLABELLED: u32 = u32::MAX;

/// A graph with features, labels and a split, checked to fit each other.
#[derive(Clone, Debug)]
pub struct Dataset {
    pub name: String,
    pub graph: Graph,
    pub features: Features,
    pub labels: Labels,
    pub split: Split,
    pub metric: Metric,
    /// What each class counts in the loss; None: all alike.
    pub class_weights: Option<Arc<[f32]>>,
    /// Held-out edges, if edges are what is learnt.
    pub links: Option<Links>,
    /// What the files call the nodes; None: by their numbers.
    pub node_names: Option<Names>,
    /// What the files call the classes; None: by their numbers.
    pub class_names: Option<Names>,
    /// What the reader left out of the files, such as weights of edges.
    pub notes: Vec<String>,
    /// The number of each node in the user's files, if nodes were renumbered; None: the same.
    pub original: Option<Array<u32>>,
    /// The parts on disk, if nodes are numbered by part.
    pub parts: Option<Arc<StoredParts>>,
}

/// One row of features per node.
#[derive(Clone, Debug)]
pub enum Features {
    /// All values, row by row.
    Dense { values: Array<f32>, dim: usize },
    /// The columns that are not zero in each row, as in bags of words; without `values`, all are 1.
    Sparse { offsets: Array<u64>, indices: Array<u32>, values: Option<Array<f32>>, dim: usize },
}

impl Features {
    pub fn dim(&self) -> usize {
        match self {
            Self::Dense { dim, .. } | Self::Sparse { dim, .. } => *dim,
        }
    }

    /// Number of rows, one per node.
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense { values, dim } => values.len() / (*dim).max(1),
            Self::Sparse { offsets, .. } => offsets.len().saturating_sub(1),
        }
    }

    /// How long each row is, without its entries: for processes that fetch these from others.
    pub fn sizes_only(&self) -> Self {
        match self {
            Self::Dense { dim, .. } => Self::Dense { values: vec![].into(), dim: *dim },
            Self::Sparse { offsets, values, dim, .. } => Self::Sparse {
                offsets: offsets.clone(),
                indices: vec![].into(),
                values: values.as_ref().map(|_| vec![].into()),
                dim: *dim,
            },
        }
    }

    /// Whether the entries of the rows are elsewhere.
    pub fn is_sizes_only(&self) -> bool {
        match self {
            Self::Dense { values, .. } => values.is_empty(),
            Self::Sparse { offsets, indices, .. } => {
                indices.is_empty() && offsets.last().is_some_and(|end| *end > 0)
            }
        }
    }

    /// Bytes of one node's row, as they would cross a network.
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

/// What a model learns to predict for each node.
#[derive(Clone, Debug)]
pub enum Labels {
    /// One class per node, or [`UNLABELLED`].
    Classes { of: Array<u32>, count: usize },
    /// `count` binary labels per node, row by row: 1 or 0.
    Tasks { of: Array<u8>, count: usize },
}

impl Labels {
    /// Number of classes or tasks, which is the number of a model's outputs.
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

    /// Number of nodes without a class.
    pub fn unlabelled(&self) -> usize {
        match self {
            Self::Classes { of, .. } => of.iter().filter(|class| **class == UNLABELLED).count(),
            Self::Tasks { .. } => 0,
        }
    }
}

/// Training, validation and test nodes, each set sorted by [`Dataset::original_number`], and no node in
/// two sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub train: Vec<u32>,
    pub valid: Vec<u32>,
    pub test: Vec<u32>,
}

named! {
    /// The score of a model.
    pub enum Metric("score") {
        /// Share of nodes whose class is predicted correctly.
        Accuracy = "accuracy",
        /// Area under the ROC curve, averaged over tasks.
        RocAuc = "roc-auc",
        /// F1 over all labels of all nodes together.
        F1Micro = "f1-micro",
        /// F1 of each class or task, averaged.
        F1Macro = "f1-macro",
    }
}

impl Dataset {
    /// Memory that the graph, features and labels take.
    pub fn bytes(&self) -> u64 {
        let nodes = self.graph.nodes() as u64;
        let features: u64 = (0..nodes as u32).map(|node| self.features.row_bytes(node)).sum();
        // Offsets of 8 bytes, each edge at both ends with 4, and a class of 4.
        12 * nodes + 8 * self.graph.edges() as u64 + features
    }

    /// A dataset whose nodes and classes are called by their numbers.
    pub fn new(
        name: String,
        graph: Graph,
        features: Features,
        labels: Labels,
        split: Split,
        metric: Metric,
    ) -> Self {
        Self {
            name,
            graph,
            features,
            labels,
            split,
            metric,
            class_weights: None,
            links: None,
            node_names: None,
            class_names: None,
            notes: vec![],
            original: None,
            parts: None,
        }
    }

    /// Weights by which every class counts alike in the loss: all training nodes divided by those of the class
    /// and by the number of classes. Classes without training nodes have 1.
    pub fn balanced_weights(&self) -> Option<Vec<f32>> {
        let Labels::Classes { of, count } = &self.labels else { return None };
        let mut nodes = vec![0_usize; *count];
        self.split.train.iter().for_each(|node| nodes[of[*node as usize] as usize] += 1);
        let (train, classes) = (self.split.train.len() as f32, *count as f32);
        let weight = |nodes: &usize| match nodes {
            0 => 1.0,
            nodes => train / (classes * *nodes as f32),
        };
        Some(nodes.iter().map(weight).collect())
    }

    /// The number of a node in the user's files.
    pub fn original_number(&self, node: u32) -> u32 {
        self.original.as_ref().map_or(node, |original| original[node as usize])
    }

    /// The nodes in the order of the user's files; None: they are in that order.
    pub fn nodes_in_original_order(&self) -> Option<Vec<u32>> {
        let original = self.original.as_ref()?;
        let mut nodes = vec![0; original.len()];
        for (node, number) in (0..).zip(original.iter()) {
            nodes[*number as usize] = node;
        }
        Some(nodes)
    }

    /// What the files call a node.
    pub fn node_name(&self, node: u32) -> Cow<'_, str> {
        match &self.node_names {
            Some(names) => names.get(node as usize),
            None => {
                // Items are numbered by themselves.
                let users = self.links.as_ref().and_then(|links| links.users).unwrap_or(0) as u32;
                let number = self.original_number(node);
                number.checked_sub(users).unwrap_or(number).to_string().into()
            }
        }
    }

    /// What the files call a class.
    pub fn class_name(&self, class: u32) -> Cow<'_, str> {
        match &self.class_names {
            Some(names) => names.get(class as usize),
            None => class.to_string().into(),
        }
    }

    /// Checks that all parts fit each other, so that no later step has to.
    pub fn check(&self) -> Result<(), Error> {
        self.check_graph()?;
        self.check_features()?;
        self.check_labels()?;
        let Split { train, valid, test } = &self.split;
        self.check_split(&[("training", train), ("validation", valid), ("test", test)])?;
        match (&self.labels, self.metric) {
            (Labels::Classes { .. }, Metric::F1Micro)
            | (Labels::Tasks { .. }, Metric::Accuracy) => {
                self.bad(format!("{} does not fit labels of this kind", self.metric.name()))
            }
            (Labels::Classes { count, .. }, Metric::RocAuc) if *count != 2 => {
                self.bad(format!("roc-auc needs 2 classes, not {count}"))
            }
            _ => Ok(()),
        }
    }

    /// Checks a part, which has training nodes only, and perhaps none.
    pub fn check_part(&self) -> Result<(), Error> {
        if self.graph.nodes() == 0 {
            return self.bad("there are no nodes".into());
        }
        self.check_features()?;
        self.check_labels()?;
        match self.split.train.is_empty() {
            true => Ok(()),
            false => self.check_split(&[("training", &self.split.train)]),
        }
    }

    /// The part of [`Dataset::check`] that a graph without features and labels passes.
    pub fn check_graph(&self) -> Result<(), Error> {
        let nodes = self.graph.nodes();
        if nodes == 0 {
            return self.bad("there are no nodes".into());
        }
        for (names, expected, what) in [
            (&self.node_names, nodes, "nodes"),
            (&self.class_names, self.labels.count(), "classes"),
        ] {
            if let Some(names) = names.as_ref().filter(|names| names.len() != expected) {
                return self.bad(format!("{expected} {what}, but {} names of {what}", names.len()));
            }
        }
        self.check_numbers()
    }

    /// The part of [`Dataset::check`] that a graph without labels or a split passes.
    pub fn check_unlabelled(&self) -> Result<(), Error> {
        self.check_graph()?;
        self.check_features()?;
        if self.labels.count() > 0 { self.check_labels() } else { Ok(()) }
    }

    /// Checks a graph whose edges are learnt: labels and a split of nodes are not needed.
    pub fn check_links(&self) -> Result<(), Error> {
        self.check_graph()?;
        let edges = self.graph.targets().len();
        if self.graph.edges() == 0 {
            return self.bad("there are no edges to learn from".into());
        }
        if edges > u32::MAX as usize {
            return self.bad(format!("{edges} entries of edges are more than 32 bits can number"));
        }
        Ok(())
    }

    /// Each original number belongs to one node.
    fn check_numbers(&self) -> Result<(), Error> {
        let Some(original) = &self.original else { return Ok(()) };
        let nodes = self.graph.nodes();
        let mut is_taken = vec![false; nodes];
        let is_new = |number: &u32| {
            let taken = is_taken.get_mut(*number as usize);
            taken.is_some_and(|taken| !std::mem::replace(taken, true))
        };
        if original.len() != nodes || !original.iter().all(is_new) {
            return self.bad(format!("the original numbers are not those of {nodes} nodes"));
        }
        Ok(())
    }

    fn bad(&self, problem: String) -> Result<(), Error> {
        Err(Error::Dataset { name: self.name.clone(), problem })
    }

    fn check_features(&self) -> Result<(), Error> {
        let nodes = self.graph.nodes();
        if self.features.rows() != nodes {
            return self.bad(format!("{nodes} nodes, but {} feature rows", self.features.rows()));
        }
        if self.features.dim() == 0 {
            return self.bad("the features have no columns".into());
        }
        match &self.features {
            Features::Dense { values, dim } if values.len() != nodes * dim => {
                self.bad(format!("the features are not whole rows of {dim} columns"))
            }
            Features::Dense { .. } => Ok(()),
            Features::Sparse { offsets, indices, values, dim } => {
                let falls = offsets.windows(2).any(|pair| pair[0] > pair[1]);
                if falls || offsets[0] != 0 || offsets[nodes] != indices.len() as u64 {
                    return self.bad("feature offsets do not rise from 0 to the last index".into());
                }
                if let Some(index) = indices.iter().find(|index| **index as usize >= *dim) {
                    return self.bad(format!("feature index {index} is not below {dim}"));
                }
                if values.as_ref().is_some_and(|values| values.len() != indices.len()) {
                    return self.bad("there are not as many feature values as indices".into());
                }
                Ok(())
            }
        }
    }

    pub(crate) fn check_labels(&self) -> Result<(), Error> {
        let nodes = self.graph.nodes();
        if self.labels.nodes() != nodes {
            return self.bad(format!("{nodes} nodes, but {} labels", self.labels.nodes()));
        }
        if self.labels.count() == 0 {
            return self.bad("there are no classes".into());
        }
        match &self.labels {
            Labels::Classes { of, count } => {
                let unknown = |class: &u32| *class as usize >= *count && *class != UNLABELLED;
                match of.iter().position(unknown) {
                    Some(node) => self.bad(format!(
                        "node {node} has class {}, which is not below {count}",
                        of[node]
                    )),
                    None => Ok(()),
                }
            }
            Labels::Tasks { of, count } => {
                if of.len() != nodes * count || of.iter().any(|answer| *answer > 1) {
                    return self
                        .bad(format!("the labels are not {count} values of 0 or 1 per node"));
                }
                Ok(())
            }
        }
    }

    fn check_split(&self, sets: &[(&str, &Vec<u32>)]) -> Result<(), Error> {
        let nodes = self.graph.nodes();
        let mut seen = vec![false; nodes];
        for (name, set) in sets {
            if set.is_empty() {
                return self.bad(format!("the {name} set is empty"));
            }
            for node in *set {
                let Some(seen) = seen.get_mut(*node as usize) else {
                    return self.bad(format!("node {node} of the {name} set is not below {nodes}"));
                };
                if std::mem::replace(seen, true) {
                    return self.bad(format!("node {node} is in the split twice"));
                }
                if let Labels::Classes { of, .. } = &self.labels
                    && of[*node as usize] == UNLABELLED
                {
                    let node = self.node_name(*node);
                    return self.bad(format!(
                        "node {node} is in the {name} set but has no label; take it out of the \
                         split, or draw a split"
                    ));
                }
            }
            if !set.is_sorted_by_key(|node| self.original_number(*node)) {
                return self.bad(format!("the {name} set is not sorted"));
            }
        }
        Ok(())
    }
}
