//! Light graph convolution (LightGCN, He et al., 2020): the mean of h₀, Âh₀, Â²h₀, …, without parameters. Â
//! weighs the neighbours of a node by 1/√(dᵢ dⱼ) and leaves the node itself out.

use hither_kernels::memory::{Buffer, zeros};
use hither_kernels::vector;

use super::mean::Norm;
use super::{Backward, InputGradient, Reads, Rows};
use crate::sample::{Hop, Roots};

/// Some steps of propagation, and the mean over them and the start.
#[derive(Clone, Debug)]
pub struct Light {
    pub steps: usize,
}

impl Light {
    pub fn reads(&self) -> Reads {
        let roots = Some(Roots::WithoutSelf);
        Reads { hops: self.steps, roots, edge_weights: true, ..Reads::default() }
    }

    const NORM: Norm = Norm::SymmetricNeighbours;

    /// The share of each step, and of the start.
    fn share(&self) -> f32 {
        1.0 / (self.steps + 1) as f32
    }

    /// Targets of a hop are the first of its inputs, so the rows of the last hop's targets are the first
    /// ones of every step.
    pub fn forward(&self, x: &Rows, hops: &[Hop]) -> Buffer {
        let Rows::Dense { values: start, dim } = x else { unreachable!("follows another layer") };
        let targets = hops.last().map_or(x.count(), Hop::targets);
        let mut mean = zeros(targets * dim);
        vector::add_scaled(&mut mean, self.share(), &start[..targets * dim]);
        let mut h: Option<Buffer> = None;
        for hop in hops {
            let next = Self::NORM.scales(hop).forward(h.as_deref().unwrap_or(start), *dim);
            vector::add_scaled(&mut mean, self.share(), &next[..targets * dim]);
            h = Some(next);
        }
        mean
    }

    pub fn backward(&self, pass: Backward) -> InputGradient {
        let Backward { x, hops, dy, needs_dx, .. } = pass;
        if !needs_dx {
            return None;
        }
        let dim = x.dim();
        let mut dh = zeros(dy.len());
        vector::add_scaled(&mut dh, self.share(), dy);
        for hop in hops.iter().rev() {
            dh = Self::NORM.scales(hop).backward(&dh, dim);
            vector::add_scaled(&mut dh[..dy.len()], self.share(), dy);
        }
        Some(dh)
    }
}
