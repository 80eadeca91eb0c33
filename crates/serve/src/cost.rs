//! What a request costs, in samples of the usual size. Queue, fairness, batch size and deadlines count
//! cost, because a sample may have one id or a million.
//!
//! A request's time is `ids · time per id + samples · time per sample`. Both times are fitted to what the
//! engine measures: its stages tell the time in the tables and in the layers. The cost divides that by the
//! time of a usual sample, whose number of ids is fixed by the model or learnt.

use std::time::Duration;

/// What was learnt changes by no more than this share per batch: one odd request must not change what all
/// others cost.
const STEP: f64 = 0.02;
/// Ids whose lookup takes as long as the layers of one sample, until the engine has measured.
const IDS_PER_SAMPLE: f64 = 16.0;

/// How cost is counted for a model.
#[derive(Clone, Copy, Debug)]
pub struct CostRule {
    /// Ids of a usual sample; `None` until one was seen.
    usual_ids: Option<f64>,
    is_fixed: bool,
    /// Ids whose lookup takes as long as the layers of one sample.
    sample_in_ids: f64,
}

impl CostRule {
    /// `ids_per_sample`: of all tables, where the model fixes it.
    pub fn new(ids_per_sample: Option<usize>) -> Self {
        let usual_ids = ids_per_sample.map(|ids| ids as f64);
        Self { usual_ids, is_fixed: usual_ids.is_some(), sample_in_ids: IDS_PER_SAMPLE }
    }

    /// The cost of a request, at least 1.
    pub fn cost(&self, samples: usize, ids: usize) -> usize {
        let Some(usual_ids) = self.usual_ids else { return samples.max(1) };
        let (samples, ids) = (samples as f64, ids as f64);
        let cost = (ids + self.sample_in_ids * samples) / (usual_ids + self.sample_in_ids);
        (cost.round() as usize).max(1)
    }

    /// Learns from a batch: its size, and the engine's time in the tables and in the layers.
    pub fn learn(&mut self, samples: usize, ids: usize, tables: Duration, layers: Duration) {
        if samples == 0 || ids == 0 {
            return;
        }
        let per_sample = ids as f64 / samples as f64;
        if !self.is_fixed {
            self.usual_ids =
                Some(self.usual_ids.map_or(per_sample, |usual| nearer(usual, per_sample)));
        }
        if tables.is_zero() || layers.is_zero() {
            return;
        }
        let measured = layers.as_secs_f64() / tables.as_secs_f64() * per_sample;
        self.sample_in_ids = nearer(self.sample_in_ids, measured);
    }
}

/// `known`, a step nearer to `seen`.
fn nearer(known: f64, seen: f64) -> f64 {
    seen.clamp(known * (1.0 - STEP), known * (1.0 + STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn usual_samples_cost_one_each_whatever_was_measured() {
        let mut rule = CostRule::new(Some(80));
        for samples in [1, 7, 4096] {
            assert_eq!(rule.cost(samples, 80 * samples), samples);
        }
        rule.learn(64, 64 * 80, US * 900, US * 10);
        assert_eq!(rule.cost(64, 64 * 80), 64);
    }

    #[test]
    fn a_request_costs_what_the_engine_takes_for_it() {
        let mut rule = CostRule::new(Some(26));
        // An id takes 10 ns and the layers of a sample 2 us, as 200 ids do.
        for _ in 0..400 {
            rule.learn(100, 2600, US * 26, US * 200);
        }
        let million = rule.cost(1, 1_000_000) as f64;
        assert!((million / (1_000_200.0 / 226.0) - 1.0).abs() < 0.01, "{million}");
        assert_eq!(rule.cost(1, 0), 1);
    }

    #[test]
    fn without_fixed_lengths_the_usual_sample_is_learnt() {
        let mut rule = CostRule::new(None);
        assert_eq!(rule.cost(3, 1_000_000), 3, "nothing is known yet");
        rule.learn(10, 400, US * 10, US * 10);
        assert_eq!(rule.cost(10, 400), 10);
        let odd = rule.cost(1, 1_000_000);
        assert!(odd > 10_000, "{odd}");
        rule.learn(1, 1_000_000, US * 10_000, US);
        assert!(rule.cost(1000, 40_000).abs_diff(1000) < 50, "one odd request changes little");
    }
}
