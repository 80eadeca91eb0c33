//! A batch of edges, the unlinked nodes that they are told from, and the loss.

use hither_core::record::train::Work;
use hither_kernels::gemm::{Matrix, product};
use hither_kernels::memory::{Buffer, stale, zeros};
use hither_kernels::vector;
use rand::RngExt;
use rand::seq::index::sample;
use rand_pcg::Pcg64Mcg;
use rayon::prelude::*;

use crate::Dataset;
use crate::named::named;
use crate::sample::{Batch, Fanout, Needs, Sampler};
use crate::task::{Goal, Objective};

/// Edges whose products with all negatives are computed at once: they stay in the second-level cache.
const BLOCK: usize = 256;
/// Draws of an unlinked node before a linked one is taken, for nodes that are linked to nearly all.
const TRIES: usize = 32;
/// Largest exponent, below that of a cosine of 1, at which the softmax keeps its digits: `vector::exp` is
/// 0 below −87.
const DEPTH_MAX: f32 = 60.0;

named! {
    /// How linked nodes are told from others.
    pub enum Loss("loss of links") {
        /// Softmax over the cosine with the linked node and with nodes drawn for the whole step (sampled softmax).
        Softmax = "softmax",
        /// The linked node's product above that of an unlinked one (Bayesian personalised ranking).
        Bpr = "bpr",
        /// Linked or not, by the product (binary cross-entropy).
        Bce = "bce",
    }
}

named! {
    /// How the nodes are drawn that stand for the unlinked ones.
    pub enum NegativesBy("way to draw negatives") {
        /// All alike.
        Nodes = "nodes",
        /// By their numbers of links, as the targets of random links.
        Links = "links",
    }
}

/// The edges of a step and the nodes that they are told from, as rows of the model's outputs.
#[derive(Clone, Debug)]
pub struct Pairs {
    pub objective: Objective,
    pub sources: Vec<u32>,
    pub targets: Vec<u32>,
    /// With softmax those of all edges together, else as many for each edge.
    pub negatives: Vec<u32>,
    /// With softmax, by edge: the places in `negatives` of nodes that its source is linked to.
    linked_ends: Vec<usize>,
    linked: Vec<u32>,
}

/// The number of training edges: in a user–item graph each once, else each from both ends.
pub fn examples(data: &Dataset) -> u32 {
    let users = data.links.as_ref().and_then(|links| links.users);
    let all = data.graph.offsets()[users.unwrap_or(data.graph.nodes())];
    u32::try_from(all).unwrap_or(u32::MAX)
}

/// The same edges seen from their other ends, where those are examples too: between nodes of one kind.
pub fn mirrors(data: &Dataset, examples: &[u32]) -> Vec<u32> {
    if data.links.as_ref().is_some_and(|links| links.users.is_some()) {
        return vec![];
    }
    let mirror = |at: &u32| {
        let target = data.graph.targets()[*at as usize];
        data.place_of(target, source_of(data, *at))
    };
    examples.iter().filter_map(mirror).collect()
}

/// The node whose row holds this entry of the graph.
fn source_of(data: &Dataset, at: u32) -> u32 {
    let after = data.graph.offsets().partition_point(|start| *start <= u64::from(at));
    after as u32 - 1
}

/// Draws negatives for some edges, and the neighbours that the model reads: with all neighbours, the
/// whole graph at once.
pub fn batch<'a>(
    objective: &Objective,
    sampler: &mut Sampler,
    data: &'a Dataset,
    examples: &[u32],
    fanout: &Fanout,
    needs: Needs,
    random: &mut Pcg64Mcg,
) -> Batch<'a> {
    let mut pairs = Pairs::draw(objective, data, examples, &mut sampler.number, random);
    let mut batch = if *fanout == Fanout::All {
        Batch::whole(data, &[], needs)
    } else {
        let mut seeds = vec![];
        for rows in [&mut pairs.sources, &mut pairs.targets, &mut pairs.negatives] {
            *rows = sampler.collect(&mut seeds, rows);
        }
        sampler.batch(data, seeds, fanout, needs, random)
    };
    batch.goal = Goal::Links(pairs);
    batch
}

