//! Generated graphs on which cut edges matter, of any size, from a seed.
//!
//! Nodes belong to communities, which partitioners find, and to classes, which models learn. The
//! features of one node say little about its class; those of all its neighbours together say much.
//! Two settings decide what a worker that sees only its own part can learn: how often an edge inside
//! of a community, and one between communities, joins nodes of the same class.

use std::ops::Range;
use std::path::Path;

use hither_core::seed;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt};
use rand_distr::StandardNormal;
use rayon::prelude::*;

use crate::load::{self, FeatureShape};
use crate::named::named;
use crate::{Dataset, Error, Features, Graph, Labels, Metric, Split};

/// Nodes that draw from one random stream. Changing it changes every generated graph.
const BLOCK_NODES: usize = 1024;
/// Features that are made in parallel before they are written: at most so many bytes and blocks, at
/// least one block.
const BYTES_AT_ONCE: usize = 64 << 20;
const BLOCKS_AT_ONCE: usize = 64;
/// Upper bound: above it, the first node of a class would be everybody's neighbour.
const TAIL_MAX: f64 = 0.9;

/// The settings of a generated graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub name: String,
    pub nodes: usize,
    pub classes: usize,
    pub communities: usize,
    /// Average number of neighbours, before repeated edges are dropped.
    pub degree: f64,
    /// Skew of the degrees: 0 makes them alike; near 1, a few nodes have very many neighbours. The
    /// degree of the r-th largest node falls as r to this power.
    pub tail: f64,
    /// Share of edges between communities.
    pub leaving: f64,
    /// Share of edges that join nodes of the same class, inside of communities.
    pub homophily_inside: f64,
    /// Share of edges that join nodes of the same class, between communities.
    pub homophily_outside: f64,
    /// Skew of the classes: 0 spreads them evenly over communities; 1 gives each community one.
    pub skew: f64,
    pub feature_dim: usize,
    /// Distance of a class's mean from the origin; the noise has deviation 1 per dimension.
    pub signal: f64,
    /// Shares of training and validation nodes; the rest are test nodes.
    pub train: f64,
    pub valid: f64,
    pub seed: u64,
}

named! {
    /// Presets.
    pub enum Family("graph family") {
        /// Only edges between communities join nodes of the same class: what a worker sees teaches it to ignore
        /// neighbours.
        CutHomophily = "cut-homophily",
        /// All edges say something about the class, features say little: each cut edge is missed.
        NoisyFeatures = "noisy-features",
    }
}

impl Settings {
    /// The preset of a family.
    pub fn for_family(family: Family, nodes: usize, seed: u64) -> Self {
        let shared = Self {
            name: family.name().into(),
            nodes,
            classes: 8,
            communities: 64,
            degree: 20.0,
            tail: 0.3,
            leaving: 0.4,
            homophily_inside: 0.125,
            homophily_outside: 0.8,
            skew: 0.0,
            feature_dim: 64,
            signal: 1.5,
            train: 0.6,
            valid: 0.2,
            seed,
        };
        match family {
            Family::CutHomophily => shared,
            Family::NoisyFeatures => {
                Self { homophily_inside: 0.4, homophily_outside: 0.4, skew: 0.8, ..shared }
            }
        }
    }

    /// Numbers of training and validation nodes.
    fn counts(&self) -> (usize, usize) {
        let share = |share: f64| (self.nodes as f64 * share).round() as usize;
        let train = share(self.train).min(self.nodes);
        (train, share(self.valid).min(self.nodes - train))
    }

    /// Edges that are drawn, before repeated ones are dropped.
    pub fn edges(&self) -> f64 {
        self.nodes as f64 * self.degree / 2.0
    }

    /// Size of the file that [`write`] makes, at most.
    pub fn file_bytes(&self) -> u64 {
        // An offset, a label, a place in the split and the features of each node; each edge from
        // both ends.
        let per_node =
            size_of::<u64>() + 2 * size_of::<u32>() + size_of::<f32>() * self.feature_dim;
        (self.nodes as f64 * per_node as f64 + self.edges() * 2.0 * size_of::<u32>() as f64) as u64
    }

