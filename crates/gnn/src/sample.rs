//! What one step looks at: some nodes, their neighbours, the neighbours of these, and so on; or
//! the whole graph.
//!
//! Neighbours are drawn without replacement. Each draw comes from a random stream that the caller
//! names, so that a step draws the same whatever ran before it or beside it.

use std::borrow::Cow;
use std::ops::Range;

use hither_core::seed;
use hither_kernels::spmm::{Csr, Own};
use rand::RngExt;
use rand_pcg::Pcg64Mcg;

use crate::layer::Rows;
use crate::task::Goal;
use crate::{Dataset, Features, Graph};

/// How many neighbours of a node are drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fanout {
    All,
    /// The same number at every hop.
    AtMost(usize),
    /// One number per hop, from the nodes of the batch outwards, as PyTorch Geometric orders them;
    /// the last one holds for all further hops.
    PerHop(Vec<usize>),
}

impl Fanout {
    /// Upper bound on the neighbours drawn per node, `hop` hops from the nodes of the batch.
    fn most(&self, hop: usize) -> usize {
        match self {
            Self::All => usize::MAX,
            Self::AtMost(most) => *most,
            Self::PerHop(most) => most.get(hop).or(most.last()).copied().unwrap_or(usize::MAX),
        }
    }
}

/// One graph layer's view: which rows of its input belong to the neighbours of each target.
pub struct Hop<'a> {
    /// Rows of the layer's input.
    pub inputs: usize,
    /// The targets' own rows, where these are not simply the first ones.
    own: Option<Vec<u32>>,
    offsets: Cow<'a, [u64]>,
    columns: Cow<'a, [u32]>,
    /// One per entry of `columns`, if edges have weights.
    weights: Option<Cow<'a, [f32]>>,
    /// Where neighbours were left out: how many each target has.
    degrees: Option<Vec<u32>>,
    /// The factor of each input that the model's [`Roots`] ask for; empty without them.
    pub roots: Cow<'a, [f32]>,
    /// Inputs and targets are the same nodes and every edge stands both ways.
    pub symmetric: bool,
}

impl<'a> Hop<'a> {
    /// Some nodes with all their neighbours, over inputs that are all nodes of the graph.
    pub fn over_graph(graph: &'a Graph, nodes: &[u32], roots: Option<Roots>) -> Self {
        // Nothing is drawn: all neighbours are taken.
        let drawn = Drawn::draw(graph, nodes, usize::MAX, &mut seed::stream(0, "all"));
        let roots = Cow::Borrowed(roots.map_or(&[][..], |roots| roots.of_graph(graph)));
        Self { roots, ..drawn.hop(graph.nodes(), Some(nodes.to_vec())) }
    }
}

impl Hop<'_> {
    pub fn targets(&self) -> usize {
        self.offsets.len() - 1
    }

    pub fn csr(&self) -> Csr<'_> {
        Csr { offsets: &self.offsets, columns: &self.columns }
    }

    pub fn own(&self) -> Own<'_> {
        self.own_of(0..self.targets())
    }

    /// The own rows of some targets.
    pub fn own_of(&self, targets: Range<usize>) -> Own<'_> {
        match &self.own {
            Some(ids) => Own::Ids(&ids[targets]),
            None => Own::Run { first: targets.start, len: targets.len() },
        }
    }

    /// The weights of the edges, one per column, if they have any.
    pub fn weights(&self) -> Option<&[f32]> {
        self.weights.as_deref()
    }

    /// The sum of the weights of the neighbours in this hop; without weights, their number.
    pub fn strength(&self, target: usize) -> f32 {
        let row = self.offsets[target] as usize..self.offsets[target + 1] as usize;
        self.weights().map_or(row.len() as f32, |weights| weights[row].iter().sum())
    }

    /// The factor of a target in symmetric normalisation.
    pub fn root(&self, target: usize) -> f32 {
        self.roots[self.own.as_ref().map_or(target, |own| own[target] as usize)]
    }

    /// Neighbours of a target in this hop.
    pub fn drawn(&self, target: usize) -> usize {
        (self.offsets[target + 1] - self.offsets[target]) as usize
    }

    /// Neighbours of a target in the graph.
    pub fn degree(&self, target: usize) -> usize {
        self.degrees.as_ref().map_or_else(|| self.drawn(target), |all| all[target] as usize)
    }
}

