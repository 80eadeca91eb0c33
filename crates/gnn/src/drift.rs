//! How far workers pull from where the whole graph would, measured on a few of their nodes.
//!
//! At the global model θ, for each worker p and the same nodes: g = its gradient as it sees them,
//! f = with all their neighbours; ∇ = the mean of f over workers. Then κA = max ‖g − f‖ and
//! κX = max ‖f − ∇‖. Of few nodes a norm would be mostly chance; so the nodes are halved, and the
//! squared norm is the product of what both halves say, which is right on average.

use hither_core::record::train::Drift;
use hither_core::seed;

use crate::average::mean;
use crate::local::Learner;
use crate::model::{Model, Weights};
use crate::sample::{Fanout, draw};

/// Nodes of a part in each half.
const PROBES: usize = 64;

pub struct Probe<'a> {
    pub model: &'a Model,
    pub weights: &'a Weights,
    pub seed: u64,
    pub round: u32,
    /// What workers draw, and what stands for all neighbours.
    pub fanout: Fanout,
    pub full: &'a Fanout,
}

impl Probe<'_> {
    /// `globals` are the numbers, in the server's data, of each worker's nodes.
    pub fn measure(
        &self,
        workers: &mut [Learner],
        globals: &[Vec<u32>],
        shares: &[f32],
        server: &mut Learner,
        local_squared: f64,
    ) -> Drift {
        let (mut cut, mut full, mut bias) = ([vec![], vec![]], [vec![], vec![]], 0.0);
        for half in 0..2 {
            for (part, worker) in workers.iter_mut().enumerate() {
                let name = format!("probe/{part}/{}/{half}", self.round);
                let nodes = draw(&worker.train, PROBES, &mut seed::stream(self.seed, &name));
                let global = nodes.iter().map(|node| globals[part][*node as usize]).collect();
                let g = self.gradient(worker, nodes.clone(), self.full, &name);
                let f = self.gradient(server, global, self.full, &name);
                if half == 0 && self.fanout != *self.full {
                    let drawn = self.gradient(worker, nodes, &self.fanout, &name);
                    bias += f64::from(shares[part]) * dot(&difference(&drawn, &g), None);
                }
                cut[half].push(difference(&g, &f));
                full[half].push(f);
            }
        }
        let means = full.each_ref().map(|all| mean(all.iter().map(Vec::as_slice), shares));
        let largest =
            |norms: &dyn Fn(usize) -> f64| (0..workers.len()).map(norms).fold(0.0, f64::max).sqrt();
        Drift {
            kappa_a: largest(&|part| dot(&cut[0][part], Some(&cut[1][part]))),
            kappa_x: largest(&|part| {
                let [a, b] = [0, 1].map(|half| difference(&full[half][part], &means[half]));
                dot(&a, Some(&b))
            }),
            bias_squared: bias,
            local_squared,
        }
    }

    fn gradient(&self, of: &mut Learner, nodes: Vec<u32>, fanout: &Fanout, name: &str) -> Vec<f32> {
        of.gradient(self.model, self.weights, nodes, fanout, (self.seed, name))
    }
}

fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// With itself if with no other.
fn dot(a: &[f32], b: Option<&[f32]>) -> f64 {
    a.iter().zip(b.unwrap_or(a)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}