    /// Memory that [`write`] takes at its peak, while the drawn edges become rows of neighbours.
    pub fn memory_bytes(&self) -> u64 {
        // An edge as a pair of nodes, and in the rows of both; for each node its number, its offset,
        // its outgoing edges, and a slice of the neighbours with its length.
        let (per_edge, per_node) = (2 * size_of::<(u32, u32)>(), 14 * size_of::<u32>());
        let graph = self.edges() * per_edge as f64 + self.nodes as f64 * per_node as f64;
        let features = self.nodes_at_once() * self.feature_dim * size_of::<f32>();
        graph as u64 + features as u64
    }

    /// Nodes whose features are made before they are written.
    fn nodes_at_once(&self) -> usize {
        let block_bytes = BLOCK_NODES * self.feature_dim * size_of::<f32>();
        BLOCK_NODES * (BYTES_AT_ONCE / block_bytes.max(1)).clamp(1, BLOCKS_AT_ONCE)
    }

    /// Fails unless a graph with these settings exists.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |problem: String| Err(Error::Settings(problem));
        let shares = [
            ("tail", self.tail, TAIL_MAX),
            ("leaving", self.leaving, 1.0),
            ("homophily_inside", self.homophily_inside, 1.0),
            ("homophily_outside", self.homophily_outside, 1.0),
            ("skew", self.skew, 1.0),
            ("train", self.train, 1.0),
            ("valid", self.valid, 1.0),
        ];
        for (name, value, max) in shares {
            if !(0.0..=max).contains(&value) {
                return bad(format!("{name} is {value}; expected 0 to {max}"));
            }
        }
        if self.train + self.valid > 1.0 {
            let (train, valid) = (self.train, self.valid);
            return bad(format!(
                "train is {train} and valid is {valid}; expected shares that leave nodes for the test"
            ));
        }
        if self.nodes == 0 || self.nodes >= u32::MAX as usize {
            return bad(format!("{} nodes; expected 1 to {}", self.nodes, u32::MAX - 1));
        }
        if self.classes < 2 || self.communities == 0 {
            return bad("expected at least 2 classes and 1 community".into());
        }
        let groups = self.classes.saturating_mul(self.communities);
        if groups > self.nodes {
            return bad(format!(
                "{} nodes are too few for {} classes in each of {} communities: expected at least \
                 {groups} nodes, or fewer communities",
                self.nodes, self.classes, self.communities
            ));
        }
        if self.communities == 1 && self.leaving > 0.0 {
            return bad("a single community has no edges that leave it: set leaving to 0".into());
        }
        let degree_max = (self.nodes / groups).max(1) as f64 * self.classes as f64;
        if !(self.degree >= 0.0 && self.degree <= degree_max) {
            return bad(format!(
                "the degree is {}; expected 0 to {degree_max}, the size of a community: lower it, or take \
                 more nodes or fewer communities",
                self.degree
            ));
        }
        let (train, valid) = self.counts();
        for (name, count) in
            [("train", train), ("valid", valid), ("test", self.nodes - train - valid)]
        {
            if count == 0 {
                return bad(format!(
                    "the {name} set is empty: raise its share, or the number of nodes"
                ));
            }
        }
        if self.feature_dim == 0 || self.feature_dim > 1 << 20 || !self.signal.is_finite() {
            return bad("expected 1 to 1048576 features and a finite signal".into());
        }
        Ok(())
    }
}

/// A graph in memory.
pub fn generate(settings: &Settings) -> Result<Dataset, Error> {
    let plan = Plan::new(settings)?;
    let (graph, labels, split) = (plan.graph(&|_| ())?, plan.labels(), plan.split());
    let dim = settings.feature_dim;
    let mut values = vec![0.0; settings.nodes * dim];
    let means = plan.means();
    values.par_chunks_mut(BLOCK_NODES * dim).enumerate().for_each(|(block, rows)| {
        plan.fill_features(block, &means, &labels, rows);
    });
    let features = Features::Dense { values: values.into(), dim };
    let labels = Labels::Classes { of: labels.into(), count: settings.classes };
    let name = settings.name.clone();
    let dataset = Dataset::new(name, graph, features, labels, split, Metric::Accuracy);
    dataset.check()?;
    Ok(dataset)
}

