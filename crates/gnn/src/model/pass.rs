//! Forward and backward through a stack.

use hither_core::record::train::Work;
use hither_core::seed;
use hither_kernels::memory::zeros;
use hither_kernels::vector::{self, Dropout};

use super::{Model, Weights};
use crate::Dataset;
use crate::batch_norm::{self, BatchNorm};
use crate::layer::{Backward, ForwardCache, Layer, Passes, Rows, Shape};
use crate::sample::{Batch, Fanout, Hop, Sampler};

/// A layer and what follows it.
#[derive(Clone, Debug)]
pub struct Stage {
    pub layer: Layer,
    pub batch_norm: Option<BatchNorm>,
    /// ReLU, and dropout while learning.
    pub activate: bool,
    pub outputs: usize,
}

/// How a pass treats what depends on learning.
#[derive(Clone, Copy, Debug)]
pub enum Pass {
    /// Batch norms by the batch, and dropout drawn from this seed.
    Learn { dropout_seed: u64 },
    /// Batch norms by the batch but without dropout: gradients to compare with each other.
    Probe,
}

/// What the forward pass of a stage leaves for its backward pass.
struct Trace {
    cache: ForwardCache,
    batch_norm: Option<batch_norm::Normalised>,
    output: Vec<f32>,
}

impl Model {
    /// The mean loss over the batch; its gradient is put into `grads`. Running statistics of
    /// batch norms move if this is learning.
    pub fn gradient(
        &self,
        weights: &mut Weights,
        data: &Dataset,
        batch: &Batch,
        pass: Pass,
        grads: &mut [f32],
    ) -> f64 {
        grads.fill(0.0);
        let mut traces: Vec<Trace> = Vec::with_capacity(self.stages.len());
        let mut hops = &batch.hops[..];
        for (index, stage) in self.stages.iter().enumerate() {
            let (here, later) = hops.split_at(stage.layer.hops());
            hops = later;
            let input = self.input_of(index, batch, &traces);
            let (mut y, cache) = stage.layer.forward(&weights.params, &input, here, true);
            let batch_norm = stage.batch_norm.as_ref().map(|norm| {
                let stats = matches!(pass, Pass::Learn { .. }).then_some(&mut weights.stats[..]);
                norm.learn(&weights.params, stats, &mut y)
            });
            if stage.activate {
                vector::relu_dropout(&mut y, self.dropout(index, pass));
            }
            traces.push(Trace { cache, batch_norm, output: y });
        }
        let Some(Trace { mut cache, output: logits, .. }) = traces.pop() else { return 0.0 };
        let mut dy = zeros(logits.len());
        let loss = batch.goal.gradient(data, &logits, self.spec.outputs, &mut dy);
        drop(logits);
        hops = &batch.hops[..];
        for (index, stage) in self.stages.iter().enumerate().rev() {
            let (earlier, here) = hops.split_at(hops.len() - stage.layer.hops());
            hops = earlier;
            let input = self.input_of(index, batch, &traces);
            let params = &weights.params;
            let backward = Backward {
                params,
                x: &input,
                hops: here,
                cache: &cache,
                dy: &dy,
                needs_dx: index > 0,
            };
            let dx = stage.layer.backward(backward, grads);
            let (Some(dx), Some(before)) = (dx, traces.pop()) else { break };
            dy = dx;
            cache = before.cache;
            let stage = &self.stages[index - 1];
            if stage.activate {
                let scale = self.dropout(index - 1, pass).map_or(1.0, |d| 1.0 / (1.0 - d.rate));
                vector::relu_dropout_backward(&before.output, scale, &mut dy);
            }
            if let (Some(norm), Some(normalised)) = (&stage.batch_norm, before.batch_norm) {
                norm.backward(params, normalised, &mut dy, grads);
            }
        }
        loss
    }

    /// Multiply–adds of one pass over the batch: forward, or forward and backward.
    pub fn work(&self, batch: &Batch, backward: bool) -> Work {
        let mut hops = &batch.hops[..];
        let mut input = Shape::from_rows(&batch.input);
        let mut work = Work::default();
        for (index, stage) in self.stages.iter().enumerate() {
            let (here, later) = hops.split_at(stage.layer.hops());
            hops = later;
            let passes = match (backward, index) {
                (false, _) => Passes::Forward,
                (true, 0) => Passes::Backward,
                (true, _) => Passes::BackwardToInput,
            };
            work += stage.layer.work(input, here, passes);
            let rows = here.last().map_or(input.count, Hop::targets);
            input = Shape::dense(rows, stage.outputs);
        }
        work + batch.goal.work(self.spec.outputs, backward)
    }

