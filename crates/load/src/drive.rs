//! Offers load to a server, level by level. In a closed loop each of N callers sends its next request
//! when the last one was answered; in an open loop requests are due at times that do not depend on
//! the server, and a server that falls behind finds them waiting.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hither_core::seed;
use rand_distr::{Distribution as _, Exp};
use serde::Serialize;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::Error;
use crate::describe::{self, Statistics};
use crate::host::Host;
use crate::measure::{Figures, Outcome, Recorder, Times};
use crate::request::{InferRequest, outcome};
use crate::wire::Connections;

/// How often a run looks whether it is over.
const POLL: Duration = Duration::from_millis(5);
/// The pacing thread looks this often whether it should stop.
const PACER_SLEEP_MAX: Duration = Duration::from_millis(20);
/// Due requests that may wait for the client itself.
const BACKLOG_MAX: usize = 1 << 16;
/// A caller whose request failed pauses, so that a server that is gone is not called in a tight loop.
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

/// The times between requests of an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Independent callers: exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// What is offered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "loop")]
pub enum Level {
    Closed { concurrency: usize },
    Open { rate: f64, arrivals: Arrivals },
}

/// How a level is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    pub warmup: Duration,
    pub window: Duration,
    /// Windows that must agree with each other, and that figures are taken from.
    pub windows: usize,
    /// The run ends after this many windows even if they do not agree.
    pub windows_max: usize,
    /// The share of their mean that windows may differ by.
    pub stability: f64,
    /// Windows in which the host of this virtual machine took more than this share of the processors' time
    /// are left out; above 1 for none.
    pub stolen_max: f64,
    pub slo: Option<Duration>,
    /// A request without an answer after this time is lost.
    pub timeout: Duration,
    /// Most requests in flight in an open loop; further ones wait, and their latency counts.
    pub in_flight_max: usize,
    pub seed: u64,
}

/// The figures of one level.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    pub level: Level,
    /// Samples per request.
    pub samples: usize,
    /// False where windows still disagreed at the end.
    pub is_stable: bool,
    #[serde(flatten)]
    pub figures: Figures,
    /// Each window that `figures` are taken from.
    pub windows: Vec<Figures>,
    /// Windows that were left out because the host took too much of the processors' time.
    pub left_out: usize,
    /// Where the server spent its time, by its own statistics; `None` where it has none.
    pub server: Option<ServerTimes>,
    /// The first error that the server returned.
    pub failure: Option<String>,
}

/// Averages per request, by the server's own account.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServerTimes {
    pub requests: u64,
    /// Executions per second; several requests may share one.
    pub executions: u64,
    pub queue_us: f64,
    pub compute_input_us: f64,
    pub compute_infer_us: f64,
    pub compute_output_us: f64,
}

impl ServerTimes {
    fn between(before: &Statistics, after: &Statistics) -> Option<Self> {
        let requests = after.requests.checked_sub(before.requests).filter(|n| *n > 0)?;
        let mean = |read: fn(&Statistics) -> u64| {
            read(after).saturating_sub(read(before)) as f64 / 1e3 / requests as f64
        };
        Some(Self {
            requests,
            executions: after.executions.saturating_sub(before.executions),
            queue_us: mean(|s| s.queue_ns),
            compute_input_us: mean(|s| s.compute_input_ns),
            compute_infer_us: mean(|s| s.compute_infer_ns),
            compute_output_us: mean(|s| s.compute_output_ns),
        })
    }
}

/// A client with its threads, connections and requests.
pub struct Client {
    runtime: Runtime,
    shared: Arc<Shared>,
}

struct Shared {
    connections: Connections,
    requests: Vec<InferRequest>,
    next: AtomicUsize,
    model: describe::Model,
}

/// What the tasks of one run share.
struct Run {
    shared: Arc<Shared>,
    recorder: Mutex<Recorder>,
    stop: AtomicBool,
    in_flight: AtomicUsize,
    timeout: Duration,
}

/// Starts the client's threads: one that runs everything, or several workers.
pub fn runtime(threads: usize) -> Result<Runtime, Error> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().map_err(Error::Threads)
}

impl Client {
    /// `requests` are sent in turn, from the first again after the last.
    pub fn new(
        runtime: Runtime,
        connections: Connections,
        model: describe::Model,
        requests: Vec<InferRequest>,
    ) -> Self {
        let next = AtomicUsize::new(0);
        let shared = Arc::new(Shared { connections, requests, next, model });
        Self { runtime, shared }
    }