/// Everything that one gradient step reads.
pub struct Batch<'a> {
    /// What the first layer reads.
    pub input: Rows<'a>,
    /// One per graph layer, first layer first.
    pub hops: Vec<Hop<'a>>,
    pub goal: Goal<'a>,
    /// Nodes whose features the first layer reads, where they were collected.
    pub sources: Vec<u32>,
}

/// The factor of a node in symmetric normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roots {
    /// 1/√(1 + degree): the node itself counts as a neighbour.
    WithSelf,
    /// 1/√degree.
    WithoutSelf,
}

impl Roots {
    fn of_graph(self, graph: &Graph) -> &[f32] {
        match self {
            Self::WithSelf => graph.roots(),
            Self::WithoutSelf => graph.edge_roots(),
        }
    }
}

/// What a model wants of its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Graph layers.
    pub hops: usize,
    /// Some layer normalises symmetrically, by these factors.
    pub roots: Option<Roots>,
    /// The first layer can read rows straight from the table of features, by node. Otherwise the
    /// rows are collected, each once.
    pub direct: bool,
}

impl<'a> Batch<'a> {
    /// The whole graph; the loss is over `nodes`.
    pub fn whole(data: &'a Dataset, nodes: &'a [u32], needs: Needs) -> Self {
        let graph = &data.graph;
        let hop = |_| Hop {
            inputs: graph.nodes(),
            own: None,
            offsets: Cow::Borrowed(graph.offsets()),
            columns: Cow::Borrowed(graph.targets()),
            weights: graph.weights().map(Cow::Borrowed),
            degrees: None,
            roots: Cow::Borrowed(needs.roots.map_or(&[], |roots| roots.of_graph(graph))),
            symmetric: true,
        };
        Self {
            input: Rows::all(&data.features),
            hops: (0..needs.hops).map(hop).collect(),
            goal: Goal::Labels { rows: Cow::Borrowed(nodes), nodes: Cow::Borrowed(nodes) },
            sources: vec![],
        }
    }
}

/// Draws batches from one dataset; holds the scratch for it.
pub struct Sampler {
    /// The number of each node within the inputs being collected, else `u32::MAX`.
    pub(crate) number: Vec<u32>,
}

impl Sampler {
    pub fn new(nodes: usize) -> Self {
        Self { number: vec![u32::MAX; nodes] }
    }

    /// `seeds` and as many hops of neighbours as the model has graph layers.
    pub fn batch<'a>(
        &mut self,
        data: &'a Dataset,
        seeds: Vec<u32>,
        fanout: &Fanout,
        needs: Needs,
        random: &mut Pcg64Mcg,
    ) -> Batch<'a> {
        let direct = needs.direct && matches!(data.features, Features::Dense { .. });
        let mut hops = Vec::with_capacity(needs.hops);
        let mut targets = seeds.clone();
        // From the outputs back to the inputs.
        for hop in (0..needs.hops).rev() {
            let most = fanout.most(needs.hops - 1 - hop);
            let drawn = Drawn::draw(&data.graph, &targets, most, random);
            if hop == 0 && direct {
                hops.push(drawn.hop(data.graph.nodes(), Some(std::mem::take(&mut targets))));
            } else {
                let columns = self.collect(&mut targets, &drawn.columns);
                let all = needs.roots.map(|roots| roots.of_graph(&data.graph));
                let root = |all: &[f32]| targets.iter().map(|node| all[*node as usize]).collect();
                let roots: Vec<f32> = all.map_or(vec![], root);
                let drawn = Drawn { columns, ..drawn };
                hops.push(Hop { roots: Cow::Owned(roots), ..drawn.hop(targets.len(), None) });
            }
        }
        hops.reverse();
        let input = if direct && needs.hops > 0 {
            Rows::all(&data.features)
        } else if data.features.is_sizes_only() {
            // Their learner fetches them.
            Rows::dense(&[], data.features.dim())
        } else {
            Rows::collect(&data.features, &targets)
        };
        let rows = (0..seeds.len() as u32).collect();
        let goal = Goal::Labels { rows: Cow::Owned(rows), nodes: Cow::Owned(seeds) };
        Batch { input, hops, goal, sources: targets }
    }

    /// Appends to `nodes` what `found` adds to them; `found` in numbers of that list.
    pub(crate) fn collect(&mut self, nodes: &mut Vec<u32>, found: &[u32]) -> Vec<u32> {
        for (number, node) in nodes.iter().enumerate() {
            self.number[*node as usize] = number as u32;
        }
        let numbers = found
            .iter()
            .map(|node| {
                let number = &mut self.number[*node as usize];
                if *number == u32::MAX {
                    *number = nodes.len() as u32;
                    nodes.push(*node);
                }
                *number
            })
            .collect();
        for node in nodes.iter() {
            self.number[*node as usize] = u32::MAX;
        }
        numbers
    }
}

