//! How far workers would pull from where the whole graph does, before any of them has begun.
//!
//! At the same weights, let g be the gradient over the training nodes of a part as its worker sees them, ḡ the mean over
//! the parts, and ∇ the gradient over all training nodes with all their neighbours. Then
//!
//! - κA² = ‖ḡ − ∇‖² is what cut edges do to the average of the workers (uneven parts alone leave it where it is),
//! - κX² = mean ‖g − ḡ‖² is how differently the parts pull.
//!
//! A worker's distance from ∇ is both together. Over few nodes a norm would be mostly noise; so where not all training
//! nodes are taken, it is the product of two differences, of two independent draws, whose expectation is right.

use std::sync::Arc;

use hither_core::record::train::Work;
use hither_core::seed;
use hither_kernels::vector::add_scaled;

use crate::correct::{CHECK_ROWS_MAX, few_enough};
use crate::full_batch::FullBatch;
use crate::local::{Learner, Pace, Steps, Until};
use crate::model::{Model, Spec, Weights};
use crate::partition::Partition;
use crate::sample::{Fanout, draw};
use crate::train::Settings;
use crate::{Dataset, Error};

/// Steps on the whole graph before the measurement, and their nodes: gradients at random weights say little of
/// later ones.
const STEPS: u32 = 10;
const STEP_NODES: usize = 256;
const STEP_NEIGHBOURS: usize = 10;
/// Training nodes per part and draw where steps take some of them; full batches take all.
const NODES: usize = 128;

/// Measures partitions of a graph at the same weights.
pub struct Probe<'a> {
    settings: &'a Settings,
    /// Without dropout, which would be noise here.
    model: Model,
    data: &'a Arc<Dataset>,
    weights: Weights,
    /// Of all that was measured so far.
    pub work: Work,
}

/// How far workers pull from the whole graph's gradient, as squared lengths. Differences of draws may be below 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// κA².
    pub cut: f64,
    /// κX².
    pub uneven: f64,
}

impl<'a> Probe<'a> {
    /// Takes the first steps.
    pub fn new(
        settings: &'a Settings,
        model: &Model,
        data: &'a Arc<Dataset>,
    ) -> Result<Self, Error> {
        let model = Model::new(Spec { dropout: 0.0, ..model.spec.clone() })?;
        let (batch, fanout) = (Some(STEP_NODES), Fanout::AtMost(STEP_NEIGHBOURS));
        let pace = Pace { batch, fanout, ..settings.local.clone() };
        let until = Until::Count(STEPS);
        let steps = Steps { seed: settings.seed, who: "probe", round: 0, until, without: &[] };
        let start = model.start(settings.seed);
        let mut learner = settings.learner(&model, data.clone());
        let learnt = learner.learn(&model, &start, &pace, &steps);
        Ok(Self { settings, model, data, weights: learnt.weights, work: learnt.work })
    }

    /// How far the workers on some parts would pull.
    pub fn drift(&mut self, partition: &Partition) -> Drift {
        let train = self.train_of(partition);
        let all: usize = train.iter().map(Vec::len).sum();
        let shares: Vec<f32> = train.iter().map(|train| train.len() as f32 / all as f32).collect();
        let inside = self.data.graph.inside(&partition.of);
        let inside = Arc::new(Dataset { graph: inside, ..(**self.data).clone() });
        let mut whole = self.settings.learner(&self.model, self.data.clone());
        let mut local = self.settings.learner(&self.model, inside);
        let takes_all = self.takes_all();
        let mut pull = |half: usize| {
            let nodes = |(part, train): (usize, &Vec<u32>)| {
                if takes_all {
                    return train.clone();
                }
                let name = format!("probe/{part}/{half}");
                let some = |count| draw(train, count, &mut seed::stream(self.settings.seed, &name));
                few_enough(NODES, some, &self.data.graph, self.model.needs().hops, CHECK_ROWS_MAX)
            };
            let nodes: Vec<Vec<u32>> = train.iter().enumerate().map(nodes).collect();
            let mut gradients = |learner: &mut Learner, groups: &[Vec<u32>]| -> Vec<Vec<f32>> {
                groups.iter().map(|nodes| self.gradient(learner, nodes)).collect()
            };
            let parts = gradients(&mut local, &nodes);
            // Of all training nodes one pass gives the mean over the parts.
            let whole = match takes_all {
                true => gradients(&mut whole, &[nodes.concat()]).concat(),
                false => mean(&gradients(&mut whole, &nodes), &shares),
            };
            let mean = mean(&parts, &shares);
            let apart = parts.iter().map(|part| difference(part, &mean)).collect();
            Pull { aside: difference(&mean, &whole), apart }
        };
        let first = pull(0);
        let second = if takes_all { None } else { Some(pull(1)) };
        first.times(second.as_ref().unwrap_or(&first), &shares)
    }

    /// Whether all training nodes are measured: where steps take all, and one pass over the whole graph is possible.
    fn takes_all(&self) -> bool {
        let nodes = 0..self.data.graph.nodes() as u32;
        let whole = FullBatch::from_nodes(self.data, nodes);
        self.settings.local.batch.is_none() && whole.check(&self.model).is_ok()
    }

    /// The training nodes of each part that has some.
    fn train_of(&self, partition: &Partition) -> Vec<Vec<u32>> {
        let mut train = vec![vec![]; partition.parts];
        for node in &self.data.split.train {
            train[partition.of[*node as usize] as usize].push(*node);
        }
        train.retain(|train| !train.is_empty());
        train
    }

    fn gradient(&mut self, learner: &mut Learner, nodes: &[u32]) -> Vec<f32> {
        let Self { settings, model, weights, work, .. } = self;
        let (data, name) = (learner.data.clone(), (settings.seed, "probe"));
        let batch = learner.neighbourhood(&data, model, nodes.to_vec(), &Fanout::All, name);
        *work += model.work(&batch, true);
        let mut gradient = vec![0.0; weights.params.len()];
        model.gradient(&mut weights.clone(), &data, &batch, 0, &mut gradient);
        gradient
    }
}

/// Where the workers of some draw pull.
struct Pull {
    /// Of their mean, from the whole graph's gradient.
    aside: Vec<f32>,
    /// Of each part, from their mean.
    apart: Vec<Vec<f32>>,
}

impl Pull {
    /// The squared lengths, each from two draws.
    fn times(&self, other: &Self, shares: &[f32]) -> Drift {
        let products = self.apart.iter().zip(&other.apart).map(|(a, b)| dot(a, b));
        let uneven = products.zip(shares).map(|(product, share)| f64::from(*share) * product).sum();
        Drift { cut: dot(&self.aside, &other.aside), uneven }
    }
}

fn mean(some: &[Vec<f32>], shares: &[f32]) -> Vec<f32> {
    let mut mean = vec![0.0; some.first().map_or(0, Vec::len)];
    some.iter().zip(shares).for_each(|(one, share)| add_scaled(&mut mean, *share, one));
    mean
}

fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}
