//! Personalised propagation (APPNP): h ← (1 − α) Â h + α h₀, a few times, without parameters.

use hither_kernels::memory::{Buffer, copy, zeros};
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
    pub fn forward(&self, x: &Rows, hops: &[Hop]) -> Buffer {
        let Rows::Dense { values: start, dim } = x else { unreachable!("follows another layer") };
        let mut h: Option<Buffer> = None;
        for hop in hops {
            let mut next = self.norm.scales(hop).forward(h.as_deref().unwrap_or(start), *dim);
            next.iter_mut().for_each(|value| *value *= 1.0 - self.alpha);
            let own = &start[..next.len()];
            vector::add_scaled(&mut next, self.alpha, own);
            h = Some(next);
        }
        h.unwrap_or_else(|| copy(start))
    }

    pub fn backward(&self, pass: Backward) -> InputGradient {
        let Backward { x, hops, dy, needs_dx, .. } = pass;
        if !needs_dx {
            return None;
        }
        let dim = x.dim();
        let mut dx = zeros(x.count() * dim);
        let mut dh = copy(dy);
        for hop in hops.iter().rev() {
            vector::add_scaled(&mut dx[..dh.len()], self.alpha, &dh);
            dh.iter_mut().for_each(|value| *value *= 1.0 - self.alpha);
            dh = self.norm.scales(hop).backward(&dh, dim);
        }
        vector::add_scaled(&mut dx, 1.0, &dh);
        Some(dx)
    }
}