impl Pairs {
    /// These edges and negatives, as nodes of the graph.
    pub fn from_nodes(
        objective: &Objective,
        data: &Dataset,
        sources: Vec<u32>,
        targets: Vec<u32>,
        negatives: Vec<u32>,
    ) -> Self {
        let (linked_ends, linked) = (vec![], vec![]);
        let mut pairs =
            Self { objective: *objective, sources, targets, negatives, linked_ends, linked };
        if objective.loss == Loss::Softmax {
            pairs.find_linked(data, &mut vec![u32::MAX; data.graph.nodes()]);
        }
        pairs
    }

    /// Edges by their places in the graph's rows. `place` is scratch, all `u32::MAX` before and after.
    fn draw(
        objective: &Objective,
        data: &Dataset,
        examples: &[u32],
        place: &mut [u32],
        random: &mut Pcg64Mcg,
    ) -> Self {
        let mut pairs = Self {
            objective: *objective,
            sources: examples.iter().map(|at| source_of(data, *at)).collect(),
            targets: examples.iter().map(|at| data.graph.targets()[*at as usize]).collect(),
            negatives: vec![],
            linked_ends: vec![],
            linked: vec![],
        };
        match objective.loss {
            Loss::Softmax => {
                pairs.negatives = match objective.negatives_by {
                    NegativesBy::Nodes => {
                        let all = data.candidates();
                        match objective.negatives < all.len() {
                            true => sample(random, all.len(), objective.negatives)
                                .iter()
                                .map(|at| all.start + at as u32)
                                .collect(),
                            false => all.collect(),
                        }
                    }
                    NegativesBy::Links => {
                        let targets = (0..objective.negatives).map(|_| data.draw_target(random));
                        let mut targets: Vec<u32> = targets.collect();
                        targets.sort_unstable();
                        targets.dedup();
                        targets
                    }
                };
                pairs.find_linked(data, place);
            }
            Loss::Bpr | Loss::Bce => {
                let by = objective.negatives_by;
                for source in &pairs.sources {
                    for _ in 0..objective.negatives {
                        pairs.negatives.push(data.draw_unlinked(*source, by, |_| false, random));
                    }
                }
            }
        }
        pairs
    }

    /// Negatives that are no negatives of an edge: the neighbours of its source, and the source itself.
    fn find_linked(&mut self, data: &Dataset, place: &mut [u32]) {
        for (at, node) in (0..).zip(&self.negatives) {
            place[*node as usize] = at;
        }
        for source in &self.sources {
            let near = data.graph.neighbours(*source).iter().chain([source]);
            let places = near.map(|node| place[*node as usize]);
            self.linked.extend(places.filter(|place| *place != u32::MAX));
            self.linked_ends.push(self.linked.len());
        }
        for node in &self.negatives {
            place[*node as usize] = u32::MAX;
        }
    }

    /// The mean loss of outputs of `dim` columns; its gradient is added to `dy`.
    pub fn loss(&self, outputs: &[f32], dim: usize, dy: Option<&mut [f32]>) -> f64 {
        if self.sources.is_empty() {
            return 0.0;
        }
        match self.objective.loss {
            Loss::Softmax => self.softmax(outputs, dim, dy),
            Loss::Bpr | Loss::Bce => self.pairwise(outputs, dim, dy),
        }
    }

    /// Multiply–adds of the loss, with its gradient if `backward`.
    pub fn work(&self, dim: usize, backward: bool) -> Work {
        let compared = match self.objective.loss {
            Loss::Softmax => self.sources.len() * self.negatives.len(),
            Loss::Bpr | Loss::Bce => self.negatives.len(),
        };
        Work::products(compared, dim, if backward { 3 } else { 1 })
    }

