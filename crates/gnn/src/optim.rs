//! Steps along a gradient.

use hither_core::record::train::Work;
use hither_kernels::vector;

use crate::named::named;

named! {
    /// The optimisation method.
    pub enum Method("optimiser") {
        Adam = "adam",
        Sgd = "sgd",
    }
}

/// The memory of a learner between its steps. As PyTorch's of the same names, decay included.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimiser {
    pub method: Method,
    pub decay: f32,
    /// Running means of gradients and of their squares; empty for plain descent.
    pub first: Vec<f32>,
    pub second: Vec<f32>,
    pub steps: u64,
}

impl Optimiser {
    pub fn new(method: Method, decay: f32, params: usize) -> Self {
        let len = if method == Method::Adam { params } else { 0 };
        Self { method, decay, first: vec![0.0; len], second: vec![0.0; len], steps: 0 }
    }

    /// Multiply–adds of one step: Adam updates two means and the parameter, with decay before.
    pub fn work(&self, params: usize) -> Work {
        Work::sums(params, if self.method == Method::Adam { 4 } else { 2 })
    }

    pub fn step(&mut self, rate: f32, params: &mut [f32], grads: &[f32]) {
        self.steps += 1;
        match self.method {
            Method::Adam => {
                let adam = vector::Adam {
                    rate: rate.into(),
                    beta1: 0.9,
                    beta2: 0.999,
                    epsilon: 1e-8,
                    decay: self.decay.into(),
                    step: self.steps,
                };
                vector::adam(&adam, params, &mut self.first, &mut self.second, grads);
            }
            Method::Sgd => {
                params.iter_mut().for_each(|param| *param -= rate * self.decay * *param);
                vector::add_scaled(params, -rate, grads);
            }
        }
    }
}
