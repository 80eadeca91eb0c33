//! Forward and backward through a stack.

use hither_core::record::train::Work;
use hither_core::seed;
use hither_kernels::memory::{Buffer, copy, zeros};
use hither_kernels::vector::{self, Dropout};
use rayon::prelude::*;

use super::{Model, Weights};
use crate::Dataset;
use crate::layer::{Backward, ForwardCache, Layer, Passes, Rows, Shape};
use crate::normalisation::{Normalisation, Normalised};
use crate::sample::{Batch, Fanout, Hop, Sampler};

/// A layer and what follows it.
#[derive(Clone, Debug)]
pub struct Stage {
    pub layer: Layer,
    pub normalisation: Option<Normalisation>,
    /// ReLU, and dropout while learning.
    pub activate: bool,
    /// Add the nodes' own inputs to what the activation leaves.
    pub residual: bool,
    pub outputs: usize,
}

/// What the forward pass of a stage leaves for its backward pass.
struct Trace {
    cache: ForwardCache,
    normalised: Option<Normalised>,
    /// What the activation left, where more was added to it.
    activated: Option<Buffer>,
    output: Buffer,
}

/// Nodes whose outputs are computed at once from the whole graph's hidden rows.
const ROWS_AT_ONCE: usize = 1 << 16;
/// Nodes whose outputs are computed at once from their neighbourhoods.
const NODES_AT_ONCE: usize = 1 << 12;

impl Stage {
    /// The output as the model is used, without anything kept.
    fn output(&self, weights: &Weights, input: &Rows, hops: &[Hop]) -> Buffer {
        let (mut y, _) = self.layer.forward(&weights.params, input, hops, false);
        if let Some(norm) = &self.normalisation {
            norm.apply(&weights.params, &weights.stats, &mut y);
        }
        if self.activate {
            vector::relu_dropout(&mut y, None);
        }
        self.add_input(input, &mut y);
        y
    }

    /// Adds the own rows of the targets, which are the first of the input, if the stage is residual.
    fn add_input(&self, input: &Rows, y: &mut [f32]) {
        if let (true, Rows::Dense { values, .. }) = (self.residual, input) {
            let own = &values[..y.len()];
            vector::add_scaled(y, 1.0, own);
        }
    }
}

impl Model {
    /// The mean loss over the batch; its gradient is put into `grads`. Batch norms go by the batch, and their
    /// running statistics move.
    pub fn gradient(
        &self,
        weights: &mut Weights,
        data: &Dataset,
        batch: &Batch,
        dropout_seed: u64,
        grads: &mut [f32],
    ) -> f64 {
        grads.fill(0.0);
        let mut traces = self.forward(weights, batch, dropout_seed);
        let Some(Trace { mut cache, output: logits, .. }) = traces.pop() else { return 0.0 };
        let mut dy = zeros(logits.len());
        let loss = batch.goal.loss(data, &logits, self.spec.outputs, Some(&mut dy));
        drop(logits);
        // The gradient that goes past the layer, straight to its input.
        let mut past: Option<Buffer> = None;
        let stages: Vec<(usize, &Stage, &[Hop])> = self.walk(&batch.hops).collect();
        for (index, stage, hops) in stages.into_iter().rev() {
            let before = traces.last().map(|trace| &trace.output[..]);
            let input = self.input(index, batch, before);
            let params = &weights.params;
            let backward =
                Backward { params, x: &input, hops, cache: &cache, dy: &dy, needs_dx: index > 0 };
            let dx = stage.layer.backward(backward, grads);
            let (Some(mut dx), Some(before)) = (dx, traces.pop()) else { break };
            if let Some(past) = past.take() {
                vector::add_scaled(&mut dx[..past.len()], 1.0, &past);
            }
            (dy, cache) = (dx, before.cache);
            let stage = &self.stages[index - 1];
            past = stage.residual.then(|| copy(&dy));
            if stage.activate {
                let scale =
                    self.dropout(index - 1, dropout_seed).map_or(1.0, |d| 1.0 / (1.0 - d.rate));
                let activated = before.activated.as_ref().unwrap_or(&before.output);
                vector::relu_dropout_backward(activated, scale, &mut dy);
            }
            if let (Some(norm), Some(normalised)) = (&stage.normalisation, &before.normalised) {
                norm.backward(params, normalised, &mut dy, grads);
            }
        }
        loss
    }

