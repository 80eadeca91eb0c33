//! A model version that serves: its backend, its queue and its numbers.
//!
//! Requests enter the queue from the network's threads. Batches run on threads of their own, which all
//! models share. At most one job per model waits there: it takes its batch when it
//! begins, so requests gather while the batch before them runs.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use crate::backend::{Backend, Failure, Threads, Worker};
use crate::config::ModelConfig;
use crate::cost::CostRule;
use crate::error::{Error, shown_id};
use crate::infer::{ClientId, InferRequest, InferResponse, Scores};
use crate::inputs::{Features, Signature};
use crate::pace::UnderWay;
use crate::queue::{Offered, Queue, Ticket, Waiting};
use crate::stats::Stats;

pub struct Served {
    pub name: String,
    pub version: u64,
    pub config: ModelConfig,
    pub stats: Stats,
    pub backend: Box<dyn Backend>,
    /// Of the files that it was loaded from.
    pub stamp: u64,
    is_settled: AtomicBool,
    is_lost: AtomicBool,
    /// Told when the version stops being healthy.
    changes: watch::Sender<u64>,
    queue: Mutex<State>,
    threads: Arc<Threads>,
    runtime: tokio::runtime::Handle,
}

struct State {
    queue: Queue<Pending>,
    rule: CostRule,
    /// A job for the next batch waits for a thread since then.
    scheduled: Option<Instant>,
    /// A timer for the next batch runs.
    is_timed: bool,
}

/// When the next batch is to be cut.
enum NextBatch {
    Now,
    At(Instant),
}

/// A request in the queue.
struct Pending {
    features: Features,
    reply: oneshot::Sender<Result<Scores, Unscored>>,
}

/// What became of a request, and who waits for it.
type Answer = (oneshot::Sender<Result<Scores, Unscored>>, Result<Scores, Unscored>);

/// Why a queued request has no scores.
enum Unscored {
    Expired,
    Displaced,
    NotFinite { sample: usize },
    Failed(Failure),
}

/// Withdraws a request whose client has gone.
struct Withdrawal<'a> {
    served: &'a Served,
    ticket: Option<Ticket>,
}

impl State {
    /// What is to be begun so that the next batch is cut in time; `None` if there is nothing to cut, or if it
    /// has begun.
    fn next_batch(&mut self, now: Instant) -> Option<NextBatch> {
        let ready = self.queue.ready_at().filter(|_| self.scheduled.is_none())?;
        if ready <= now {
            self.scheduled = Some(now);
            return Some(NextBatch::Now);
        }
        let was_timed = std::mem::replace(&mut self.is_timed, true);
        (!was_timed).then_some(NextBatch::At(ready))
    }
}

impl Served {
    /// Must be called within a tokio runtime, whose timers it uses. `changes` is told when the version
    /// stops being healthy.
    pub fn new(
        version: u64,
        config: ModelConfig,
        backend: Box<dyn Backend>,
        threads: Arc<Threads>,
        changes: watch::Sender<u64>,
    ) -> Self {
        let queue = Queue::new(config.policy(), threads.count());
        let rule = CostRule::new(backend.signature().ids_per_sample());
        let state = State { queue, rule, scheduled: None, is_timed: false };
        Self {
            name: backend.signature().model.clone(),
            version,
            config,
            stats: Stats::default(),
            backend,
            stamp: 0,
            is_settled: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            changes,
            queue: Mutex::new(state),
            threads,
            runtime: tokio::runtime::Handle::current(),
        }
    }

    pub fn signature(&self) -> &Signature {
        self.backend.signature()
    }

    /// Whether its device works.
    pub fn is_healthy(&self) -> bool {
        !self.is_lost.load(Relaxed)
    }

    /// Whether its tables lie as planned.
    pub fn is_settled(&self) -> bool {
        self.is_settled.load(Relaxed)
    }

