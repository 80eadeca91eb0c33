//! A model version that serves: its engine, its queue and its numbers.
//!
//! Requests enter the queue from the network's threads. Batches run on the engine's own threads,
//! which all models share. At most one job per model waits there: it takes its batch when it
//! begins, so requests gather while the batch before them runs.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hither_dlrm::run::{Engine, Request, Threads, Worker};
use hither_kernels::bag::TableBags;
use tokio::sync::oneshot;

use crate::config::ModelConfig;
use crate::error::{Error, shown_id};
use crate::infer::{ClientId, InferRequest, InferResponse, Scores};
use crate::inputs::{Features, Signature};
use crate::pace::UnderWay;
use crate::queue::{Offered, Queue, Ticket, Waiting};
use crate::settle::Settling;
use crate::stats::Stats;

pub struct Served {
    pub name: String,
    pub version: u64,
    pub config: ModelConfig,
    pub signature: Signature,
    pub stats: Stats,
    pub engine: Engine,
    /// How its tables are to lie, and what became of it.
    pub settling: Settling,
    queue: Mutex<State>,
    threads: Arc<Threads>,
    runtime: tokio::runtime::Handle,
}

struct State {
    queue: Queue<Pending>,
    /// A job for the next batch waits for a thread.
    is_scheduled: bool,
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
    reply: oneshot::Sender<Result<Scores, Failure>>,
}

/// What became of a request, and who waits for it.
type Answer = (oneshot::Sender<Result<Scores, Failure>>, Result<Scores, Failure>);

/// Why a queued request has no scores.
enum Failure {
    Expired,
    Displaced,
    /// The engine's own words.
    Refused(String),
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
        let ready = self.queue.ready_at().filter(|_| !self.is_scheduled)?;
        if ready <= now {
            self.is_scheduled = true;
            return Some(NextBatch::Now);
        }
        let was_timed = std::mem::replace(&mut self.is_timed, true);
        (!was_timed).then_some(NextBatch::At(ready))
    }
}

impl Served {
    /// Must be called within a tokio runtime, whose timers it uses.
    pub fn new(
        version: u64,
        config: ModelConfig,
        signature: Signature,
        engine: Engine,
        settling: Settling,
        threads: Arc<Threads>,
    ) -> Self {
        let queue = Queue::new(config.policy(), threads.count());
        let state = State { queue, is_scheduled: false, is_timed: false };
        Self {
            name: signature.model.clone(),
            version,
            config,
            signature,
            stats: Stats::default(),
            engine,
            settling,
            queue: Mutex::new(state),
            threads,
            runtime: tokio::runtime::Handle::current(),
        }
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
        let features = self.signature.features(request)?;
        let id = || shown_id(&request.id);
        let timeout = request.timeout.or(self.config.timeout());
        let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
        let (reply, answer) = oneshot::channel();
        let samples = features.samples;
        let item = Pending { features, reply };
        let waiting = Waiting { client, samples, arrived, deadline, item };
        let Some(ticket) = self.enqueue(waiting) else {
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
            Ok(Err(Failure::Expired)) => Err(Error::Timeout { id: id() }),
            Ok(Err(Failure::Displaced)) => Err(Error::QueueFull { id: id() }),
            Ok(Err(Failure::Refused(problem))) => {
                Err(Error::Request { id: id(), problem: problem.into() })
            }
            // The job panicked, and its message has been printed.
            Err(_) => Err(Error::Internal("the batch failed".into())),
        }
    }

    fn enqueue(self: &Arc<Self>, waiting: Waiting<Pending>) -> Option<Ticket> {
        let mut state = self.state();
        let (ticket, displaced) = match state.queue.offer(waiting) {
            Offered::Queued(ticket) => (ticket, None),
            Offered::Displaced(ticket, displaced) => (ticket, Some(displaced)),
            Offered::Refused(_) => return None,
        };
        let next = state.next_batch(Instant::now());
        drop(state);
        self.begin(next);
        if let Some(displaced) = displaced {
            let _ = displaced.item.reply.send(Err(Failure::Displaced));
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
        state.is_scheduled = false;
        let under_way = state.queue.take(started, &mut batch, &mut expired);
        let next = state.next_batch(started);
        drop(state);
        self.begin(next);
        for waiting in expired {
            let _ = waiting.item.reply.send(Err(Failure::Expired));
        }
        if let Some(under_way) = under_way {
            self.compute(batch, &under_way, worker);
        }
    }

    fn compute(&self, batch: Vec<Waiting<Pending>>, under_way: &UnderWay, worker: &mut Worker) {
        let started = under_way.begun;
        let outputs = self.engine.outputs();
        let samples: usize = batch.iter().map(|waiting| waiting.samples).sum();
        let lists: Vec<Vec<TableBags>> =
            batch.iter().map(|waiting| waiting.item.features.lists().collect()).collect();
        let requests: Vec<Request> = (batch.iter().zip(&lists))
            .map(|(waiting, lists)| waiting.item.features.request(lists))
            .collect();
        let mut results: Vec<_> = requests.iter().map(|_| Ok(())).collect();
        let mut scores = vec![0.0; samples * outputs];
        let begun = Instant::now();
        let threads = Some(&*self.threads);
        let done = self.engine.infer(&requests, &mut scores, &mut results, worker, threads);
        let computed = Instant::now();
        self.state().queue.learn(under_way, computed);
        drop(requests);
        drop(lists);

        self.stats.clamped.fetch_add(done.clamped, Relaxed);
        let stages = [done.times.bottom, done.times.tables, done.times.top];
        for (sum, time) in self.stats.stages.iter().zip(stages) {
            sum.fetch_add(time.as_nanos() as u64, Relaxed);
        }
        let bytes = Bytes::from_owner(Floats(scores));
        let count = batch.len() as u64;
        let mut queued = Duration::ZERO;
        let mut first = 0;
        let mut answers = Vec::with_capacity(batch.len());
        for (waiting, result) in batch.into_iter().zip(results) {
            queued += started.duration_since(waiting.arrived);
            let len = waiting.samples * outputs * 4;
            let bytes = bytes.slice(first..first + len);
            first += len;
            let scores = Scores { samples: waiting.samples, outputs, bytes };
            let answer =
                result.map(|()| scores).map_err(|error| Failure::Refused(error.to_string()));
            answers.push((waiting.item.reply, answer));
        }
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

    /// Hands answers over, last of all: on a shared core the network's thread takes this one's place. Several go
    /// together, because each by itself would wake that thread anew.
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
