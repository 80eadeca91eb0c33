//! How the models of workers become one: the server receives each and adds them up in the order of the parts, or the
//! library that carries messages adds them up on the way.

use std::{fmt, io, mem};

use hither_kernels::vector;

use super::{Answer, PartFacts};
use crate::model::Weights;

/// Who adds the models of workers in other processes up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// The server, in the order of the parts: the result has the same bytes as in one process.
    #[default]
    Ordered,
    /// The library, in an order of its own: the server receives fewer models, and last bits differ.
    Reduce,
}

/// Adds vectors of all processes of a run up.
pub trait Reduction: Send {
    /// Takes part with a vector, which is as long in every process. The server gets the sum, others nothing.
    fn sum(&mut self, own: Vec<f32>) -> io::Result<Vec<f32>>;
}

/// Takes the models out of answers and adds them up, each times its part's training nodes: parameters, then
/// statistics. Without answers it is all zero, and as long as `start`.
pub(super) fn take_sum(answers: &mut [Answer], parts: &[PartFacts], start: &Weights) -> Vec<f32> {
    let mut sum = vec![0.0; start.params.len() + start.stats.len()];
    let (params, stats) = sum.split_at_mut(start.params.len());
    for (answer, part) in answers.iter_mut().zip(parts) {
        let Weights { params: own_params, stats: own_stats } =
            mem::take(&mut answer.learnt.weights);
        vector::add_scaled(params, part.train_nodes as f32, &own_params);
        vector::add_scaled(stats, part.train_nodes as f32, &own_stats);
    }
    sum
}

/// The average of models whose sum was taken over so many training nodes.
pub(super) fn average(mut sum: Vec<f32>, train_nodes: usize, start: &Weights) -> Weights {
    let share = 1.0 / train_nodes.max(1) as f32;
    sum.iter_mut().for_each(|value| *value *= share);
    let stats = sum.split_off(start.params.len());
    Weights { params: sum, stats }
}

impl std::str::FromStr for Gather {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ordered" => Ok(Self::Ordered),
            "reduce" => Ok(Self::Reduce),
            _ => Err("expected ordered or reduce".into()),
        }
    }
}

impl fmt::Display for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ordered => "ordered",
            Self::Reduce => "reduce",
        })
    }
}
