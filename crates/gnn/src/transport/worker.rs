//! One worker: a learner on its part that takes orders. The same code serves a thread and a process.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use super::{Answer, Order};
use crate::local::{Learner, Steps, Until};
use crate::model::{Model, Table, Weights};
use crate::train::Settings;
use crate::update::Updates;
use crate::{Error, checkpoint};

/// A learner on one part, which answers the orders of the server.
pub struct Worker {
    part: usize,
    learner: Learner,
    model: Arc<Model>,
    settings: Settings,
    /// In a model with a row per node: the rows of this part's nodes, and the whole model's table.
    pub(super) rows: Option<(Vec<u32>, Table)>,
    /// What compressed updates have left out so far; empty if they leave nothing out.
    residual: Vec<f32>,
}

impl Worker {
    pub fn new(part: usize, learner: Learner, model: Arc<Model>, settings: &Settings) -> Self {
        let settings = settings.clone();
        let kept = if settings.updates() == Updates::Fp32 { 0 } else { model.params_len() };
        Self { part, learner, model, settings, rows: None, residual: vec![0.0; kept] }
    }

    /// The edges of the part at each of its nodes.
    pub(super) fn degrees(&self) -> Vec<u32> {
        let graph = &self.learner.data.graph;
        (0..graph.nodes() as u32).map(|node| graph.degree(node) as u32).collect()
    }

    /// Takes the steps of a round.
    pub fn answer(&mut self, order: &Order) -> Answer {
        let who = format!("local/{}", self.part);
        let steps = Steps {
            seed: self.settings.seed,
            who: &who,
            round: order.round,
            until: Until::Count(order.steps),
            without: &[],
        };
        let start = match &self.rows {
            Some((rows, table)) => Cow::Owned(order.start.pick(rows, table)),
            None => Cow::Borrowed(order.start),
        };
        let pace = self.settings.paced(&self.settings.local, order.round);
        let mut learnt = self.learner.learn(&self.model, &start, &pace, &steps);
        let (params, residual) = (&mut learnt.weights.params, &mut self.residual);
        let change = self.settings.updates().compress(&start.params, params, residual);
        if change.is_some() {
            *params = vec![];
        }
        Answer { part: self.part, learnt, change }
    }

    /// Whether the server's model is of the same shape, or what to do about it.
    pub fn check(&self, start: &Weights) -> Result<(), Error> {
        let (theirs, ours) = (start.params.len(), self.model.params_len());
        if theirs == ours && start.stats.len() == self.model.stats_len() {
            return Ok(());
        }
        Err(Error::Settings(format!(
            "the server's model has {theirs} parameters, this worker's {ours}; give all processes the \
             same options and dataset"
        )))
    }

    pub fn save(&self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        let Self { learner, residual, part, .. } = self;
        checkpoint::write_worker(&learner.optimiser, residual, folder, run, round, *part)
    }

    pub fn restore(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        let Self { learner, residual, part, .. } = self;
        checkpoint::read_worker(&mut learner.optimiser, residual, folder, run, round, *part)
    }
}