    /// What each stage leaves for the backward pass, the last one's output included.
    fn forward(&self, weights: &mut Weights, batch: &Batch, dropout_seed: u64) -> Vec<Trace> {
        let mut traces: Vec<Trace> = Vec::with_capacity(self.stages.len());
        for (index, stage, hops) in self.walk(&batch.hops) {
            let before = traces.last().map(|trace| &trace.output[..]);
            let input = self.input(index, batch, before);
            let (mut y, cache) = stage.layer.forward(&weights.params, &input, hops, true);
            let normalised = stage
                .normalisation
                .as_ref()
                .map(|norm| norm.learn(&weights.params, &mut weights.stats, &mut y));
            if stage.activate {
                vector::relu_dropout(&mut y, self.dropout(index, dropout_seed));
            }
            let activated = stage.residual.then(|| copy(&y));
            stage.add_input(&input, &mut y);
            traces.push(Trace { cache, normalised, activated, output: y });
        }
        traces
    }

    /// Multiply–adds of one pass over the batch: forward, or forward and backward.
    pub fn work(&self, batch: &Batch, backward: bool) -> Work {
        let mut input = Shape::from_rows(&batch.input);
        let mut work = Work::default();
        for (index, stage, hops) in self.walk(&batch.hops) {
            let passes = match (backward, index) {
                (false, _) => Passes::Forward,
                (true, 0) => Passes::Backward,
                (true, _) => Passes::BackwardToInput,
            };
            work += stage.layer.work(input, hops, passes);
            let rows = hops.last().map_or(input.count, Hop::targets);
            input = Shape::dense(rows, stage.outputs);
        }
        work + batch.goal.work(self.spec.outputs, backward)
    }

