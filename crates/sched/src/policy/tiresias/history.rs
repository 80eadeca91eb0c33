//! The services of finished jobs: the distribution that the Gittins index is about. While jobs run
//! their index changes, so it has floors that hold for a while.

use serde::{Deserialize, Serialize};

/// Finished jobs that are remembered.
const SERVICES_MAX: usize = 1 << 17;

/// Points of the history that share a floor of the index.
const BLOCK: usize = 16;

/// Services of ended jobs: the distribution that thresholds and the Gittins index come from.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// Sorted, and the sums of its prefixes.
    services: Vec<f64>,
    prefix: Vec<f64>,
    fresh: Vec<f64>,
    /// By queue and block: the least index of any age in the block. None as yet after a restart.
    #[serde(skip)]
    floors: Vec<Vec<f64>>,
}

impl History {
    /// Returns whether the distribution has changed.
    pub fn add(&mut self, service: f64) -> bool {
        self.fresh.push(service);
        // Merge in batches that grow with the history: amortised O(log n) a job.
        if self.fresh.len() * 8 < self.services.len() {
            return false;
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
        true
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

    /// Finds the floors anew. Between two points of the history the index grows with age, as the same
    /// jobs end and have less to go. So it is least at the points.
    pub fn set_floors(&mut self, thresholds: &[f64]) {
        let limits = thresholds.iter().copied().chain([f64::INFINITY]);
        let least = |limit: f64| {
            let block = |points: &[f64]| {
                let ages = points.iter().filter(|&&age| age < limit);
                ages.map(|&age| self.low_index(age, limit - age)).fold(f64::INFINITY, f64::min)
            };
            // The first block begins at age 0, which is no point of the history.
            let mut floors: Vec<f64> = self.services.chunks(BLOCK).map(block).collect();
            if let Some(first) = floors.first_mut() {
                *first = first.min(self.low_index(0.0, limit));
            }
            floors
        };
        self.floors = limits.map(least).collect();
    }

    /// A little less than the index, whichever way sums and the end of the quantum are rounded.
    fn low_index(&self, age: f64, quantum: f64) -> f64 {
        let all = self.prefix.last().copied().unwrap_or(0.0);
        let rounding = 8.0 * f64::EPSILON * (all + age * self.services.len() as f64);
        let low = |quantum: f64| {
            let (ending, expected) = self.ending(age, quantum);
            ending / (expected + rounding).max(f64::MIN_POSITIVE)
        };
        low(quantum).min(low(quantum * (1.0 - 1e-9))) * (1.0 - 1e-8)
    }

    /// What the index of a job in this queue does not fall below until it has had so much service.
    pub fn floor(&self, queue: usize, service: f64) -> (f64, f64) {
        let point = self.services.partition_point(|&s| s <= service).saturating_sub(1);
        let block = point / BLOCK;
        let until = self.services.get((block + 1) * BLOCK).copied().unwrap_or(f64::INFINITY);
        let floor = self.floors.get(queue).and_then(|floors| floors.get(block));
        (floor.copied().unwrap_or(0.0), until)
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    #[test]
    fn no_index_is_below_the_floor_of_its_block() {
        let mut rng = hither_core::seed::stream(1, "gittins");
        let mut history = History::default();
        let thresholds = [3250.0, 7200.0];
        for n in 0..600 {
            // Round figures too, so that services and thresholds coincide.
            let service: f64 = 10f64.powf(rng.random_range(0.0..5.0));
            history.add(if n % 3 == 0 { (service / 50.0).ceil() * 50.0 } else { service });
        }
        history.set_floors(&thresholds);
        for _ in 0..20_000 {
            let age: f64 = 10f64.powf(rng.random_range(-2.0..5.5));
            let queue = thresholds.iter().filter(|&&t| age >= t).count();
            let limit = thresholds.get(queue).copied().unwrap_or(f64::INFINITY);
            let (floor, until) = history.floor(queue, age);
            assert!(until > age);
            assert!(history.gittins_index(age, limit - age) >= floor, "at {age}");
        }
    }

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