    pub(crate) fn settled(&self) {
        self.is_settled.store(true, Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that wait for a batch.
    pub fn pending(&self) -> usize {
        self.state().queue.len()
    }

    /// Answers one request.
    pub async fn infer(
        self: Arc<Self>,
        client: ClientId,
        mut request: InferRequest,
    ) -> Result<InferResponse, Error> {
        let arrived = Instant::now();
        let result = self.scores(client, &mut request, arrived).await;
        let time = arrived.elapsed();
        match &result {
            Ok(scores) => {
                self.stats.samples.fetch_add(scores.samples as u64, Relaxed);
                self.stats.success.add(time);
                self.stats.latency.add(time);
            }
            Err(error) => {
                self.stats.fail.add(time);
                match error {
                    Error::QueueFull { .. } => self.stats.refused.fetch_add(1, Relaxed),
                    Error::Timeout { .. } => self.stats.expired.fetch_add(1, Relaxed),
                    _ => 0,
                };
            }
        }
        let InferRequest { id, .. } = request;
        let (model, version) = (self.name.clone(), self.version);
        result.map(|scores| InferResponse { model, version, id, scores })
    }

    async fn scores(
        self: &Arc<Self>,
        client: ClientId,
        request: &mut InferRequest,
        arrived: Instant,
    ) -> Result<Scores, Error> {
        let features = self.signature().features(request)?;
        let id = || shown_id(&request.id);
        let timeout = request.timeout.or(self.config.timeout());
        let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
        let (reply, answer) = oneshot::channel();
        let item = Pending { features, reply };
        let Some(ticket) = self.enqueue(client, arrived, deadline, item) else {
            return Err(Error::QueueFull { id: id() });
        };
        let mut withdrawal = Withdrawal { served: self, ticket: Some(ticket) };
        let answer = match deadline {
            None => answer.await,
            Some(deadline) => match tokio::time::timeout_at(deadline.into(), answer).await {
                Ok(answer) => answer,
                Err(_) => {
                    withdrawal.ticket = None;
                    self.state().queue.remove(ticket);
                    return Err(Error::Timeout { id: id() });
                }
            },
        };
        withdrawal.ticket = None;
        match answer {
            Ok(Ok(scores)) => Ok(scores),
            Ok(Err(Unscored::Expired)) => Err(Error::Timeout { id: id() }),
            Ok(Err(Unscored::Displaced)) => Err(Error::QueueFull { id: id() }),
            Ok(Err(Unscored::NotFinite { sample })) => Err(Error::NotFinite { id: id(), sample }),
            Ok(Err(Unscored::Failed(Failure::Request(problem)))) => {
                Err(Error::Request { id: id(), problem: problem.into() })
            }
            Ok(Err(Unscored::Failed(Failure::Backend(problem) | Failure::Lost(problem)))) => {
                Err(Error::Internal(problem.into()))
            }
            // The job panicked, and its message has been printed.
            Err(_) => Err(Error::Internal("the batch failed".into())),
        }
    }

    fn enqueue(
        self: &Arc<Self>,
        client: ClientId,
        arrived: Instant,
        deadline: Option<Instant>,
        item: Pending,
    ) -> Option<Ticket> {
        let mut state = self.state();
        let cost = state.rule.cost(item.features.samples, item.features.ids);
        let waiting = Waiting { client, cost, arrived, deadline, item };
        let (ticket, displaced) = match state.queue.offer(waiting) {
            Offered::Queued(ticket) => (ticket, None),
            Offered::Displaced(ticket, displaced) => (ticket, Some(displaced)),
            Offered::Refused(_) => return None,
        };
        let next = state.next_batch(Instant::now());
        drop(state);
        self.begin(next);
        if let Some(displaced) = displaced {
            let _ = displaced.item.reply.send(Err(Unscored::Displaced));
        }
        Some(ticket)
    }

    /// Lets the next batch be cut. Whoever calls holds no lock: the thread that this wakes would wait for it.
    fn begin(self: &Arc<Self>, next: Option<NextBatch>) {
        let this = Arc::clone(self);
        match next {
            None => {}
            Some(NextBatch::Now) => self.threads.spawn(move |worker| this.run_batch(worker)),
            Some(NextBatch::At(ready)) => {
                self.runtime.spawn(async move {
                    tokio::time::sleep_until(ready.into()).await;
                    let mut state = this.state();
                    state.is_timed = false;
                    let next = state.next_batch(Instant::now());
                    drop(state);
                    this.begin(next);
                });
            }
        }
    }

    /// Cuts a batch and computes it on this thread.
    fn run_batch(self: Arc<Self>, worker: &mut Worker) {
        let (mut batch, mut expired) = (Vec::new(), Vec::new());
        let started = Instant::now();
        let mut state = self.state();
        if let Some(due) = state.scheduled.take() {
            state.queue.waited(started.saturating_duration_since(due));
        }
        let under_way = state.queue.take(started, &mut batch, &mut expired);
        let next = state.next_batch(started);
        drop(state);
        self.begin(next);
        for waiting in expired {
            let _ = waiting.item.reply.send(Err(Unscored::Expired));
        }
        if let Some(under_way) = under_way {
            self.compute(batch, &under_way, worker);
        }
    }

    fn compute(&self, batch: Vec<Waiting<Pending>>, under_way: &UnderWay, worker: &mut Worker) {
        let started = under_way.begun;
        let outputs = self.signature().scores_per_sample();
        let requests: Vec<&Features> = batch.iter().map(|waiting| &waiting.item.features).collect();
        let samples: usize = requests.iter().map(|features| features.samples).sum();
        let ids: usize = requests.iter().map(|features| features.ids).sum();
        let mut results: Vec<_> = requests.iter().map(|_| Ok(())).collect();
        let mut scores = vec![0.0; samples * outputs];
        let begun = Instant::now();
        let done = self.backend.run(&requests, &mut scores, &mut results, worker, &self.threads);
        let computed = Instant::now();
        drop(requests);
        let [bottom, tables, top] = done.stages;
        let mut state = self.state();
        state.queue.learn(under_way, computed);
        state.rule.learn(samples, ids, tables, bottom + top);
        drop(state);
        if results.iter().any(|result| matches!(result, Err(Failure::Lost(_)))) {
            self.lose();
        }

        self.stats.clamped.fetch_add(done.clamped, Relaxed);
        for (sum, time) in self.stats.stages.iter().zip(done.stages) {
            sum.fetch_add(time.as_nanos() as u64, Relaxed);
        }
        let is_checked = !self.config.allow_not_finite;
        let count = batch.len() as u64;
        let mut queued = Duration::ZERO;
        let mut first = 0;
        let mut spans = Vec::with_capacity(batch.len());
        for (waiting, result) in batch.into_iter().zip(results) {
            queued += started.duration_since(waiting.arrived);
            let samples = waiting.item.features.samples;
            let span = first..first + samples * outputs;
            first = span.end;
            let odd = scores[span.clone()].iter().position(|score| !score.is_finite());
            let result = match (result, odd.filter(|_| is_checked)) {
                (Err(failure), _) => Err(Unscored::Failed(failure)),
                (Ok(()), Some(at)) => {
                    self.stats.not_finite.fetch_add(1, Relaxed);
                    Err(Unscored::NotFinite { sample: at / outputs.max(1) })
                }
                (Ok(()), None) => Ok(samples),
            };
            spans.push((waiting.item.reply, span, result));
        }
        let bytes = Bytes::from_owner(Floats(scores));
        let answers = spans.into_iter().map(|(reply, span, result)| {
            let bytes = bytes.slice(span.start * 4..span.end * 4);
            (reply, result.map(|samples| Scores { samples, outputs, bytes }))
        });
        let answers = answers.collect();
        let times = [begun - started, computed - begun, computed.elapsed()];
        self.stats.queue.add_many(count, queued);
        let sums =
            [&self.stats.compute_input, &self.stats.compute_infer, &self.stats.compute_output];
        for (sum, time) in sums.into_iter().zip(times) {
            // As Triton counts: every request of a batch took the batch's time.
            sum.add_many(count, time * count as u32);
        }
        self.stats.note_batch(samples, times);
        self.reply(answers);
    }

    /// The device is gone: the server is not ready until the model is loaded anew.
    fn lose(&self) {
        if !self.is_lost.swap(true, Relaxed) {
            tracing::error!(model = self.name, version = self.version, "the device is lost");
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Scores one request on this thread, beside the queue.
    pub fn score_now(&self, request: &mut InferRequest) -> Result<Vec<f32>, String> {
        let features = self.signature().features(request).map_err(|error| error.to_string())?;
        let mut scores = vec![0.0; features.samples * self.signature().scores_per_sample()];
        let mut results = [Ok(())];
        let mut worker = Worker::default();
        self.backend.run(&[&features], &mut scores, &mut results, &mut worker, &self.threads);
        let [result] = results;
        match result {
            Ok(()) => Ok(scores),
            Err(Failure::Request(problem) | Failure::Backend(problem) | Failure::Lost(problem)) => {
                Err(problem)
            }
        }
    }

    /// Sends answers last, and all at once: each send would wake the network's thread.
    fn reply(&self, answers: Vec<Answer>) {
        let send = |answers: Vec<Answer>| {
            for (reply, answer) in answers {
                let _ = reply.send(answer);
            }
        };
        match answers.len() {
            0 | 1 => send(answers),
            _ => drop(self.runtime.spawn(async move { send(answers) })),
        }
    }
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        if self.served.state().queue.remove(ticket).is_some() {
            self.served.stats.cancelled.fetch_add(1, Relaxed);
        }
    }
}

/// Scores as the bytes that are sent.
struct Floats(Vec<f32>);

impl AsRef<[u8]> for Floats {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
