//! One worker: a learner on its part that takes orders. The same code serves a thread and a process.

use std::path::Path;
use std::sync::Arc;

use super::{Answer, Order};
use crate::drift::{self, Probed};
use crate::local::{Learner, Pace, Steps, Until};
use crate::model::{Model, Weights};
use crate::train::Settings;
use crate::{Error, checkpoint};

/// A learner on one part, which answers the orders of the server.
pub struct Worker {
    part: usize,
    learner: Learner,
    model: Arc<Model>,
    pace: Pace,
    seed: u64,
}

impl Worker {
    pub fn new(part: usize, learner: Learner, model: Arc<Model>, settings: &Settings) -> Self {
        Self { part, learner, model, pace: settings.local.clone(), seed: settings.seed }
    }

    /// Takes the steps of a round, then measures drift if that is asked for.
    pub fn answer(&mut self, order: &Order) -> Answer {
        if let (Some(sums), Some(remote)) = (order.sums, &mut self.learner.remote) {
            remote.refresh(sums[self.part].clone());
        }
        let who = format!("local/{}", self.part);
        let steps = Steps {
            seed: self.seed,
            who: &who,
            round: order.round,
            until: Until::Count(order.steps),
            without: &[],
        };
        let learnt = self.learner.learn(&self.model, order.start, &self.pace, &steps);
        let probed = order.probe.then(|| self.probe(order));
        Answer { part: self.part, learnt, probed }
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

    fn probe(&mut self, order: &Order) -> Probed {
        let probe = drift::Probe {
            model: &self.model,
            weights: order.start,
            seed: self.seed,
            round: order.round,
            fanout: self.pace.seen(),
        };
        probe.worker_half(self.part, &mut self.learner)
    }

    pub fn save(&self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        checkpoint::write_worker(&self.learner.optimiser, folder, run, round, self.part)
    }

    pub fn restore(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        checkpoint::read_worker(&mut self.learner.optimiser, folder, run, round, self.part)
    }
}
