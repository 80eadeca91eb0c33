//! The GPU time of ended jobs: the distribution that Tiresias' queues and the Gittins index are about.

use serde::{Deserialize, Serialize};

/// Ended jobs that are remembered.
const SERVICES_MAX: usize = 1 << 13;

/// GPU seconds of ended jobs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct History {
    /// Sorted, and the sums of its prefixes.
    services: Vec<f64>,
    prefix: Vec<f64>,
    fresh: Vec<f64>,
    /// Counts the changes of the distribution.
    pub changes: u64,
}

impl History {
    /// A job has ended after so many GPU seconds.
    pub fn add(&mut self, service: f64) {
        self.fresh.push(service);
        // Merge in batches that grow with the history: amortised O(log n) a job.
        if self.fresh.len() * 8 < self.services.len() {
            return;
        }
        self.services.append(&mut self.fresh);
        self.services.sort_by(f64::total_cmp);
        // Every second one says as much of the distribution, and memory stays bounded.
        if self.services.len() > SERVICES_MAX {
            self.services = self.services.iter().copied().step_by(2).collect();
        }
        self.prefix.clear();
        self.prefix.push(0.0);
        for s in &self.services {
            self.prefix.push(self.prefix[self.prefix.len() - 1] + s);
        }
        self.changes += 1;
    }

    /// How many ended jobs the distribution is of.
    pub fn len(&self) -> usize {
        self.services.len()
    }

    /// The service that this share of the ended jobs had at most.
    pub fn quantile(&self, share: f64) -> f64 {
        hither_core::summary::quantile(&self.services, share)
    }

    /// Chance that a job of this age ends within the quantum, over the service that it then
    /// expects to get: P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a].
    pub fn gittins_index(&self, age: f64, quantum: f64) -> f64 {
        let (ending, expected) = self.ending(age, quantum);
        if ending == 0.0 { 0.0 } else { ending / expected.max(f64::MIN_POSITIVE) }
    }

    /// Jobs that got past this age and ended within the quantum, and the service that all who got
    /// past it had within the quantum.
    fn ending(&self, age: f64, quantum: f64) -> (f64, f64) {
        let n = self.services.len();
        let from = self.services.partition_point(|&s| s <= age);
        let to = self.services.partition_point(|&s| s <= age + quantum);
        if from >= n {
            return (0.0, 0.0);
        }
        let ending = (to - from) as f64;
        let spent = self.prefix[to] - self.prefix[from] - age * ending;
        let beyond = if to < n { (n - to) as f64 * quantum } else { 0.0 };
        (ending, spent + beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gittins_index_of_a_known_distribution() {
        let mut history = History::default();
        for service in [10.0, 20.0, 100.0, 100.0] {
            history.add(service);
        }
        // Age 0, quantum 20: two of four end; they expect (10 + 20 + 20 + 20) service.
        assert!((history.gittins_index(0.0, 20.0) - 2.0 / 70.0).abs() < 1e-12);
        // Age 20: both that are left end at 100.
        assert!((history.gittins_index(20.0, f64::INFINITY) - 2.0 / 160.0).abs() < 1e-12);
        assert_eq!(history.gittins_index(100.0, 5.0), 0.0);
    }
}