/// The neighbours drawn for some targets, by node.
struct Drawn {
    offsets: Vec<u64>,
    columns: Vec<u32>,
    /// One per column, if edges have weights.
    weights: Option<Vec<f32>>,
    degrees: Vec<u32>,
}

impl Drawn {
    /// Draws up to `most` neighbours of each target.
    fn draw(graph: &Graph, targets: &[u32], most: usize, random: &mut Pcg64Mcg) -> Self {
        // By degree: `most` alone may ask for far more memory than there are edges.
        let room = targets.iter().map(|target| graph.degree(*target).min(most)).sum();
        let mut drawn = Self {
            offsets: Vec::with_capacity(targets.len() + 1),
            columns: Vec::with_capacity(room),
            weights: graph.weights().map(|_| Vec::with_capacity(room)),
            degrees: Vec::with_capacity(targets.len()),
        };
        drawn.offsets.push(0);
        let (mut places, mut chosen) = (vec![], vec![]);
        for target in targets {
            let all = graph.neighbours(*target);
            match (&mut drawn.weights, graph.weights_of(*target)) {
                (Some(weights), Some(of_all)) if most < all.len() => {
                    // The same draws, of places instead of neighbours.
                    places.extend(places.len() as u32..all.len() as u32);
                    chosen.clear();
                    choose(&places[..all.len()], most, &mut chosen, random);
                    drawn.columns.extend(chosen.iter().map(|place| all[*place as usize]));
                    weights.extend(chosen.iter().map(|place| of_all[*place as usize]));
                }
                (Some(weights), Some(of_all)) => {
                    drawn.columns.extend_from_slice(all);
                    weights.extend_from_slice(of_all);
                }
                _ if most < all.len() => choose(all, most, &mut drawn.columns, random),
                _ => drawn.columns.extend_from_slice(all),
            }
            drawn.degrees.push(all.len() as u32);
            drawn.offsets.push(drawn.columns.len() as u64);
        }
        drawn
    }

    /// Over so many inputs, among which the targets have these rows; `None`: the first ones.
    fn hop<'a>(self, inputs: usize, own: Option<Vec<u32>>) -> Hop<'a> {
        Hop {
            inputs,
            own,
            offsets: Cow::Owned(self.offsets),
            columns: Cow::Owned(self.columns),
            weights: self.weights.map(Cow::Owned),
            degrees: Some(self.degrees),
            roots: Cow::Borrowed(&[]),
            symmetric: false,
        }
    }
}

/// `most` of `all`, each set as likely as any other (Floyd): one draw an element, and as few are
/// wanted, looking through those already drawn is quicker than any table.
fn choose(all: &[u32], most: usize, into: &mut Vec<u32>, random: &mut Pcg64Mcg) {
    let start = into.len();
    for last in all.len() - most..all.len() {
        let drawn = all[random.random_range(0..=last as u32) as usize];
        let fresh = !into[start..].contains(&drawn);
        into.push(if fresh { drawn } else { all[last] });
    }
}

/// `count` of `from`, without replacement, in the order drawn; all of them if there are no more.
pub fn draw(from: &[u32], count: usize, random: &mut Pcg64Mcg) -> Vec<u32> {
    if count >= from.len() {
        return from.to_vec();
    }
    rand::seq::index::sample(random, from.len(), count).iter().map(|at| from[at]).collect()
}
