//! Rows of features that other processes hold, for the mode `ggs`.
//!
//! Every process knows who holds which nodes and how long each row is. A request is therefore a list of
//! nodes, and its answer their entries in the same order, nothing else: what crosses the network is what
//! [`Learner`](crate::local::Learner) counts. A [`Carrier`] takes both to their receivers.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::Features;
use crate::layer::Rows;

/// Upper bound on an answer, in words; larger requests are split. MPI counts elements in 31 bits.
const ANSWER_WORDS_MAX: u64 = 1 << 28;

/// Takes requests to the processes that hold rows, and brings the answers. It ends the job if it cannot.
pub trait Carrier: Send {
    /// Sends a request; does not wait for its answer.
    fn ask(&mut self, holder: usize, nodes: Vec<u32>);

    /// Waits for the answer to the oldest request to this holder that has had none.
    fn answer(&mut self, holder: usize) -> Vec<u32>;
}

/// The rows that this process holds, and answers requests from.
#[derive(Debug)]
pub struct HeldRows {
    features: Features,
    nodes: Range<u32>,
}

impl HeldRows {
    /// Of all features, which may be mapped, those of `nodes` are held here; no others are read.
    pub fn new(features: Features, nodes: Range<u32>) -> Self {
        Self { features, nodes }
    }

    /// The entries of some rows as words of 32 bits: values, or column numbers and then values.
    /// `None` if one of the nodes is not held here.
    pub fn answer(&self, nodes: &[u32]) -> Option<Vec<u32>> {
        if !nodes.iter().all(|node| self.nodes.contains(node)) {
            return None;
        }
        Some(match Rows::collect(&self.features, nodes) {
            Rows::Dense { values, .. } => bytemuck::cast_slice::<f32, u32>(&values).to_vec(),
            Rows::Sparse { indices, values, .. } => {
                let values = values.iter().flat_map(|values| values.iter());
                indices.iter().copied().chain(values.map(|value| value.to_bits())).collect()
            }
        })
    }
}

/// Who holds which rows: process `i` those of the nodes from `starts[i]` up to the next process's.
#[derive(Debug)]
pub struct Holders {
    starts: Vec<u32>,
    own: usize,
}

impl Holders {
    /// `own` is the number of this process.
    pub fn new(starts: Vec<u32>, own: usize) -> Self {
        Self { starts, own }
    }

    fn holder(&self, node: u32) -> usize {
        self.starts.partition_point(|start| *start <= node) - 1
    }
}

/// Gets the rows of one learner's batches: its process's own from memory, all others from their holders.
pub struct Fetcher {
    /// How long rows are; their entries are elsewhere.
    pub sizes: Features,
    pub holders: Arc<Holders>,
    pub held: Arc<HeldRows>,
    pub carrier: Box<dyn Carrier>,
}

/// Requests of one batch that are on their way.
pub struct Requested {
    /// The holder of each request, and where the rows stand in the batch.
    pieces: Vec<(usize, Vec<u32>)>,
}

impl Fetcher {
    /// Asks for the rows of distinct nodes, and does not wait for them.
    pub fn request(&mut self, nodes: &[u32]) -> Requested {
        let mut of_holders = vec![vec![]; self.holders.starts.len()];
        for (position, node) in (0..).zip(nodes) {
            of_holders[self.holders.holder(*node)].push(position);
        }
        let mut pieces = vec![];
        for (holder, positions) in of_holders.into_iter().enumerate() {
            for piece in self.split(nodes, positions) {
                if holder != self.holders.own {
                    let wanted = piece.iter().map(|position| nodes[*position as usize]);
                    self.carrier.ask(holder, wanted.collect());
                }
                pieces.push((holder, piece));
            }
        }
        Requested { pieces }
    }

    /// Waits for the rows, and returns them in the order of `nodes`.
    pub fn rows(&mut self, requested: Requested, nodes: &[u32]) -> Rows<'static> {
        let mut rows = Unfilled::new(&self.sizes, nodes);
        for (holder, positions) in requested.pieces {
            if holder == self.holders.own {
                let own = positions.iter().map(|position| nodes[*position as usize]);
                let answer = self.held.answer(&own.collect::<Vec<_>>());
                rows.fill(&positions, &answer.unwrap_or_default());
            } else {
                rows.fill(&positions, &self.carrier.answer(holder));
            }
        }
        rows.into_rows()
    }

    /// Cuts a holder's positions where answers would become too long.
    fn split(&self, nodes: &[u32], positions: Vec<u32>) -> Vec<Vec<u32>> {
        let mut pieces = vec![];
        let (mut piece, mut words) = (vec![], 0);
        for position in positions {
            let more = self.sizes.row_bytes(nodes[position as usize]) / 4;
            if words + more > ANSWER_WORDS_MAX && !piece.is_empty() {
                pieces.push(std::mem::take(&mut piece));
                words = 0;
            }
            piece.push(position);
            words += more;
        }
        if !piece.is_empty() {
            pieces.push(piece);
        }
        pieces
    }
}

/// Rows of known lengths whose entries are still to come.
struct Unfilled {
    /// Where each row begins, and where the last one ends.
    offsets: Vec<u64>,
    /// Column numbers; empty for dense rows.
    indices: Vec<u32>,
    /// `None` for sparse rows that consist of ones.
    values: Option<Vec<f32>>,
    /// Elements of a row, zeros included.
    dim: usize,
    is_sparse: bool,
}