/// Writes the same graph in our own layout, without ever holding all features in memory. Calls `done`
/// with the number of nodes that got their edges, and again with those that got their features.
pub fn write(settings: &Settings, path: &Path, done: &(dyn Fn(usize) + Sync)) -> Result<(), Error> {
    let plan = Plan::new(settings)?;
    let (graph, of, split) = (plan.graph(done)?, plan.labels(), plan.split());
    let dim = settings.feature_dim;
    let labels = Labels::Classes { of: of.clone().into(), count: settings.classes };
    let features = Features::Dense { values: vec![].into(), dim };
    let name = settings.name.clone();
    let dataset = Dataset::new(name, graph, features, labels, split, Metric::Accuracy);
    let mut out = load::begin(path, &dataset, FeatureShape::Dense { dim })?;
    drop(dataset);
    let means = plan.means();
    let rows_at_once = settings.nodes_at_once();
    let mut values = vec![0.0; rows_at_once.min(settings.nodes) * dim];
    for start in (0..settings.nodes).step_by(rows_at_once) {
        let rows = rows_at_once.min(settings.nodes - start);
        let values = &mut values[..rows * dim];
        values.par_chunks_mut(BLOCK_NODES * dim).enumerate().for_each(|(block, rows)| {
            plan.fill_features(start / BLOCK_NODES + block, &means, &of, rows);
        });
        out.write(bytemuck::cast_slice(values))?;
        done(rows);
    }
    Ok(out.finish()?)
}

/// Nodes stand in line by community and class, and get random numbers, so that a number says nothing
/// about a node.
struct Plan<'a> {
    settings: &'a Settings,
    /// Where each class of each community begins in the line, and where the last one ends.
    starts: Vec<u32>,
    /// The number of each place in the line.
    numbers: Vec<u32>,
}

impl<'a> Plan<'a> {
    fn new(settings: &'a Settings) -> Result<Self, Error> {
        settings.check()?;
        let Settings { nodes, classes, communities, skew, seed, .. } = *settings;
        let mut starts = Vec::with_capacity(classes * communities + 1);
        for community in 0..communities {
            let start = (nodes * community / communities) as f64;
            let size = (nodes * (community + 1) / communities) as f64 - start;
            // The preferred class has the share that skew gives it on top of an even one.
            let mut before = 0.0;
            for class in 0..classes {
                starts.push((start + before * size).round() as u32);
                let preferred = class == community % classes;
                before += (1.0 - skew) / classes as f64 + if preferred { skew } else { 0.0 };
            }
        }
        starts.push(nodes as u32);
        let mut numbers: Vec<u32> = (0..nodes as u32).collect();
        numbers.shuffle(&mut seed::stream(seed, "numbers"));
        Ok(Self { settings, starts, numbers })
    }

    fn group(&self, community: usize, class: usize) -> Range<u32> {
        let at = community * self.settings.classes + class;
        self.starts[at]..self.starts[at + 1]
    }

    fn community(&self, community: usize) -> Range<u32> {
        let at = community * self.settings.classes;
        self.starts[at]..self.starts[at + self.settings.classes]
    }

    fn labels(&self) -> Vec<u32> {
        let mut of = vec![0; self.numbers.len()];
        for (group, bounds) in self.starts.windows(2).enumerate() {
            for place in bounds[0]..bounds[1] {
                of[self.numbers[place as usize] as usize] = (group % self.settings.classes) as u32;
            }
        }
        of
    }

    fn split(&self) -> Split {
        let Settings { nodes, seed, .. } = *self.settings;
        let mut order: Vec<u32> = (0..nodes as u32).collect();
        order.shuffle(&mut seed::stream(seed, "split"));
        let (train, valid) = self.settings.counts();
        let mut test = order.split_off(train + valid);
        let mut valid = order.split_off(train);
        order.par_sort_unstable();
        valid.par_sort_unstable();
        test.par_sort_unstable();
        Split { train: order, valid, test }
    }