    /// −log softmax of the linked node's cosine among the negatives', all divided by the temperature.
    fn softmax(&self, outputs: &[f32], dim: usize, dy: Option<&mut [f32]>) -> f64 {
        let (edges, width) = (self.sources.len(), self.negatives.len());
        let unit = |rows: &[u32]| UnitRows::collect(outputs, dim, rows);
        let (sources, targets) = (unit(&self.sources), unit(&self.targets));
        let negatives = unit(&self.negatives);
        let wants_gradient = dy.is_some();
        let sharpness = 1.0 / self.objective.temperature;
        let mut d_sources = stale(if wants_gradient { edges * dim } else { 0 });
        let mut d_negatives = zeros(if wants_gradient { width * dim } else { 0 });
        let mut own = Vec::with_capacity(edges);
        let mut total = 0.0;
        let mut cosines = stale(BLOCK.min(edges) * width);
        for start in (0..edges).step_by(BLOCK) {
            let block = start..(start + BLOCK).min(edges);
            let rows = &sources.values[block.start * dim..block.end * dim];
            let rows = Matrix::new(rows, block.len(), dim);
            let all = Matrix::new(&negatives.values, width, dim);
            let cosines = &mut cosines[..block.len() * width];
            product(rows, all.t(), None, cosines, false);
            let one = |(edge, row): (usize, &mut [f32])| {
                let cosine = dot(sources.row(edge), targets.row(edge));
                self.shares(edge, cosine, sharpness, row)
            };
            let terms = block.clone().into_par_iter().zip(cosines.par_chunks_exact_mut(width));
            let terms: Vec<(f64, f32)> = terms.map(one).collect();
            total += terms.iter().map(|(loss, _)| loss).sum::<f64>();
            own.extend(terms.iter().map(|(_, share)| *share));
            if wants_gradient {
                let shares = Matrix::new(cosines, block.len(), width);
                let grads = &mut d_sources[block.start * dim..block.end * dim];
                product(shares, all, None, grads, false);
                product(shares.t(), rows, None, &mut d_negatives, true);
            }
        }
        if let Some(dy) = dy {
            let scale = sharpness / edges as f32;
            for (edge, share) in own.iter().enumerate() {
                let more = (share - 1.0) * scale;
                let mut d_target: Vec<f32> = sources.row(edge).iter().map(|x| more * x).collect();
                let d_source = &mut d_sources[edge * dim..(edge + 1) * dim];
                d_source
                    .iter_mut()
                    .zip(targets.row(edge))
                    .for_each(|(d, x)| *d = *d * scale + more * x);
                sources.add_gradient(edge, d_source, self.sources[edge], dy);
                targets.add_gradient(edge, &mut d_target, self.targets[edge], dy);
            }
            for (at, node) in self.negatives.iter().enumerate() {
                let grad = &mut d_negatives[at * dim..(at + 1) * dim];
                grad.iter_mut().for_each(|d| *d *= scale);
                negatives.add_gradient(at, grad, *node, dy);
            }
        }
        total / edges as f64
    }

    /// Turns the cosines with all negatives into their shares of the softmax. Returns the loss and the
    /// share of the linked node, whose cosine is given.
    fn shares(&self, edge: usize, cosine: f32, sharpness: f32, row: &mut [f32]) -> (f64, f32) {
        let start = edge.checked_sub(1).map_or(0, |before| self.linked_ends[before]);
        for place in &self.linked[start..self.linked_ends[edge]] {
            row[*place as usize] = f32::NEG_INFINITY;
        }
        // No cosine is above 1. At low temperatures all may be so far below it that their exponentials vanish:
        // then the largest one is the bound.
        let largest = row.iter().copied().fold(cosine, f32::max);
        let bound = if (1.0 - largest) * sharpness < DEPTH_MAX { 1.0 } else { largest };
        row.iter_mut().for_each(|cosine| *cosine *= sharpness);
        let others = vector::exp_sum(row, bound * sharpness);
        let linked = ((cosine - bound) * sharpness).exp();
        let sum = others + linked;
        row.iter_mut().for_each(|share| *share /= sum);
        let loss = f64::from(sum).ln() - f64::from((cosine - bound) * sharpness);
        (loss, linked / sum)
    }

