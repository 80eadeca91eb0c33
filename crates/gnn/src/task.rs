//! A task (node labels or links) turns example numbers into batches, a loss and scores. The trainer knows only
//! example numbers.

use std::borrow::Cow;

use hither_core::record::train::Work;
use rand_pcg::Pcg64Mcg;

use crate::links::metric::{self, LinkMetric};
use crate::links::pairs::{self, Pairs};
use crate::model::{Inference, Model, Weights};
use crate::sample::{Batch, Fanout, Needs, Sampler};
use crate::{Dataset, loss, score};

/// What is learnt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Task {
    /// The labels of nodes: classes, or several yes-or-no answers. Examples are training nodes.
    #[default]
    Nodes,
    /// Which nodes are linked. Examples are the graph's own edges, by their places in its rows.
    Links(Objective),
}

/// How linked nodes are told from others, and what counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    pub loss: pairs::Loss,
    /// Nodes that stand for the unlinked ones: per step with softmax, else per edge.
    pub negatives: usize,
    pub negatives_by: pairs::NegativesBy,
    /// What cosines are divided by in the softmax.
    pub temperature: f32,
    pub metric: LinkMetric,
    /// Draws the nodes that held-out edges are ranked against, where not all are.
    pub seed: u64,
}

/// What the loss of a batch is taken over.
pub enum Goal<'a> {
    /// Rows of the outputs, and the nodes that they are.
    Labels {
        rows: Cow<'a, [u32]>,
        nodes: Cow<'a, [u32]>,
    },
    Links(Pairs),
}

/// How good a model is, from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// None if there is nothing to validate by.
    pub valid: Option<f64>,
    pub test: f64,
    /// Further scores by their names.
    pub further: Vec<(String, f64)>,
}

impl Task {
    /// Everything there is to learn from in a dataset.
    pub fn examples(&self, data: &Dataset) -> Vec<u32> {
        match self {
            Self::Nodes => data.split.train.clone(),
            Self::Links(_) => (0..pairs::examples(data)).collect(),
        }
    }

    /// Other examples that tell the same as these: the other ends of edges between nodes of one kind.
    pub fn mirrors(&self, data: &Dataset, examples: &[u32]) -> Vec<u32> {
        match self {
            Self::Nodes => vec![],
            Self::Links(_) => pairs::mirrors(data, examples),
        }
    }

    /// The step that learns from these examples.
    pub fn batch<'a>(
        &self,
        sampler: &mut Sampler,
        data: &'a Dataset,
        examples: Vec<u32>,
        fanout: &Fanout,
        needs: Needs,
        random: &mut Pcg64Mcg,
    ) -> Batch<'a> {
        match self {
            Self::Nodes => sampler.batch(data, examples, fanout, needs, random),
            Self::Links(objective) => {
                pairs::batch(objective, sampler, data, &examples, fanout, needs, random)
            }
        }
    }

    /// The scores of a model on the whole graph with all neighbours.
    pub fn scores(&self, model: &Model, weights: &Weights, data: &Dataset) -> Scores {
        match self {
            Self::Nodes => {
                let (valid, test) = (&data.split.valid, &data.split.test);
                // In one pass: most of the work is the same for both sets.
                let nodes: Vec<u32> = valid.iter().chain(test).copied().collect();
                let Inference { logits, classes, .. } = model.infer_rows(weights, data, &nodes);
                let (of_valid, of_test) = logits.split_at(valid.len() * classes);
                let score = |logits: &[f32], nodes: &[u32]| {
                    score::score(logits, classes, &data.labels, data.metric, nodes)
                };
                Scores {
                    valid: Some(score(of_valid, valid)),
                    test: score(of_test, test),
                    further: vec![],
                }
            }
            Self::Links(objective) => metric::scores(objective, data, &model.infer(weights, data)),
        }
    }

    /// The name of the score that decides.
    pub fn metric(&self, data: &Dataset) -> String {
        match self {
            Self::Nodes => data.metric.name().into(),
            Self::Links(objective) => objective.metric.to_string(),
        }
    }
}

impl Goal<'_> {
    /// The mean loss of outputs of `dim` columns; its gradient is added to `dy`, if that is given.
    pub fn loss(&self, data: &Dataset, outputs: &[f32], dim: usize, dy: Option<&mut [f32]>) -> f64 {
        match self {
            Self::Labels { rows, nodes } => {
                let weights = data.class_weights.as_deref();
                loss::loss(outputs, &data.labels, weights, rows, nodes, dy)
            }
            Self::Links(pairs) => pairs.loss(outputs, dim, dy),
        }
    }

    /// Multiply–adds of the loss. Those of labels are few beside any layer's.
    pub fn work(&self, dim: usize, backward: bool) -> Work {
        match self {
            Self::Labels { .. } => Work::default(),
            Self::Links(pairs) => pairs.work(dim, backward),
        }
    }
}