    /// Sends one request, so that a request that the server does not take is an error before the run.
    pub fn try_one(&self, limit: Duration) -> Result<(), Error> {
        let shared = &self.shared;
        let target = || shared.connections.target().to_string();
        self.runtime.block_on(async {
            match timeout(limit, shared.connections.exchange(&shared.requests[0].prepared)).await {
                Ok(reply) => match outcome(shared.connections.target().protocol, &reply?) {
                    Outcome::Failed(message) => Err(Error::Refused {
                        target: target(),
                        status: "the first request with an error".into(),
                        message,
                    }),
                    _ => Ok(()),
                },
                Err(_) => Err(Error::Broken {
                    target: target(),
                    cause: format!("no answer to the first request within {limit:?}"),
                }),
            }
        })
    }

    /// Offers one level until its windows agree. `seen` is told the figures of every closed window.
    pub fn measure(
        &self,
        level: Level,
        settings: &Settings,
        mut seen: impl FnMut(&Figures),
    ) -> Measured {
        self.runtime.block_on(async {
            let begin = Instant::now() + settings.warmup;
            let run = Arc::new(Run {
                shared: Arc::clone(&self.shared),
                recorder: Mutex::new(Recorder::new(begin, settings.window, settings.slo)),
                stop: AtomicBool::new(false),
                in_flight: AtomicUsize::new(0),
                timeout: settings.timeout,
            });
            let pacer = offer(&run, level, settings);
            tokio::time::sleep_until(begin.into()).await;
            let before = describe::statistics(&self.shared.connections, &self.shared.model).await;
            let Watched { windows, is_stable, left_out } =
                watch(&run, settings, begin, &mut seen).await;
            let after = describe::statistics(&self.shared.connections, &self.shared.model).await;
            run.stop.store(true, Ordering::Relaxed);
            while run.in_flight.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(POLL).await;
            }
            if let Some(pacer) = pacer {
                let _ = tokio::task::spawn_blocking(move || pacer.join()).await;
            }
            let recorder = run.recorder();
            let samples = self.shared.requests[0].samples;
            let (figures, windows) = recorder.figures(&windows, samples);
            let server = match (before, after) {
                (Ok(before), Ok(after)) => ServerTimes::between(&before, &after),
                _ => None,
            };
            let failure = recorder.failure().map(str::to_owned);
            Measured { level, samples, is_stable, figures, windows, left_out, server, failure }
        })
    }
}

/// Starts the callers of a level; of an open loop, returns the thread that paces it.
fn offer(run: &Arc<Run>, level: Level, settings: &Settings) -> Option<thread::JoinHandle<()>> {
    match level {
        Level::Closed { concurrency } => {
            for _ in 0..concurrency {
                tokio::spawn(call_again_and_again(Arc::clone(run)));
            }
            None
        }
        Level::Open { rate, arrivals } => {
            let (send, receive) = mpsc::channel(BACKLOG_MAX);
            tokio::spawn(dispatch(Arc::clone(run), receive, settings.in_flight_max));
            let (run, seed) = (Arc::clone(run), settings.seed);
            let begin = Instant::now();
            let pace = move || pace(&run, begin, gaps(rate, arrivals, seed), &send);
            Some(thread::Builder::new().name("pacer".into()).spawn(pace).expect("a thread starts"))
        }
    }
}

/// The windows that a level's figures are taken from.
struct Watched {
    windows: Vec<usize>,
    is_stable: bool,
    left_out: usize,
}

/// Waits until enough windows are closed and agree.
async fn watch(
    run: &Run,
    settings: &Settings,
    begin: Instant,
    seen: &mut impl FnMut(&Figures),
) -> Watched {
    let samples = run.shared.requests[0].samples;
    let mut closed = 0;
    let mut host = Host::new(begin, settings.window);
    // Behind the last window its last request may still wait for its time limit.
    let end = begin + settings.window * settings.windows_max as u32 + settings.timeout + 2 * POLL;
    loop {
        tokio::time::sleep(POLL).await;
        let now = Instant::now();
        let stolen = host.look(now);
        let (told, watched) = {
            let mut recorder = run.recorder();
            if let Some((window, share)) = stolen {
                recorder.note_stolen(window, share);
            }
            let now_closed = recorder.closed(now).min(settings.windows_max);
            let told: Vec<Figures> =
                (closed..now_closed).map(|w| recorder.figures(&[w], samples).0).collect();
            closed = now_closed;
            let kept = recorder.kept(closed, settings.stolen_max);
            let left_out = closed - kept.len();
            let is_enough = kept.len() >= settings.windows;
            // Where all are disturbed, disturbed ones have to do; they are not called stable.
            let all = if kept.is_empty() { (0..closed).collect() } else { kept };
            let windows = all[all.len().saturating_sub(settings.windows)..].to_vec();
            let is_stable = is_enough && recorder.is_stable(&windows, settings.stability);
            (told, Watched { windows, is_stable, left_out })
        };
        told.iter().for_each(&mut *seen);
        let is_over = closed >= settings.windows_max || now >= end;
        if is_over || (watched.is_stable && !told.is_empty()) {
            return watched;
        }
    }
}

