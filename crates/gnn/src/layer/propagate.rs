//! Personalised propagation (APPNP): h ← (1 − α) Â h + α h₀, a few times, without parameters.

use hither_kernels::memory::{reuse, zeros};
use hither_kernels::vector;

use super::mean::Norm;
use super::{Backward, InputGradient, Reads, Rows};
use crate::sample::{Hop, Roots};

/// Some steps of personalised propagation.
#[derive(Clone, Debug)]
pub struct Propagate {
    /// How much of its own start a node keeps at each step.
    pub alpha: f32,
    pub steps: usize,
    pub norm: Norm,
}

impl Propagate {
    pub fn reads(&self) -> Reads {
        let roots = (self.norm == Norm::Symmetric).then_some(Roots::WithSelf);
        Reads { hops: self.steps, roots, edge_weights: true, ..Reads::default() }
    }

    /// Targets of a hop are the first of its inputs, so each step's share of the start is the
    /// first rows of the input.
    pub fn forward(&self, x: &Rows, hops: &[Hop]) -> Vec<f32> {
        let Rows::Dense { values: start, dim } = x else { unreachable!("follows another layer") };
        let mut h: Option<Vec<f32>> = None;
        for hop in hops {
            let mut next = self.norm.scales(hop).forward(h.as_deref().unwrap_or(start), *dim);
            next.iter_mut().for_each(|value| *value *= 1.0 - self.alpha);
            let own = &start[..next.len()];
            vector::add_scaled(&mut next, self.alpha, own);
            h.replace(next).into_iter().for_each(reuse);
        }
        h.unwrap_or_else(|| start.to_vec())
    }

    pub fn backward(&self, pass: Backward) -> InputGradient {
        let Backward { x, hops, dy, needs_dx, .. } = pass;
        if !needs_dx {
            return None;
        }
        let dim = x.dim();
        let mut dx = zeros(x.count() * dim);
        let mut dh = dy.to_vec();
        for hop in hops.iter().rev() {
            vector::add_scaled(&mut dx[..dh.len()], self.alpha, &dh);
            dh.iter_mut().for_each(|value| *value *= 1.0 - self.alpha);
            let before = self.norm.scales(hop).backward(&dh, dim);
            reuse(std::mem::replace(&mut dh, before));
        }
        vector::add_scaled(&mut dx, 1.0, &dh);
        reuse(dh);
        Some(dx)
    }
}
