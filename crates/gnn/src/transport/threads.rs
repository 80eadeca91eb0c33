//! Workers as threads of this process.

use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use super::{Answer, Order, PartFacts, Worker, Workers};
use crate::local::Learner;
use crate::mode::Sees;
use crate::model::Model;
use crate::partition::Partition;
use crate::train::Settings;
use crate::{Dataset, Error, parts};

/// Workers that run on the threads of this process.
pub struct Threads {
    workers: Vec<Worker>,
    parts: Vec<PartFacts>,
    /// Bytes that would be sent to the workers once, before the first round.
    pub setup_bytes: u64,
}

impl Threads {
    /// Gives each worker what it sees of the dataset.
    pub fn new(
        settings: &Settings,
        model: &Arc<Model>,
        data: &Arc<Dataset>,
        partition: &Partition,
    ) -> Self {
        let alone = |part: Dataset| settings.learner(model, Arc::new(part));
        let mut setup_bytes = 0;
        let learners: Vec<Learner> = match settings.mode.does().workers {
            None => vec![],
            Some(Sees::Whole) => vec![settings.learner(model, data.clone())],
            Some(Sees::Part) => parts::cut(data, partition).into_iter().map(alone).collect(),
            Some(Sees::PartAndCopies) => {
                let count = (settings.copies * data.graph.nodes() as f64).round() as usize;
                let (parts, bytes) = parts::cut_with_copies(data, partition, count, settings.seed);
                setup_bytes = bytes;
                parts.into_iter().map(alone).collect()
            }
            Some(Sees::WholeByFetching) => parts::homes(data, partition)
                .into_iter()
                .map(|(train, home)| {
                    let mut learner = settings.learner(model, data.clone());
                    (learner.train, learner.home) = (train, Some(home));
                    learner
                })
                .collect(),
        };
        let facts = |learner: &Learner| PartFacts { train_nodes: learner.train.len() };
        let parts = learners.iter().map(facts).collect();
        let worker = |(part, learner)| Worker::new(part, learner, model.clone(), settings);
        let workers = learners.into_iter().enumerate().map(worker).collect();
        Self { workers, parts, setup_bytes }
    }
}

impl Workers for Threads {
    fn parts(&self) -> &[PartFacts] {
        &self.parts
    }

    fn round(
        &mut self,
        order: &Order,
        meanwhile: &mut (dyn FnMut() + Send),
    ) -> Result<Vec<Answer>, Error> {
        let answer = |worker: &mut Worker| worker.answer(order);
        let (answers, ()) =
            rayon::join(|| self.workers.par_iter_mut().map(answer).collect(), meanwhile);
        Ok(answers)
    }

    fn save(&self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        self.workers.iter().try_for_each(|worker| worker.save(folder, run, round))
    }

    fn restore(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        self.workers.iter_mut().try_for_each(|worker| worker.restore(folder, run, round))
    }
}