    /// The stages, each with its number and the hops that it reads.
    fn walk<'a>(
        &'a self,
        hops: &'a [Hop<'a>],
    ) -> impl Iterator<Item = (usize, &'a Stage, &'a [Hop<'a>])> {
        self.stages.iter().enumerate().scan(hops, |hops, (index, stage)| {
            let (here, later) = hops.split_at(stage.layer.hops());
            *hops = later;
            Some((index, stage, here))
        })
    }

    /// What a stage reads: the rows of the stage before it, if there is one.
    fn input<'a>(&self, index: usize, batch: &'a Batch, before: Option<&'a [f32]>) -> Rows<'a> {
        match before {
            Some(rows) => Rows::dense(rows, self.stages[index - 1].outputs),
            None => batch.input.borrow(),
        }
    }

    fn dropout(&self, index: usize, dropout_seed: u64) -> Option<Dropout> {
        let rate = self.spec.dropout;
        let seed = dropout_seed.wrapping_add((index as u64) << 48);
        (rate > 0.0).then_some(Dropout { seed, rate })
    }

    /// The mean loss over the batch, as it counts when the model is used.
    pub fn loss(&self, weights: &Weights, data: &Dataset, batch: &Batch) -> f64 {
        let logits = self.outputs(weights, batch).logits;
        batch.goal.loss(data, &logits, self.spec.outputs, None)
    }

    /// Full-graph inference, layer by layer, with all neighbours: embeddings (the input of the last layer) and logits.
    pub fn infer(&self, weights: &Weights, data: &Dataset) -> Inference {
        let batch = Batch::whole(data, &[], self.needs());
        let mut outputs = self.outputs(weights, &batch);
        self.change_lengths(&mut outputs.logits);
        outputs
    }

    /// Raises the lengths of output rows to the model's power.
    fn change_lengths(&self, rows: &mut [f32]) {
        let (power, dim) = (self.spec.length_power, self.spec.outputs);
        if power == 1.0 {
            return;
        }
        rows.par_chunks_exact_mut(dim).with_min_len(1024).for_each(|row| {
            let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            // A node without edges may have a row of zeros.
            let factor = length.max(f32::MIN_POSITIVE).powf(power - 1.0);
            row.iter_mut().for_each(|value| *value *= factor);
        });
    }

    /// The outputs for some nodes, in their order, all neighbours seen; embeddings are not kept. Where the nodes and
    /// their neighbours are few, only what they depend on is computed; otherwise every layer but the last is computed
    /// for the whole graph, and the last one for these nodes, a block at a time.
    pub fn infer_rows(&self, weights: &Weights, data: &Dataset, nodes: &[u32]) -> Inference {
        let graph = &data.graph;
        let needs = self.needs();
        let reach = (1.0 + graph.targets().len() as f64 / graph.nodes().max(1) as f64)
            .powi(needs.hops as i32 - 1);
        if nodes.len() as f64 * reach < graph.nodes() as f64 && self.table().is_none() {
            let outputs = self.infer_nodes(weights, data, nodes, NODES_AT_ONCE, |_| {});
            return Inference { embeddings: None, ..outputs };
        }
        let classes = self.spec.outputs;
        let batch = Batch::whole(data, &[], needs);
        let hidden = self.hidden(weights, &batch);
        let (last, input, hops) = self.last(&batch, hidden.as_deref());
        if !last.layer.reads().by_row || input.is_sparse() {
            let all = last.output(weights, &input, hops);
            let rows = Rows::dense(&all, classes).pick(nodes);
            let Rows::Dense { values, .. } = rows else { unreachable!("rows of a dense table") };
            return Inference { embeddings: None, logits: values.into_owned(), classes };
        }
        let mut logits = Vec::with_capacity(nodes.len() * classes);
        for block in nodes.chunks(ROWS_AT_ONCE) {
            let rows = match last.layer.hops() {
                0 => last.output(weights, &input.pick(block), &[]),
                _ => {
                    let hop = Hop::over_graph(graph, block, needs.roots);
                    last.output(weights, &input, &[hop])
                }
            };
            logits.extend_from_slice(&rows);
        }
        Inference { embeddings: None, logits, classes }
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
            let mut outputs = self.outputs(weights, &batch);
            logits.append(&mut outputs.logits);
            if let Some(rows) = outputs.embeddings {
                // Rows of the neighbours follow those of the nodes themselves.
                let all: &mut Vec<f32> = embeddings.get_or_insert_default();
                all.extend_from_slice(&rows[..seeds.len() * dim]);
            }
            done(seeds.len());
        }
        self.change_lengths(&mut logits);
        Inference { embeddings, logits, classes: self.spec.outputs }
    }

    /// What the last stage reads of a batch; `None`: the batch's own input.
    fn hidden(&self, weights: &Weights, batch: &Batch) -> Option<Buffer> {
        let mut hidden: Option<Buffer> = None;
        for (index, stage, hops) in self.walk(&batch.hops).take(self.stages.len() - 1) {
            let next = stage.output(weights, &self.input(index, batch, hidden.as_deref()), hops);
            hidden = Some(next);
        }
        hidden
    }

    /// The last stage, what it reads, and its hops.
    fn last<'a>(
        &'a self,
        batch: &'a Batch,
        hidden: Option<&'a [f32]>,
    ) -> (&'a Stage, Rows<'a>, &'a [Hop<'a>]) {
        let last = self.stages.len() - 1;
        let stage = &self.stages[last];
        let hops = &batch.hops[batch.hops.len() - stage.layer.hops()..];
        (stage, self.input(last, batch, hidden), hops)
    }

    fn outputs(&self, weights: &Weights, batch: &Batch) -> Inference {
        let hidden = self.hidden(weights, batch);
        let (last, input, hops) = self.last(batch, hidden.as_deref());
        let logits = last.output(weights, &input, hops).into_vec();
        drop(input);
        let embeddings = hidden.map(Buffer::into_vec);
        Inference { embeddings, logits, classes: self.spec.outputs }
    }
}

/// Outputs of a model, one row per node.
pub struct Inference {
    /// None if the model has only one layer.
    pub embeddings: Option<Vec<f32>>,
    pub logits: Vec<f32>,
    pub classes: usize,
}