    fn input_of<'a>(&self, index: usize, batch: &'a Batch, traces: &'a [Trace]) -> Rows<'a> {
        match index.checked_sub(1) {
            None => batch.input.borrow(),
            Some(before) => Rows::dense(&traces[before].output, self.stages[before].outputs),
        }
    }

    fn dropout(&self, index: usize, pass: Pass) -> Option<Dropout> {
        match pass {
            Pass::Learn { dropout_seed } if self.spec.dropout > 0.0 => {
                let seed = dropout_seed.wrapping_add((index as u64) << 48);
                Some(Dropout { seed, rate: self.spec.dropout })
            }
            _ => None,
        }
    }

    /// The mean loss over the batch, as it counts when the model is used.
    pub fn loss(&self, weights: &Weights, data: &Dataset, batch: &Batch) -> f64 {
        let logits = self.outputs(weights, batch, |_, _| {}).logits;
        batch.goal.loss(data, &logits, self.spec.outputs)
    }

    /// What the model says of every node of the graph, all neighbours seen, layer by layer: the
    /// embeddings (the input of the last layer) and the outputs.
    pub fn infer(&self, weights: &Weights, data: &Dataset) -> Inference {
        self.outputs(weights, &Batch::whole(data, &[], self.needs()), |_, _| {})
    }

    /// The same for some nodes, in their order: with all their neighbours, `at_once` nodes at a time. It
    /// reads only what these nodes depend on.
    pub fn infer_nodes(
        &self,
        weights: &Weights,
        data: &Dataset,
        nodes: &[u32],
        at_once: usize,
        mut done: impl FnMut(usize),
    ) -> Inference {
        let mut sampler = Sampler::new(data.graph.nodes());
        // Nothing is drawn: all neighbours are taken.
        let random = &mut seed::stream(0, "infer");
        let dim = self.embedding_dim();
        let (mut logits, mut embeddings) = (vec![], None);
        for seeds in nodes.chunks(at_once.max(1)) {
            let batch = sampler.batch(data, seeds.to_vec(), &Fanout::All, self.needs(), random);
            let mut outputs = self.outputs(weights, &batch, |_, _| {});
            logits.append(&mut outputs.logits);
            if let Some(rows) = outputs.embeddings {
                // Rows of the neighbours follow those of the nodes themselves.
                let all: &mut Vec<f32> = embeddings.get_or_insert_default();
                all.extend_from_slice(&rows[..seeds.len() * dim]);
            }
            done(seeds.len());
        }
        Inference { embeddings, logits, classes: self.spec.outputs }
    }

    /// As [`Model::infer`], but shows the input of every layer instead of the outputs. Returns the
    /// work that it takes.
    pub fn infer_seeing(
        &self,
        weights: &Weights,
        data: &Dataset,
        see: impl FnMut(usize, &Rows),
    ) -> Work {
        let batch = Batch::whole(data, &[], self.needs());
        self.outputs(weights, &batch, see);
        self.work(&batch, false)
    }

    fn outputs(
        &self,
        weights: &Weights,
        batch: &Batch,
        mut see: impl FnMut(usize, &Rows),
    ) -> Inference {
        let mut embeddings: Option<Vec<f32>> = None;
        let mut hops = &batch.hops[..];
        let mut outputs = vec![];
        for (index, stage) in self.stages.iter().enumerate() {
            let (here, later) = hops.split_at(stage.layer.hops());
            hops = later;
            let dim = index.checked_sub(1).map(|before| self.stages[before].outputs);
            let input = match (&embeddings, dim) {
                (Some(values), Some(dim)) => Rows::dense(values, dim),
                _ => batch.input.borrow(),
            };
            see(index, &input);
            let (mut y, _) = stage.layer.forward(&weights.params, &input, here, false);
            if let Some(norm) = &stage.batch_norm {
                norm.apply(&weights.params, &weights.stats, &mut y);
            }
            if stage.activate {
                vector::relu_dropout(&mut y, None);
            }
            if index + 1 == self.stages.len() {
                outputs = y;
            } else {
                embeddings = Some(y);
            }
        }
        Inference { embeddings, logits: outputs, classes: self.spec.outputs }
    }
}

/// Outputs of a model, one row per node.
pub struct Inference {
    /// None if the model has only one layer.
    pub embeddings: Option<Vec<f32>>,
    pub logits: Vec<f32>,
    pub classes: usize,
}

impl Inference {
    /// The score of these nodes, from 0 to 1.
    pub fn score(&self, data: &Dataset, nodes: &[u32]) -> f64 {
        crate::score::score(&self.logits, self.classes, &data.labels, data.metric, nodes)
    }
}
