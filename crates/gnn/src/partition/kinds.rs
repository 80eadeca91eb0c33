//! Kinds of nodes that every part is to have its share of, and counts of nodes by kind.

use crate::Labels;
use crate::dataset::UNLABELLED;

/// Most kinds of one graph: each is a constraint that METIS keeps, and its time grows with them.
const KINDS_MAX: usize = 32;

/// The kind of each node, from 0.
#[derive(Debug)]
pub struct Kinds {
    /// Empty if there is one kind.
    of: Vec<u16>,
    pub count: usize,
}

impl Kinds {
    /// All nodes are alike.
    pub fn one() -> Self {
        Self { of: vec![], count: 1 }
    }

    /// Training nodes, kind 1, and all others.
    pub fn by_training(nodes: usize, train: &[u32]) -> Self {
        if train.is_empty() {
            return Self::one();
        }
        let mut of = vec![0; nodes];
        train.iter().for_each(|node| of[*node as usize] = 1);
        Self { of, count: 2 }
    }

    /// One kind per class of training nodes, and all others. Classes with fewer training nodes than parts, and those
    /// beyond the most frequent ones, are one kind together. Without classes, training nodes are one kind.
    pub fn by_class(nodes: usize, labels: &Labels, train: &[u32], parts: usize) -> Self {
        let mut kinds = Self::by_training(nodes, train);
        let Labels::Classes { of: class_of, count } = labels else { return kinds };
        let mut sizes: Vec<(usize, usize)> = (0..*count).map(|class| (0, class)).collect();
        let class_of = |node: u32| class_of[node as usize];
        for class in train.iter().map(|node| class_of(*node)).filter(|class| *class != UNLABELLED) {
            sizes[class as usize].0 += 1;
        }
        sizes.sort_unstable_by_key(|(size, class)| (std::cmp::Reverse(*size), *class));
        sizes.truncate(KINDS_MAX - 2);
        sizes.retain(|(size, _)| *size >= parts);
        let mut kind_of = vec![1; *count];
        for (kind, (_, class)) in (2..).zip(&sizes) {
            kind_of[*class] = kind;
        }
        for node in train {
            let kind = kind_of.get(class_of(*node) as usize).copied().unwrap_or(1);
            kinds.of[*node as usize] = kind;
        }
        kinds.count = 2 + sizes.len();
        kinds
    }

    pub fn of(&self, node: usize) -> usize {
        self.of.get(node).copied().unwrap_or(0).into()
    }
}

/// Nodes of each kind in a row per part, per cluster, or per node of a coarser graph.
#[derive(Clone, Debug)]
pub struct KindCounts {
    kinds: usize,
    counts: Vec<u32>,
}

impl KindCounts {
    pub fn none(rows: usize, kinds: usize) -> Self {
        Self { kinds, counts: vec![0; rows * kinds] }
    }

    /// One node per row.
    pub fn of_nodes(nodes: usize, kinds: &Kinds) -> Self {
        let mut all = Self::none(nodes, kinds.count);
        (0..nodes).for_each(|node| all.counts[node * kinds.count + kinds.of(node)] = 1);
        all
    }

    pub fn rows(&self) -> usize {
        self.counts.len() / self.kinds
    }

    pub fn row(&self, row: usize) -> &[u32] {
        &self.counts[row * self.kinds..][..self.kinds]
    }

    /// All rows, one after the other.
    pub fn all(&self) -> &[u32] {
        &self.counts
    }

    /// Nodes of all kinds.
    pub fn total(&self, row: usize) -> u32 {
        self.row(row).iter().sum()
    }

    pub fn add(&mut self, row: usize, more: &[u32]) {
        let counts = &mut self.counts[row * self.kinds..][..self.kinds];
        counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
    }

    pub fn take(&mut self, row: usize, less: &[u32]) {
        let counts = &mut self.counts[row * self.kinds..][..self.kinds];
        counts.iter_mut().zip(less).for_each(|(count, less)| *count -= less);
    }

    /// Whether a row that holds at most `most` has room for more.
    pub fn has_room(&self, row: usize, more: &[u32], most: &[u32]) -> bool {
        self.row(row).iter().zip(more).zip(most).all(|((count, more), most)| count + more <= *most)
    }
}
