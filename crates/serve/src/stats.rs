//! Counts and times of one model version. Protocols and metrics read the same numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A number of events and the time that they took.
#[derive(Debug, Default)]
pub struct Timed {
    count: AtomicU64,
    ns: AtomicU64,
}

/// [`Timed`] at one moment.
pub use crate::grpc::proto::inference::StatisticDuration as Total;

#[derive(Debug, Default)]
pub struct Stats {
    /// Requests that were answered, with the time from arrival to answer.
    pub success: Timed,
    /// Requests that were refused or failed.
    pub fail: Timed,
    /// Of those that failed: the queue was full.
    pub refused: AtomicU64,
    /// Of those that failed: their time ran out.
    pub expired: AtomicU64,
    /// Requests whose client went away before they were computed.
    pub cancelled: AtomicU64,
    pub queue: Timed,
    pub compute_input: Timed,
    pub compute_infer: Timed,
    pub compute_output: Timed,
    /// Samples that were answered.
    pub samples: AtomicU64,
    /// Batches that were computed.
    pub batches: AtomicU64,
    /// Ids for which the nearest row was taken.
    pub clamped: AtomicU64,
    /// Requests that were refused for scores that are not finite.
    pub not_finite: AtomicU64,
    /// Time in the engine's stages, in nanoseconds, summed over threads.
    pub stages: [AtomicU64; 3],
    pub latency: Histogram,
    last_ms: AtomicU64,
    by_size: Mutex<BTreeMap<usize, [Total; 3]>>,
}

/// Names of [`Stats::stages`].
pub const STAGES: [&str; 3] = ["bottom", "tables", "top"];

/// Counts of latencies in buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS_US.len() + 1],
    sum_ns: AtomicU64,
}

/// Upper bounds of the buckets of latencies, in microseconds.
pub const BUCKETS_US: [u64; 18] = [
    100, 200, 300, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 7_500, 10_000, 20_000, 50_000,
    100_000, 250_000, 1_000_000, 5_000_000,
];

impl Timed {
    pub fn add(&self, time: Duration) {
        self.add_many(1, time);
    }

    pub fn add_many(&self, count: u64, time: Duration) {
        self.count.fetch_add(count, Relaxed);
        self.ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub fn read(&self) -> Total {
        Total { count: self.count.load(Relaxed), ns: self.ns.load(Relaxed) }
    }
}

impl Stats {
    /// Notes a computed batch; `times` are input, infer and output.
    pub fn note_batch(&self, samples: usize, times: [Duration; 3]) {
        self.batches.fetch_add(1, Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_ms.store(now.as_millis() as u64, Relaxed);
        let mut by_size = self.by_size.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, time) in by_size.entry(samples).or_default().iter_mut().zip(times) {
            sum.count += 1;
            sum.ns += time.as_nanos() as u64;
        }
    }

    /// The time of the last batch in milliseconds since 1970; 0 before the first.
    pub fn last_ms(&self) -> u64 {
        self.last_ms.load(Relaxed)
    }

    /// Input, infer and output times by the samples of a batch.
    pub fn by_size(&self) -> BTreeMap<usize, [Total; 3]> {
        self.by_size.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Histogram {
    pub fn add(&self, time: Duration) {
        let us = time.as_micros() as u64;
        let bucket = BUCKETS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// The count in each bucket, the last of which has no upper bound.
    pub fn counts(&self) -> [u64; BUCKETS_US.len() + 1] {
        std::array::from_fn(|bucket| self.buckets[bucket].load(Relaxed))
    }

    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.load(Relaxed))
    }
}
