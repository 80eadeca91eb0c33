//! How fast batches are computed, learnt from those before, and when those under way should end.

use std::time::{Duration, Instant};

/// Weight of the latest batch in what was learnt.
const LATEST: f64 = 0.1;
/// What a batch takes at most is the mean and so many times the usual error.
const CAUTION: f64 = 2.0;

/// Learns from every batch that was computed.
#[derive(Debug)]
pub struct Pace {
    /// Batches that can be under way at a time.
    threads: usize,
    /// Seconds per sample; zero until a batch was computed.
    mean_s: f64,
    /// How far the seconds per sample of a batch are from the mean.
    error_s: f64,
    /// When the batches under way should end.
    ends: Vec<Instant>,
}

/// A batch under way.
#[derive(Debug)]
pub struct UnderWay {
    samples: usize,
    pub begun: Instant,
    end: Instant,
}

impl Pace {
    pub fn new(threads: usize) -> Self {
        Self { threads: threads.max(1), mean_s: 0.0, error_s: 0.0, ends: Vec::new() }
    }

    /// A batch of some samples begins.
    pub fn begin(&mut self, samples: usize, now: Instant) -> UnderWay {
        // No more can be under way: the first was a batch that failed and never told its end.
        let first = (0..self.ends.len()).min_by_key(|at| self.ends[*at]);
        if let Some(first) = first.filter(|_| self.ends.len() >= self.threads) {
            self.ends.swap_remove(first);
        }
        let end = now + self.expected(samples);
        self.ends.push(end);
        UnderWay { samples, begun: now, end }
    }

    /// A batch has been computed.
    pub fn learn(&mut self, batch: &UnderWay, now: Instant) {
        if let Some(at) = self.ends.iter().position(|end| *end == batch.end) {
            self.ends.swap_remove(at);
        }
        let took_s = now.saturating_duration_since(batch.begun).as_secs_f64();
        let sample_s = took_s / batch.samples as f64;
        if self.mean_s == 0.0 {
            self.mean_s = sample_s;
        }
        let error_s = sample_s - self.mean_s;
        self.error_s += LATEST * (error_s.abs() - self.error_s);
        self.mean_s += LATEST * error_s;
    }

    /// How long a batch should take.
    pub fn expected(&self, samples: usize) -> Duration {
        Duration::from_secs_f64(self.mean_s * samples as f64)
    }

    /// How long a batch should take at most.
    pub fn at_most(&self, samples: usize) -> Duration {
        Duration::from_secs_f64((self.mean_s + CAUTION * self.error_s) * samples as f64)
    }

    /// When the next batch can begin.
    pub fn next_begin(&self, now: Instant) -> Instant {
        let first_end = self.ends.iter().min().filter(|_| self.ends.len() >= self.threads);
        first_end.map_or(now, |end| now.max(*end))
    }

    /// When a request should be answered at the latest, if so many samples go before it.
    pub fn answered_by(&self, before: usize, samples: usize, now: Instant) -> Instant {
        self.next_begin(now) + self.at_most(before / self.threads + samples)
    }
}
