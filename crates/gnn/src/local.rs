//! A learner: someone with a graph, examples to learn from, and an optimiser of its own. Workers are
//! learners on their parts; the server is one on the whole graph.

use std::borrow::Cow;
use std::sync::Arc;

use hither_core::record::train::{Bytes, Machine, Work};
use hither_core::{Seconds, seed};
use hither_kernels::vector;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use crate::Dataset;
use crate::fetch::{Fetcher, Requested};
use crate::model::{Model, Weights};
use crate::optim::Optimiser;
use crate::sample::{Batch, Fanout, Needs, Sampler, draw};
use crate::task::Task;

/// How a learner takes its steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// Examples per step; `None`: the whole graph, all examples.
    pub batch: Option<usize>,
    pub fanout: Fanout,
    pub rate: f32,
    /// Upper bound on the length of a step's gradient; longer ones are shortened to it.
    pub clip: Option<f32>,
}

/// Which steps: they draw the same whatever ran before them, which is why a run can go on from any
/// round without keeping the state of a random generator.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    pub seed: u64,
    pub who: &'a str,
    pub round: u32,
    pub until: Until,
    /// Examples that the steps leave out, in ascending order.
    pub without: &'a [u32],
}

/// When to stop taking steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// After this many steps.
    Count(u32),
    /// Once the counted work takes this long on the given machine.
    Spent { seconds: Seconds, machine: Machine },
}

impl Until {
    fn is_reached(&self, learnt: &Learnt) -> bool {
        match self {
            Self::Count(count) => learnt.steps >= *count,
            Self::Spent { seconds, machine } => machine.seconds(learnt.work) >= *seconds,
        }
    }
}

/// A dataset, its examples, and an optimiser that learns from them.
pub struct Learner {
    pub data: Arc<Dataset>,
    pub task: Task,
    /// Examples to learn from, in the numbers of `data`: see [`Task::examples`].
    pub train: Vec<u32>,
    pub optimiser: Optimiser,
    pub source: Source,
    sampler: Sampler,
}

/// Whose the rows of features are that a learner reads.
pub enum Source {
    /// All are its own.
    Own,
    /// Those of the nodes that are at home; others cost a transfer. Without `fetch` they are in the data all the same,
    /// and their bytes are counted only.
    Shared { home: Vec<bool>, fetch: Option<Fetcher> },
}

impl Source {
    /// Which nodes are at home, where not all are, and what fetches the others.
    fn parts(&mut self) -> (Option<&[bool]>, Option<&mut Fetcher>) {
        match self {
            Self::Own => (None, None),
            Self::Shared { home, fetch } => (Some(home), fetch.as_mut()),
        }
    }
}

/// What some steps led to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Learnt {
    pub weights: Weights,
    /// Steps taken.
    pub steps: u32,
    /// The mean over the steps.
    pub loss: f64,
    /// What was fetched from others.
    pub bytes: Bytes,
    pub work: Work,
}

impl Learnt {
    fn nothing_yet(weights: Weights) -> Self {
        let (bytes, work) = (Bytes::default(), Work::default());
        Self { weights, steps: 0, loss: 0.0, bytes, work }
    }
}

/// A batch that a step is to learn from, and the rows that it still lacks.
struct Sampled<'a> {
    batch: Batch<'a>,
    dropout_seed: u64,
    requested: Option<Requested>,
}

impl<'a> Sampled<'a> {
    /// Asks for the rows of a batch, if they have to be fetched.
    fn request((batch, dropout_seed): (Batch<'a>, u64), fetch: Option<&mut Fetcher>) -> Self {
        let requested = fetch.map(|fetch| fetch.request(&batch.sources));
        Self { batch, dropout_seed, requested }
    }
}

impl Learner {
    pub fn new(data: Arc<Dataset>, task: Task, optimiser: Optimiser) -> Self {
        let sampler = Sampler::new(data.graph.nodes());
        let train = task.examples(&data);
        Self { data, task, train, optimiser, source: Source::Own, sampler }
    }

    /// A learner from some examples, which reads rows that are not all its own.
    pub fn from_shared(self, train: Vec<u32>, home: Vec<bool>, fetch: Option<Fetcher>) -> Self {
        Self { train, source: Source::Shared { home, fetch }, ..self }
    }