    /// Each edge against its own negatives, by products.
    fn pairwise(&self, outputs: &[f32], dim: usize, mut dy: Option<&mut [f32]>) -> f64 {
        let each = self.negatives.len() / self.sources.len();
        let share = 1.0 / self.negatives.len().max(1) as f32;
        let row = |node: u32| &outputs[node as usize * dim..(node as usize + 1) * dim];
        let mut total = 0.0;
        for (at, negative) in self.negatives.iter().enumerate() {
            let (source, target) = (self.sources[at / each], self.targets[at / each]);
            let (u, v, w) = (row(source), row(target), row(*negative));
            let (linked, other) = (dot(u, v), dot(u, w));
            // Slopes of the loss by both products.
            let (loss, by_linked, by_other) = match self.objective.loss {
                Loss::Bce => {
                    (softplus(-linked) + softplus(other), -sigmoid(-linked), sigmoid(other))
                }
                _ => {
                    let slope = -sigmoid(other - linked);
                    (softplus(other - linked), slope, -slope)
                }
            };
            total += f64::from(loss);
            if let Some(dy) = &mut dy {
                let (by_linked, by_other) = (by_linked * share, by_other * share);
                for column in 0..dim {
                    let at = |node: u32| node as usize * dim + column;
                    dy[at(source)] += by_linked * v[column] + by_other * w[column];
                    dy[at(target)] += by_linked * u[column];
                    dy[at(*negative)] += by_other * u[column];
                }
            }
        }
        total * f64::from(share)
    }
}

/// Some rows of the outputs, each divided by its length.
struct UnitRows {
    values: Buffer,
    lengths: Vec<f32>,
    dim: usize,
}

impl UnitRows {
    fn collect(outputs: &[f32], dim: usize, rows: &[u32]) -> Self {
        let mut values = stale(rows.len() * dim);
        let fill = |(unit, row): (&mut [f32], &u32)| {
            let start = *row as usize * dim;
            let row = &outputs[start..start + dim];
            // A node without edges may have a row of zeros.
            let length = dot(row, row).sqrt().max(1e-12);
            unit.iter_mut().zip(row).for_each(|(unit, value)| *unit = value / length);
            length
        };
        let lengths =
            values.par_chunks_exact_mut(dim).zip(rows).with_min_len(256).map(fill).collect();
        Self { values, lengths, dim }
    }

    fn row(&self, at: usize) -> &[f32] {
        &self.values[at * self.dim..(at + 1) * self.dim]
    }

    /// Adds the gradient of a unit row, through the division, to that of the row it was made of.
    fn add_gradient(&self, at: usize, grad: &mut [f32], row: u32, dy: &mut [f32]) {
        let unit = self.row(at);
        let along = dot(grad, unit);
        let dy = &mut dy[row as usize * self.dim..(row as usize + 1) * self.dim];
        for column in 0..self.dim {
            dy[column] += (grad[column] - along * unit[column]) / self.lengths[at];
        }
    }
}

impl Dataset {
    /// The nodes that a source can be linked to.
    pub fn candidates(&self) -> std::ops::Range<u32> {
        let users = self.links.as_ref().and_then(|links| links.users);
        users.unwrap_or(0) as u32..self.graph.nodes() as u32
    }

    /// A node that `source` is not linked to, in the graph or by an edge outside it.
    pub fn draw_unlinked(
        &self,
        source: u32,
        by: NegativesBy,
        is_linked_outside: impl Fn(u32) -> bool,
        random: &mut Pcg64Mcg,
    ) -> u32 {
        let mut node = 0;
        for _ in 0..TRIES {
            node = match by {
                NegativesBy::Nodes => random.random_range(self.candidates()),
                NegativesBy::Links => self.draw_target(random),
            };
            let is_linked = node == source || self.place_of(source, node).is_some();
            if !is_linked && !is_linked_outside(node) {
                break;
            }
        }
        node
    }

    /// The target of a random link.
    fn draw_target(&self, random: &mut Pcg64Mcg) -> u32 {
        self.graph.targets()[random.random_range(0..examples(self)) as usize]
    }

    /// The place of an edge among the entries of the graph's rows.
    fn place_of(&self, source: u32, node: u32) -> Option<u32> {
        // Rows are in the order of the user's files.
        let number = |node: &u32| self.original_number(*node);
        let row = self.graph.neighbours(source);
        let at = row.binary_search_by_key(&number(&node), number).ok()?;
        Some(self.graph.offsets()[source as usize] as u32 + at as u32)
    }
}

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// log(1 + eˣ), without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
