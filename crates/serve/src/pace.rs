//! How fast batches are computed, learnt from those before, and when those under way should end. Work is
//! counted in cost ([`crate::cost`]).
//!
//! A model does not have the threads to itself: others compute on them, and a GPU takes one batch at a time.
//! So the pace also learns how long a batch that is due waits for a thread, and how many of the model's
//! batches are under way together while others want threads too.

use std::time::{Duration, Instant};

/// Weight of the latest batch in what was learnt.
const LATEST: f64 = 0.1;
/// The most that a batch should take is the mean and this many times the mean absolute error.
const CAUTION: f64 = 2.0;

/// Threads are short where batches wait for one longer than this share of their own time.
const SHORT: f64 = 0.1;

/// Learns from every batch that was computed.
#[derive(Debug)]
pub struct Pace {
    /// Batches that can be under way at a time.
    threads: usize,
    /// Seconds per cost; zero until a batch was computed.
    mean_s: f64,
    /// Mean absolute error of `mean_s` as a forecast.
    error_s: f64,
    /// Seconds that a batch waits for a thread after it was due, and the mean absolute error of that.
    wait_s: f64,
    wait_error_s: f64,
    /// Batches of this model that are under way together when it is busy.
    at_once: f64,
    /// When the batches under way should end.
    ends: Vec<Instant>,
}

/// A batch under way.
#[derive(Debug)]
pub struct UnderWay {
    cost: usize,
    pub begun: Instant,
    end: Instant,
}

impl Pace {
    pub fn new(threads: usize) -> Self {
        Self {
            threads: threads.max(1),
            mean_s: 0.0,
            error_s: 0.0,
            wait_s: 0.0,
            wait_error_s: 0.0,
            at_once: threads.max(1) as f64,
            ends: Vec::new(),
        }
    }

    /// A batch that was due got its thread after so long.
    pub fn waited(&mut self, wait: Duration) {
        let error_s = wait.as_secs_f64() - self.wait_s;
        self.wait_error_s += LATEST * (error_s.abs() - self.wait_error_s);
        self.wait_s += LATEST * error_s;
    }

    /// A batch of some cost begins.
    pub fn begin(&mut self, cost: usize, now: Instant) -> UnderWay {
        // No more can be under way: the first was a batch that failed and never told its end.
        let first = (0..self.ends.len()).min_by_key(|at| self.ends[*at]);
        if let Some(first) = first.filter(|_| self.ends.len() >= self.threads) {
            self.ends.swap_remove(first);
        }
        let end = now + self.expected(cost);
        self.ends.push(end);
        // Only a model that waits for threads has as many as it can get.
        let is_short = self.wait_s > SHORT * self.expected(cost).as_secs_f64();
        let at_once = if is_short { self.ends.len() } else { self.threads };
        self.at_once += LATEST * (at_once as f64 - self.at_once);
        UnderWay { cost, begun: now, end }
    }

    /// A batch has been computed.
    pub fn learn(&mut self, batch: &UnderWay, now: Instant) {
        if let Some(at) = self.ends.iter().position(|end| *end == batch.end) {
            self.ends.swap_remove(at);
        }
        let took_s = now.saturating_duration_since(batch.begun).as_secs_f64();
        let cost_s = took_s / batch.cost as f64;
        if self.mean_s == 0.0 {
            self.mean_s = cost_s;
        }
        let error_s = cost_s - self.mean_s;
        self.error_s += LATEST * (error_s.abs() - self.error_s);
        self.mean_s += LATEST * error_s;
    }

    /// How long a batch should take.
    pub fn expected(&self, cost: usize) -> Duration {
        Duration::from_secs_f64(self.mean_s * cost as f64)
    }

    /// How long a batch should take at most.
    pub fn at_most(&self, cost: usize) -> Duration {
        Duration::from_secs_f64((self.mean_s + CAUTION * self.error_s) * cost as f64)
    }

    /// When the next batch can begin.
    pub fn next_begin(&self, now: Instant) -> Instant {
        let first_end = self.ends.iter().min().filter(|_| self.ends.len() >= self.threads);
        first_end.map_or(now, |end| now.max(*end))
    }

    /// When a request should be answered at the latest, if so much goes before it.
    pub fn answered_by(&self, before: usize, cost: usize, now: Instant) -> Instant {
        let wait = Duration::from_secs_f64(self.wait_s + CAUTION * self.wait_error_s);
        self.next_begin(now) + wait + self.at_most((before as f64 / self.at_once) as usize + cost)
    }
}
