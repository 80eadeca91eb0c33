//! How good outputs are, from 0 to 1.

use crate::{Labels, Metric};

/// The score of `nodes`, of whose outputs there is one row per node, in their order.
pub fn score(logits: &[f32], count: usize, labels: &Labels, metric: Metric, nodes: &[u32]) -> f64 {
    let rows = || nodes.iter().zip(logits.chunks_exact(count));
    match (labels, metric) {
        (Labels::Classes { of, .. }, Metric::RocAuc) => {
            let says = |(node, row): (&u32, &[f32])| (row[1] - row[0], of[*node as usize] == 1);
            area(rows().map(says).collect()).unwrap_or(0.5)
        }
        (Labels::Classes { of, .. }, Metric::F1Macro) => {
            let mut counts = vec![Counts::default(); count];
            for (node, row) in rows() {
                let (predicted, actual) = (largest(row), of[*node as usize] as usize);
                counts[predicted].predicted += 1;
                counts[actual].actual += 1;
                counts[actual].correct += u64::from(predicted == actual);
            }
            macro_f1(&counts)
        }
        (Labels::Classes { of, .. }, _) => {
            let right = |(node, row): &(&u32, &[f32])| largest(row) == of[**node as usize] as usize;
            rows().filter(right).count() as f64 / nodes.len().max(1) as f64
        }
        (Labels::Tasks { of, .. }, Metric::RocAuc) => {
            let task = |task: usize| {
                let says = |(node, row): (&u32, &[f32])| {
                    (row[task], of[*node as usize * count + task] == 1)
                };
                area(rows().map(says).collect())
            };
            // A task that all nodes answer alike tells nothing.
            let areas: Vec<f64> = (0..count).filter_map(task).collect();
            if areas.is_empty() { 0.5 } else { areas.iter().sum::<f64>() / areas.len() as f64 }
        }
        (Labels::Tasks { of, .. }, _) => {
            let mut counts = vec![Counts::default(); count];
            for (node, row) in rows() {
                let answers = &of[*node as usize * count..(*node as usize + 1) * count];
                for ((logit, answer), counts) in row.iter().zip(answers).zip(&mut counts) {
                    let yes = u64::from(*logit > 0.0);
                    counts.correct += yes * u64::from(*answer);
                    counts.predicted += yes;
                    counts.actual += u64::from(*answer);
                }
            }
            match metric {
                Metric::F1Macro => macro_f1(&counts),
                _ => counts.iter().fold(Counts::default(), Counts::add).f1(),
            }
        }
    }
}

/// How often a class was predicted, was the label, and was both.
#[derive(Clone, Copy, Default)]
struct Counts {
    predicted: u64,
    actual: u64,
    correct: u64,
}

impl Counts {
    fn add(self, other: &Self) -> Self {
        Self {
            predicted: self.predicted + other.predicted,
            actual: self.actual + other.actual,
            correct: self.correct + other.correct,
        }
    }

    fn f1(&self) -> f64 {
        2.0 * self.correct as f64 / (self.predicted + self.actual).max(1) as f64
    }
}

/// The mean F1 over the classes that occur, in predictions or in truth.
fn macro_f1(counts: &[Counts]) -> f64 {
    let occur = || counts.iter().filter(|counts| counts.predicted + counts.actual > 0);
    occur().map(Counts::f1).sum::<f64>() / occur().count().max(1) as f64
}

/// The first of the largest.
fn largest(values: &[f32]) -> usize {
    let mut best = 0;
    for (at, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = at;
        }
    }
    best
}

/// The chance that a yes ranks above a no, ties counted half. None if all are alike.
fn area(mut says: Vec<(f32, bool)>) -> Option<f64> {
    says.sort_by(|a, b| a.0.total_cmp(&b.0));
    let yes = says.iter().filter(|(_, yes)| *yes).count() as f64;
    let no = says.len() as f64 - yes;
    if yes == 0.0 || no == 0.0 {
        return None;
    }
    // Ranks of the yeses, equals sharing the mean of theirs.
    let (mut ranks, mut start) = (0.0, 0);
    for group in says.chunk_by(|a, b| a.0 == b.0) {
        let mean = start as f64 + (group.len() as f64 + 1.0) / 2.0;
        ranks += mean * group.iter().filter(|(_, yes)| *yes).count() as f64;
        start += group.len();
    }
    Some((ranks - yes * (yes + 1.0) / 2.0) / (yes * no))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn area_is_the_share_of_pairs_in_order() {
        let says = vec![(0.1, false), (0.4, true), (0.35, false), (0.8, true), (0.4, false)];
        let mut pairs = 0.0;
        for (high, _) in says.iter().filter(|(_, yes)| *yes) {
            for (low, _) in says.iter().filter(|(_, yes)| !*yes) {
                pairs += if high > low {
                    1.0
                } else if high == low {
                    0.5
                } else {
                    0.0
                };
            }
        }
        assert_eq!(area(says), Some(pairs / 6.0));
        assert_eq!(area(vec![(0.3, true)]), None);
    }
}