impl Unfilled {
    fn new(sizes: &Features, nodes: &[u32]) -> Self {
        let (is_sparse, has_values) = match sizes {
            Features::Dense { .. } => (false, true),
            Features::Sparse { values, .. } => (true, values.is_some()),
        };
        let entry_bytes = if is_sparse && has_values { 8 } else { 4 };
        let mut offsets = Vec::with_capacity(nodes.len() + 1);
        let mut end = 0;
        offsets.push(end);
        for node in nodes {
            end += sizes.row_bytes(*node) / entry_bytes;
            offsets.push(end);
        }
        Self {
            offsets,
            indices: vec![0; if is_sparse { end as usize } else { 0 }],
            values: has_values.then(|| vec![0.0; end as usize]),
            dim: sizes.dim(),
            is_sparse,
        }
    }

    /// Puts the rows of an answer where they belong.
    ///
    /// # Panics
    /// If the answer is not as long as its rows: the processes do not have the same graph.
    fn fill(&mut self, positions: &[u32], answer: &[u32]) {
        let Self { offsets, indices, values, .. } = self;
        let range = |position: u32| {
            let at = position as usize;
            offsets[at] as usize..offsets[at + 1] as usize
        };
        let mut rest = answer;
        let mut next = |count: usize| {
            let (row, after) = rest.split_at(count);
            rest = after;
            row
        };
        if self.is_sparse {
            for range in positions.iter().map(|position| range(*position)) {
                indices[range.clone()].copy_from_slice(next(range.len()));
            }
        }
        if let Some(values) = values {
            for range in positions.iter().map(|position| range(*position)) {
                let row: &[f32] = bytemuck::cast_slice(next(range.len()));
                values[range].copy_from_slice(row);
            }
        }
        assert!(rest.is_empty(), "an answer with more than was asked for");
    }

    fn into_rows(self) -> Rows<'static> {
        let Self { offsets, indices, values, dim, is_sparse } = self;
        match (is_sparse, values) {
            (false, values) => Rows::Dense { values: values.unwrap_or_default().into(), dim },
            (true, values) => Rows::Sparse {
                offsets: offsets.into(),
                indices: indices.into(),
                values: values.map(Cow::Owned),
                dim,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Holders in this process, whose answers wait until they are called for.
    struct Here {
        holders: Vec<HeldRows>,
        answers: Vec<VecDeque<Vec<u32>>>,
        asked: Arc<std::sync::Mutex<Vec<u32>>>,
    }

    impl Carrier for Here {
        fn ask(&mut self, holder: usize, nodes: Vec<u32>) {
            self.answers[holder].push_back(self.holders[holder].answer(&nodes).expect("held"));
            self.asked.lock().expect("unpoisoned").extend(nodes);
        }

        fn answer(&mut self, holder: usize) -> Vec<u32> {
            self.answers[holder].pop_front().expect("an answer to a request")
        }
    }

    const NODES: u32 = 20;

    fn features(kind: u8, lens: &[usize]) -> Features {
        let dim = 5;
        let mut offsets = vec![0];
        offsets.extend(lens.iter().scan(0, |end, len| {
            *end += *len as u64;
            Some(*end)
        }));
        let entries = lens.iter().sum::<usize>() as u32;
        let values: Vec<f32> = (0..NODES * 5).map(|n| n as f32 + 0.5).collect();
        match kind {
            0 => Features::Dense { values: values.into(), dim },
            kind => Features::Sparse {
                offsets: offsets.into(),
                indices: (0..entries).map(|n| n % 5).collect::<Vec<_>>().into(),
                values: (kind == 2).then(|| values[..entries as usize].to_vec().into()),
                dim,
            },
        }
    }

    proptest! {
        #[test]
        fn fetched_rows_are_those_of_the_whole_table(
            kind in 0_u8..3,
            lens in proptest::collection::vec(0_usize..4, NODES as usize),
            wanted in proptest::sample::subsequence((0..NODES).collect::<Vec<_>>(), 0..NODES as usize),
            cuts in [1..NODES, 1..NODES],
            own in 0_usize..3,
        ) {
            let features = features(kind, &lens);
            let mut wanted = wanted;
            wanted.reverse();
            let mut starts = vec![0, cuts[0].min(cuts[1]), cuts[0].max(cuts[1])];
            let ends = [starts[1], starts[2], NODES];
            let held = |at: usize| HeldRows::new(features.clone(), starts[at]..ends[at]);
            let asked = Arc::default();
            let carrier = Here {
                holders: (0..3).map(held).collect(),
                answers: vec![VecDeque::new(); 3],
                asked: Arc::clone(&asked),
            };
            let own_nodes = starts[own]..ends[own];
            let held = Arc::new(held(own));
            starts.push(NODES);
            let mut fetcher = Fetcher {
                sizes: features.sizes_only(),
                holders: Arc::new(Holders::new(starts, own)),
                held,
                carrier: Box::new(carrier),
            };
            let requested = fetcher.request(&wanted);
            let fetched = fetcher.rows(requested, &wanted);
            let expected = Rows::collect(&features, &wanted);
            prop_assert_eq!(format!("{fetched:?}"), format!("{expected:?}"));
            // Nobody is asked for what is here, and others for each row once.
            let mut asked = asked.lock().expect("unpoisoned").clone();
            asked.sort_unstable();
            let mut others: Vec<u32> =
                wanted.iter().copied().filter(|node| !own_nodes.contains(node)).collect();
            others.sort_unstable();
            prop_assert_eq!(asked, others);
        }
    }

    #[test]
    fn rows_of_other_processes_are_not_answered() {
        let held = HeldRows::new(features(0, &[0; NODES as usize]), 5..10);
        assert_eq!(held.answer(&[5, 9]).map(|words| words.len()), Some(10));
        assert_eq!(held.answer(&[5, 10]), None);
        assert_eq!(held.answer(&[4]), None);
    }
}