    fn graph(&self, done: &(dyn Fn(usize) + Sync)) -> Result<Graph, Error> {
        let nodes = self.settings.nodes;
        let blocks: Vec<Vec<(u32, u32)>> = (0..nodes.div_ceil(BLOCK_NODES))
            .into_par_iter()
            .map(|block| {
                let edges = self.edges(block);
                done(BLOCK_NODES.min(nodes - block * BLOCK_NODES));
                edges
            })
            .collect();
        let edges = blocks.concat();
        drop(blocks);
        let none = || Error::Settings("an edge leads to a node that is not there".into());
        Graph::from_edges(nodes, &edges).ok_or_else(none)
    }

    /// Edges that the nodes of a block draw: half of their degree.
    fn edges(&self, block: usize) -> Vec<(u32, u32)> {
        let Settings { nodes, classes, degree, tail, seed, .. } = *self.settings;
        let mut random = seed::stream(seed, &format!("edges {block}"));
        let places = block * BLOCK_NODES..((block + 1) * BLOCK_NODES).min(nodes);
        let mut edges = Vec::with_capacity((places.len() as f64 * degree / 2.0) as usize);
        let mut group = self.starts.partition_point(|start| *start as usize <= places.start) - 1;
        for place in places {
            while self.starts[group + 1] as usize <= place {
                group += 1;
            }
            let (community, class) = (group / classes, group % classes);
            let Range { start, end } = self.group(community, class);
            let rank = (place as f64 - f64::from(start) + 0.5) / f64::from(end - start);
            // Mean 1 over the ranks of a group.
            let weight = (1.0 - tail) * rank.powf(-tail);
            let expected = weight * degree / 2.0;
            let more = random.random::<f64>() < expected.fract();
            for _ in 0..expected as usize + usize::from(more) {
                let other = self.other_end(community, class, &mut random);
                edges.push((self.numbers[place], self.numbers[other as usize]));
            }
        }
        edges
    }

    /// A place in the line for an edge from a node of this community and class.
    fn other_end(&self, community: usize, class: usize, random: &mut impl Rng) -> u32 {
        let Settings { classes, communities, tail, leaving, .. } = *self.settings;
        let leaves = random.random::<f64>() < leaving;
        let (community, homophily) = if leaves {
            let step = random.random_range(1..communities);
            ((community + step) % communities, self.settings.homophily_outside)
        } else {
            (community, self.settings.homophily_inside)
        };
        let same = random.random::<f64>() < homophily;
        let step = if same { 0 } else { random.random_range(1..classes) };
        let group = self.group(community, (class + step) % classes);
        let group = if group.is_empty() { self.community(community) } else { group };
        let size = group.end - group.start;
        let rank = random.random::<f64>();
        let rank = if tail > 0.0 { rank.powf(1.0 / (1.0 - tail)) } else { rank };
        group.start + ((rank * f64::from(size)) as u32).min(size - 1)
    }

    /// One random direction per class, each `signal` long.
    fn means(&self) -> Vec<f32> {
        let Settings { classes, feature_dim, signal, seed, .. } = *self.settings;
        let mut random = seed::stream(seed, "means");
        let mut means = Vec::with_capacity(classes * feature_dim);
        for _ in 0..classes {
            let mean: Vec<f32> =
                (0..feature_dim).map(|_| random.sample::<f32, _>(StandardNormal)).collect();
            let length = mean.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
            means.extend(mean.iter().map(|x| x / length * signal as f32));
        }
        means
    }

    fn fill_features(&self, block: usize, means: &[f32], labels: &[u32], rows: &mut [f32]) {
        let Settings { feature_dim, seed, .. } = *self.settings;
        let mut random = seed::stream(seed, &format!("features {block}"));
        for (row, node) in rows.chunks_exact_mut(feature_dim).zip(block * BLOCK_NODES..) {
            let class = labels[node] as usize;
            let mean = &means[class * feature_dim..(class + 1) * feature_dim];
            for (value, mean) in row.iter_mut().zip(mean) {
                *value = mean + random.sample::<f32, _>(StandardNormal);
            }
        }
    }
}
