//! Order statistics and confidence intervals.

use serde::{Deserialize, Serialize};

/// Mean and quantiles of one quantity over the jobs of a run, in the quantity's own unit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Quantiles {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Quantiles {
    /// Mean and quantiles of some values; zeros if there are none. The mean is summed in the order given.
    pub fn from_values(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self {
            mean,
            p50: quantile(&sorted, 0.50),
            p95: quantile(&sorted, 0.95),
            p99: quantile(&sorted, 0.99),
            max: sorted[sorted.len() - 1],
        }
    }
}

/// The quantile rule used everywhere: `sorted[floor(q · n)]`, the one that published simulators
/// print. `sorted` must not be empty.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64) as usize;
    sorted[rank.min(sorted.len() - 1)]
}

/// Mean and the half-width of its 95 % confidence interval (Student's t).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Estimate {
    pub mean: f64,
    pub half_width: f64,
    pub n: usize,
}

impl Estimate {
    pub fn from_values(values: &[f64]) -> Self {
        let n = values.len();
        if n == 0 {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        if n == 1 {
            return Self { mean, half_width: f64::INFINITY, n };
        }
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let half_width = student_t_975(n - 1) * (variance / n as f64).sqrt();
        Self { mean, half_width, n }
    }
}

/// The 97.5 % point of Student's t distribution; exact to three digits up to 30 degrees of
/// freedom, the normal's beyond.
fn student_t_975(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    TABLE.get(degrees.wrapping_sub(1)).copied().unwrap_or(1.960)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_follow_the_floor_rule() {
        let values: Vec<f64> = (0..200).map(f64::from).collect();
        let q = Quantiles::from_values(&values);
        assert_eq!((q.p50, q.p95, q.p99, q.max), (100.0, 190.0, 198.0, 199.0));
        assert_eq!(Quantiles::from_values(&[7.0]).p99, 7.0);
        assert_eq!(Quantiles::from_values(&[]), Quantiles::default());
    }

    #[test]
    fn interval_of_a_known_sample() {
        // 2, 4, 6: mean 4, standard deviation 2, t(2) = 4.303.
        let e = Estimate::from_values(&[2.0, 4.0, 6.0]);
        assert_eq!(e.mean, 4.0);
        assert!((e.half_width - 4.303 * 2.0 / 3f64.sqrt()).abs() < 1e-9);
    }
}