impl Run {
    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Books a request that is due; its callers must `finish` it.
    fn start(&self, intended: Instant) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.recorder().issue(intended);
    }

    fn finish(&self, times: Times, outcome: Outcome) {
        self.recorder().complete(times, outcome);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sends the next request and books its end. Returns whether it failed.
    async fn call(&self, intended: Instant) -> bool {
        let shared = &self.shared;
        let at = shared.next.fetch_add(1, Ordering::Relaxed) % shared.requests.len();
        let sent = Instant::now();
        let left = (intended + self.timeout).saturating_duration_since(sent);
        let exchange = shared.connections.exchange(&shared.requests[at].prepared);
        let ended = match timeout(left, exchange).await {
            Ok(Ok(reply)) => outcome(shared.connections.target().protocol, &reply),
            Ok(Err(error)) => Outcome::Failed(error.to_string()),
            Err(_) => Outcome::TimedOut,
        };
        let is_failed = matches!(ended, Outcome::Failed(_));
        self.finish(Times { intended, sent, ended: Instant::now() }, ended);
        is_failed
    }
}

async fn call_again_and_again(run: Arc<Run>) {
    while !run.has_stopped() {
        let intended = Instant::now();
        run.start(intended);
        if run.call(intended).await {
            tokio::time::sleep(FAILURE_PAUSE).await;
        }
    }
}

/// Sends each due request at once, unless too many are in flight.
async fn dispatch(run: Arc<Run>, mut due: mpsc::Receiver<Instant>, in_flight_max: usize) {
    let room = Arc::new(Semaphore::new(in_flight_max));
    while let Some(intended) = due.recv().await {
        let permit = Arc::clone(&room).acquire_owned().await.expect("it is never closed");
        let now = Instant::now();
        if run.has_stopped() || now >= intended + run.timeout {
            run.finish(Times { intended, sent: now, ended: now }, Outcome::TimedOut);
            continue;
        }
        let run = Arc::clone(&run);
        tokio::spawn(async move {
            run.call(intended).await;
            drop(permit);
        });
    }
}

/// Books requests and hands them out at their times. A request is booked before it is handed out: one
/// that waits in the client keeps its window open.
fn pace(run: &Run, begin: Instant, mut gap: impl FnMut() -> Duration, due: &mpsc::Sender<Instant>) {
    let mut next = begin;
    loop {
        next += gap();
        loop {
            if run.has_stopped() {
                return;
            }
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(PACER_SLEEP_MAX));
        }
        run.start(next);
        if due.blocking_send(next).is_err() {
            return;
        }
    }
}

/// Draws the time between one request and the next.
fn gaps(rate: f64, arrivals: Arrivals, seed: u64) -> impl FnMut() -> Duration {
    let mut stream = seed::stream(seed, "arrivals");
    let exponential = Exp::new(rate).ok().filter(|_| arrivals == Arrivals::Poisson);
    move || {
        let gap_s = exponential.map_or(1.0 / rate, |exponential| exponential.sample(&mut stream));
        Duration::from_secs_f64(gap_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_that_was_asked_for() {
        for arrivals in [Arrivals::Poisson, Arrivals::Constant] {
            let mut gap = gaps(1000.0, arrivals, 7);
            let total: Duration = (0..100_000).map(|_| gap()).sum();
            assert!((total.as_secs_f64() / 100.0 - 1.0).abs() < 0.02, "{arrivals:?} {total:?}");
        }
        let (mut a, mut b) = (gaps(9.0, Arrivals::Poisson, 1), gaps(9.0, Arrivals::Poisson, 1));
        assert!((0..9).all(|_| a() == b()), "one seed, one schedule");
    }
}
