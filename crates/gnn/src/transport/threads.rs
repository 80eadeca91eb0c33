//! Workers as threads of this process.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use super::{Answer, Order, PartFacts, Worker, Workers};
use crate::average::PartView;
use crate::fetch::Fetcher;
use crate::local::Learner;
use crate::mode::Sees;
use crate::model::{Model, Weights};
use crate::partition::Partition;
use crate::parts::FetchedGraph;
use crate::train::Settings;
use crate::{Dataset, Error, Features, parts};

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
            Some(Sees::Part) if data.links.is_some() => {
                return Self::on_links(settings, model, data, partition);
            }
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
                    settings.learner(model, data.clone()).from_shared(train, home, None)
                })
                .collect(),
        };
        let learners = learners.into_iter().enumerate();
        Self { setup_bytes, ..Self::from_learners(settings, model, learners) }
    }

    /// Some of the workers of a run, each with its part: those of a process that has no more.
    pub fn from_parts(
        settings: &Settings,
        model: &Arc<Model>,
        parts: impl IntoIterator<Item = (usize, Arc<Dataset>)>,
    ) -> Self {
        let learner = |(part, data)| (part, settings.learner(model, data));
        Self::from_learners(settings, model, parts.into_iter().map(learner))
    }

    /// Some of the workers of a run that samples the whole graph. `fetcher` makes what gets the features for the
    /// worker of a part.
    pub fn fetching(
        settings: &Settings,
        model: &Arc<Model>,
        graph: &FetchedGraph,
        parts: Range<usize>,
        mut fetcher: impl FnMut(usize) -> Fetcher,
    ) -> Self {
        let learner = |part: usize| {
            let (train, home) = (graph.train_of(part), graph.home(part));
            let learner = settings.learner(model, graph.data.clone());
            (part, learner.from_shared(train, home, Some(fetcher(part))))
        };
        let mut all = Self::from_learners(settings, model, parts.clone().map(learner));
        for (part, facts) in parts.zip(&mut all.parts) {
            facts.bytes = graph.bytes(part);
        }
        all
    }

    /// Workers on parts of a graph whose edges are learnt. In a model with a row per node, each has a model
    /// of its own, with the rows of its nodes.
    fn on_links(
        settings: &Settings,
        model: &Arc<Model>,
        data: &Dataset,
        partition: &Partition,
    ) -> Self {
        let mut all = Self { workers: vec![], parts: vec![], setup_bytes: 0 };
        for (number, (nodes, mut part)) in parts::cut_links(data, partition).into_iter().enumerate()
        {
            let mut own = model.clone();
            if model.table().is_some() {
                part.features = Features::one_hot(nodes.len());
                let Ok(smaller) = model.for_nodes(nodes.len().max(1)) else {
                    unreachable!("a part has no more rows than the whole graph")
                };
                own = Arc::new(smaller);
            }
            let learner = settings.learner(&own, Arc::new(part));
            let (train_nodes, bytes) = (learner.train.len(), learner.data.bytes());
            let mut worker = Worker::new(number, learner, own, settings);
            worker.rows = model.table().map(|table| (nodes, table.clone()));
            all.workers.push(worker);
            all.parts.push(PartFacts { train_nodes, bytes });
        }
        all
    }

    /// What each part has of a model with a row per node.
    pub(crate) fn view(&self, model: &Model) -> Option<PartView> {
        let table = model.table()?.clone();
        let own = |worker: &Worker| worker.rows.as_ref().map(|(rows, _)| rows.clone());
        let rows: Vec<Vec<u32>> = self.workers.iter().map(own).collect::<Option<_>>()?;
        let edges = self.workers.iter().map(Worker::degrees).collect();
        (!rows.is_empty()).then_some(PartView { table, rows, edges })
    }

    fn from_learners(
        settings: &Settings,
        model: &Arc<Model>,
        learners: impl Iterator<Item = (usize, Learner)>,
    ) -> Self {
        let worker = |(part, learner): (usize, Learner)| {
            let facts = PartFacts { train_nodes: learner.train.len(), bytes: learner.data.bytes() };
            (Worker::new(part, learner, model.clone(), settings), facts)
        };
        let (workers, parts) = learners.map(worker).unzip();
        Self { workers, parts, setup_bytes: 0 }
    }

    /// Whether a model of the server is of the workers' shape, or what to do about it.
    pub fn check(&self, start: &Weights) -> Result<(), Error> {
        self.workers.iter().try_for_each(|worker| worker.check(start))
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
        // No more workers at once than threads: a thread that waits inside a step would begin another
        // worker's, and the activations of both would be in memory.
        let at_once = self.workers.chunks_mut(rayon::current_num_threads());
        let learn = |some: &mut [Worker]| some.par_iter_mut().map(answer).collect::<Vec<_>>();
        let (answers, ()) = rayon::join(|| at_once.flat_map(learn).collect(), meanwhile);
        Ok(answers)
    }

    fn save(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        self.workers.iter().try_for_each(|worker| worker.save(folder, run, round))
    }

    fn restore(&mut self, folder: &Path, run: &str, round: u32) -> Result<(), Error> {
        self.workers.iter_mut().try_for_each(|worker| worker.restore(folder, run, round))
    }
}
