//! One model of many: the mean, each weighted by the nodes it learnt from.

use hither_kernels::vector;

use crate::model::Weights;

/// `shares` add up to 1. Statistics of batch norms are averaged like parameters.
pub fn average(models: &[&Weights], shares: &[f32]) -> Weights {
    Weights {
        params: mean(models.iter().map(|model| &model.params[..]), shares),
        stats: mean(models.iter().map(|model| &model.stats[..]), shares),
    }
}

pub fn mean<'a>(vectors: impl Iterator<Item = &'a [f32]>, shares: &[f32]) -> Vec<f32> {
    let mut mean = vec![];
    for (vector, share) in vectors.zip(shares) {
        mean.resize(vector.len(), 0.0);
        vector::add_scaled(&mut mean, *share, vector);
    }
    mean
}

/// A model `share` of the way from one to another.
pub fn between(from: &Weights, to: &Weights, share: f32) -> Weights {
    // All the way is exactly there.
    let go = |from: &[f32], to: &[f32]| {
        let pairs = from.iter().zip(to);
        pairs.map(|(from, to)| if share < 1.0 { from + share * (to - from) } else { *to }).collect()
    };
    Weights { params: go(&from.params, &to.params), stats: go(&from.stats, &to.stats) }
}

/// `to + (after − before)`: what somebody learnt from one model, added to another.
pub fn add_change(to: &mut Weights, before: &Weights, after: &Weights) {
    let pairs = [
        (&mut to.params, &before.params, &after.params),
        (&mut to.stats, &before.stats, &after.stats),
    ];
    for (to, before, after) in pairs {
        vector::add_scaled(to, 1.0, after);
        vector::add_scaled(to, -1.0, before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_ends_exactly_where_it_leads() {
        let weights = |value: f32| Weights { params: vec![value], stats: vec![-value] };
        let at = |share| between(&weights(0.1), &weights(0.7), share);
        assert_eq!(at(1.0).params, [0.7]);
        assert_eq!(at(0.0).params, [0.1]);
        assert!((at(0.5).params[0] - 0.4).abs() < 1e-6);
        assert!((at(0.5).stats[0] + 0.4).abs() < 1e-6);
    }
}
