//! How far workers pull from where the whole graph would, measured on a few of their nodes.
//!
//! At the global model θ, for each worker p and the same nodes: g = its gradient as it sees them,
//! f = with all their neighbours; ∇ = the mean of f over workers. Then κA = max ‖g − f‖ and
//! κX = max ‖f − ∇‖. Over few nodes a norm would be mostly noise; so the nodes are halved, and the
//! squared norm is the product of both halves, whose expectation is right.
//!
//! Workers measure g ([`Probe::worker_half`]), the server f ([`Probe::server_half`]). Both draw the
//! same nodes from the same stream, so that no node numbers are sent.

use hither_core::record::train::{Drift, Work};
use hither_core::seed;

use crate::average::mean;
use crate::local::Learner;
use crate::model::{Model, Weights};
use crate::sample::{Fanout, draw};

/// Nodes of a part in each half.
const PROBES: usize = 64;

/// One measurement: where, and by which draws.
pub struct Probe<'a> {
    pub model: &'a Model,
    pub weights: &'a Weights,
    pub seed: u64,
    pub round: u32,
    /// The neighbours that workers sample.
    pub fanout: Fanout,
}

/// What a worker measures of itself.
#[derive(Debug)]
pub struct Probed {
    /// g of both halves.
    pub gradients: [Vec<f32>; 2],
    /// Squared error of sampling neighbours.
    pub bias_squared: f64,
    pub work: Work,
}

/// What the server combines: one entry per part that answered.
pub struct Part<'a> {
    /// The part's training nodes by their numbers in the whole graph, in the order of the part.
    pub train: &'a [u32],
    pub number: usize,
    pub share: f32,
    pub probed: &'a Probed,
}

impl Probe<'_> {
    /// The worker's gradients on a few nodes of its part.
    pub fn worker_half(&self, part: usize, worker: &mut Learner) -> Probed {
        let train = worker.train.clone();
        let (mut bias_squared, mut work) = (0.0, Work::default());
        let gradients = [0, 1].map(|half| {
            let nodes = self.nodes(part, half, &train);
            let g = self.gradient(worker, nodes.clone(), &Fanout::All, &mut work);
            if half == 0 && self.fanout != Fanout::All {
                let drawn = self.gradient(worker, nodes, &self.fanout, &mut work);
                bias_squared = squared(&difference(&drawn, &g));
            }
            g
        });
        Probed { gradients, bias_squared, work }
    }

    /// The server's gradients on the same nodes, and how far the workers' are from them.
    pub fn server_half(
        &self,
        parts: &[Part],
        server: &mut Learner,
        local_squared: f64,
    ) -> (Drift, Work) {
        let (mut cut, mut full) = ([vec![], vec![]], [vec![], vec![]]);
        let mut work: Work = parts.iter().map(|part| part.probed.work).sum();
        for half in 0..2 {
            for part in parts {
                let nodes = self.nodes(part.number, half, part.train);
                let f = self.gradient(server, nodes, &Fanout::All, &mut work);
                cut[half].push(difference(&part.probed.gradients[half], &f));
                full[half].push(f);
            }
        }
        let shares: Vec<f32> = parts.iter().map(|part| part.share).collect();
        let means = full.each_ref().map(|all| mean(all.iter().map(Vec::as_slice), &shares));
        let largest =
            |norms: &dyn Fn(usize) -> f64| (0..parts.len()).map(norms).fold(0.0, f64::max).sqrt();
        let bias = parts.iter().map(|part| f64::from(part.share) * part.probed.bias_squared);
        let drift = Drift {
            kappa_a: largest(&|part| dot(&cut[0][part], &cut[1][part])),
            kappa_x: largest(&|part| {
                let [a, b] = [0, 1].map(|half| difference(&full[half][part], &means[half]));
                dot(&a, &b)
            }),
            bias_squared: bias.sum(),
            local_squared,
        };
        (drift, work)
    }

    fn nodes(&self, part: usize, half: usize, train: &[u32]) -> Vec<u32> {
        let name = format!("probe/{part}/{}/{half}", self.round);
        draw(train, PROBES, &mut seed::stream(self.seed, &name))
    }

    fn gradient(
        &self,
        learner: &mut Learner,
        nodes: Vec<u32>,
        fanout: &Fanout,
        work: &mut Work,
    ) -> Vec<f32> {
        let name = format!("probe/{}", self.round);
        let (gradient, took) =
            learner.gradient(self.model, self.weights, nodes, fanout, (self.seed, &name));
        *work += took;
        gradient
    }
}

fn difference(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn squared(a: &[f32]) -> f64 {
    dot(a, a)
}