    /// Takes steps from `weights`, each along the gradient of another batch.
    pub fn learn(
        &mut self,
        model: &Model,
        weights: &Weights,
        pace: &Pace,
        steps: &Steps,
    ) -> Learnt {
        let mut learnt = Learnt::nothing_yet(weights.clone());
        let is_own = matches!(self.source, Source::Own);
        let needs = Needs { direct: model.needs().direct && is_own, ..model.needs() };
        let mut grads = vec![0.0; weights.params.len()];
        let Self { data, task, train, optimiser, source, sampler } = self;
        let (home, mut fetch) = source.parts();
        let train = left_over(train, steps.without);
        // A part may hold no examples; it then has nothing to say.
        if train.is_empty() || steps.until.is_reached(&learnt) {
            return learnt;
        }
        let mut sample = |step: u32| {
            let name = format!("{}/{}/{step}", steps.who, steps.round);
            let mut random = seed::stream(steps.seed, &name);
            let batch = match pace.batch {
                None if is_own && *task == Task::Nodes => Batch::whole(data, &train, needs),
                // Of a graph that is not all its own, a learner fetches what its nodes need.
                None => task.batch(sampler, data, train.to_vec(), &Fanout::All, needs, &mut random),
                Some(size) => {
                    let examples = draw(&train, size, &mut random);
                    task.batch(sampler, data, examples, &pace.fanout, needs, &mut random)
                }
            };
            (batch, random.random::<u64>())
        };
        let mut next = Some(Sampled::request(sample(0), fetch.as_deref_mut()));
        while let Some(Sampled { mut batch, dropout_seed, requested }) = next.take() {
            if let (Some(fetch), Some(requested)) = (fetch.as_deref_mut(), requested) {
                batch.input = fetch.rows(requested, &batch.sources);
            }
            learnt.steps += 1;
            learnt.work += model.work(&batch, true) + optimiser.work(grads.len());
            if let Some(home) = home {
                learnt.bytes.add(&fetched(data, home, &batch));
            }
            // The work of a step is known before it is taken, and so is whether there is a next one.
            let following = (!steps.until.is_reached(&learnt)).then_some(learnt.steps);
            let mut take_step = || {
                let weights = &mut learnt.weights;
                let loss = model.gradient(weights, data, &batch, dropout_seed, &mut grads);
                learnt.loss += loss;
                let squared = vector::norm_squared(&grads);
                if let Some(most) = pace.clip {
                    shorten(&mut grads, squared, most);
                }
                optimiser.step(pace.rate, &mut learnt.weights.params, &grads);
            };
            // The next batch is drawn while this one is learnt from. One thread draws it first, so that its
            // rows are on their way meanwhile.
            let draw_next =
                || following.map(|step| Sampled::request(sample(step), fetch.as_deref_mut()));
            (next, ()) = rayon::join(draw_next, &mut take_step);
        }
        learnt.loss /= f64::from(learnt.steps);
        learnt
    }

    /// Some examples and the neighbours that they need, without learning from them.
    pub fn neighbourhood<'a>(
        &mut self,
        data: &'a Dataset,
        model: &Model,
        examples: Vec<u32>,
        fanout: &Fanout,
        name: (u64, &str),
    ) -> Batch<'a> {
        let random = &mut neighbour_stream(name);
        self.task.batch(&mut self.sampler, data, examples, fanout, model.needs(), random)
    }
}

/// Shortens a gradient of this squared length to at most `most`, as `clip_grad_norm_` of PyTorch does.
fn shorten(grads: &mut [f32], squared: f64, most: f32) {
    let factor = f64::from(most) / (squared.sqrt() + 1e-6);
    if factor < 1.0 {
        grads.iter_mut().for_each(|grad| *grad *= factor as f32);
    }
}

/// `nodes` but those of `without`, which are in ascending order.
fn left_over<'a>(nodes: &'a [u32], without: &[u32]) -> Cow<'a, [u32]> {
    if without.is_empty() {
        return Cow::Borrowed(nodes);
    }
    let is_left = |node: &u32| without.binary_search(node).is_err();
    Cow::Owned(nodes.iter().copied().filter(is_left).collect())
}

/// The stream that neighbours are drawn from. The caller may have drawn the nodes from the stream
/// of the same name: the two must not repeat each other.
fn neighbour_stream((seed, name): (u64, &str)) -> Pcg64Mcg {
    seed::stream(seed, &format!("{name}/neighbours"))
}

/// What it takes to get the rows that are not at home: asked for by number, each once.
fn fetched(data: &Dataset, home: &[bool], batch: &Batch) -> Bytes {
    let mut bytes = Bytes::default();
    for node in batch.sources.iter().filter(|node| !home[**node as usize]) {
        bytes.features_down_bytes += data.features.row_bytes(*node);
        bytes.requests_up_bytes += size_of::<u32>() as u64;
    }
    bytes
}
