//! One model of many: the mean, each weighted by the nodes it learnt from.

use hither_kernels::vector;

use crate::model::{Table, Weights};
use crate::update::Updates;

/// The weighted mean of models; `shares` add up to 1. Statistics of batch norms are averaged like parameters.
pub fn average(models: &[&Weights], shares: &[f32]) -> Weights {
    Weights {
        params: mean(models.iter().map(|model| &model.params[..]), shares),
        stats: mean(models.iter().map(|model| &model.stats[..]), shares),
    }
}

fn mean<'a>(vectors: impl Iterator<Item = &'a [f32]>, shares: &[f32]) -> Vec<f32> {
    let mut mean = vec![];
    for (vector, share) in vectors.zip(shares) {
        mean.resize(vector.len(), 0.0);
        vector::add_scaled(&mut mean, *share, vector);
    }
    mean
}

/// What each part has of a model with a row per node: the rows of its nodes, and all other parameters. A node may be in
/// several parts.
pub struct PartView {
    pub table: Table,
    /// The rows of each part.
    pub rows: Vec<Vec<u32>>,
    /// The weight of each of these rows: the edges that the part has at its node.
    pub edges: Vec<Vec<u32>>,
}

impl PartView {
    /// The weights that a part has.
    pub fn pick(&self, all: &Weights, part: usize) -> Weights {
        all.pick(&self.rows[part], &self.table)
    }

    /// Bytes of the models of all parts, sent in some form.
    pub fn bytes(&self, all: &Weights, form: Updates) -> u64 {
        let shared = all.params.len() - self.table.at.len();
        let own =
            |rows: &Vec<u32>| form.bytes(rows.len() * self.table.dim + shared, all.stats.len());
        self.rows.iter().map(own).sum()
    }

    /// As [`average`], but a row counts by the edges of its node in each part: parts without the node, or
    /// without edges at it, have learnt nothing about it. Rows that no part has learnt stay as at the start.
    pub fn average(
        &self,
        start: &Weights,
        models: &[&Weights],
        parts: &[usize],
        shares: &[f32],
    ) -> Weights {
        let Table { at, dim } = &self.table;
        let dim = *dim;
        let mut all = vec![0_u64; self.table.rows()];
        let weighted = |part: usize| self.rows[part].iter().zip(&self.edges[part]);
        for part in parts {
            weighted(*part).for_each(|(row, edges)| all[*row as usize] += u64::from(*edges));
        }
        let mut params = start.params.clone();
        for (row, _) in all.iter().enumerate().filter(|(_, edges)| **edges > 0) {
            params[row * dim..(row + 1) * dim].fill(0.0);
        }
        for (model, part) in models.iter().zip(parts) {
            let rows = model.params.chunks_exact(dim);
            for ((row, edges), learnt) in weighted(*part).zip(rows) {
                let row = *row as usize;
                if *edges > 0 {
                    let share = *edges as f32 / all[row] as f32;
                    vector::add_scaled(&mut params[row * dim..(row + 1) * dim], share, learnt);
                }
            }
        }
        let shared = params.len() - at.len();
        let behind = models.iter().map(|model| &model.params[model.params.len() - shared..]);
        params[at.end..].copy_from_slice(&mean(behind, shares));
        Weights { params, stats: mean(models.iter().map(|model| &model.stats[..]), shares) }
    }
}

/// A model `share` of the way from one to another.
pub fn between(from: &Weights, to: &Weights, share: f32) -> Weights {
    // Both ends are reached exactly. That also keeps `from` intact if `to` is not finite, because
    // 0 · ∞ is not 0.
    if share <= 0.0 {
        return from.clone();
    }
    if share >= 1.0 {
        return to.clone();
    }
    let go = |from: &[f32], to: &[f32]| {
        from.iter().zip(to).map(|(from, to)| from + share * (to - from)).collect()
    };
    Weights { params: go(&from.params, &to.params), stats: go(&from.stats, &to.stats) }
}

/// Adds to the parameters of one model what another learnt between `before` and `after`. Statistics
/// of batch norms stay as they are: the sum of two changes can make a running variance negative.
pub fn add_change(to: &mut Weights, before: &Weights, after: &Weights) {
    vector::add_scaled(&mut to.params, 1.0, &after.params);
    vector::add_scaled(&mut to.params, -1.0, &before.params);
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

    #[test]
    fn a_diverged_average_leaves_the_model_intact_if_none_of_it_is_taken() {
        let start = Weights { params: vec![0.1, 0.2], stats: vec![1.0] };
        let lost = Weights { params: vec![f32::INFINITY, f32::NAN], stats: vec![f32::NAN] };
        assert_eq!(between(&start, &lost, 0.0), start);
    }

    #[test]
    fn a_change_moves_parameters_and_never_statistics() {
        let weights = |params: [f32; 2], variance: f32| Weights {
            params: params.to_vec(),
            stats: vec![variance],
        };
        let (before, after) = (weights([1.0, 2.0], 1.0), weights([1.5, 1.0], 0.4));
        // Both sides moved the running variance from 1 towards 0.1; the sum of both changes would
        // be -0.2.
        let mut average = weights([2.0, 4.0], 0.4);
        add_change(&mut average, &before, &after);
        assert_eq!(average, weights([2.5, 3.0], 0.4));
    }
}
