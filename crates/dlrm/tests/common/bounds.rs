//! A model in plain fp64, and how far off its values are when layers round to bf16.
//!
//! Rounding is off to either side, anywhere within its unit, so what it does to a value is told by
//! a variance, and variances add: of a product of two values `a² var b + b² var a + var a var b`,
//! of a sum the sum. A ReLU makes no error larger, and a sigmoid, nowhere steeper than 1/4, makes it
//! four times smaller. Errors that come from one source are taken as independent, which weights of
//! either sign make nearly true, and [`Near::bound`] leaves room. The worst case, in which all of a
//! thousand roundings conspire, is wider than the range of scores and would allow anything.

use hither_dlrm::Model;
use hither_dlrm::model::{Interaction, Layer};

/// A number has 8 significant bits in bf16, so that rounding it moves it by 2⁻⁸ of its size.
pub const BF16_UNIT: f64 = 1.0 / 256.0;

/// A value, and how far off the computed one is.
#[derive(Clone, Copy, Debug)]
pub struct Near {
    pub value: f64,
    variance: f64,
}

impl Near {
    pub fn exactly(value: f32) -> Self {
        Self { value: value.into(), variance: 0.0 }
    }

    /// Four standard deviations, and fp32's own rounding.
    pub fn bound(self) -> f64 {
        4.0 * self.variance.sqrt() + 1e-5
    }

    /// Off by anything up to `unit` of its size: the variance of that is a third of its square.
    fn rounded(self, unit: f64) -> Self {
        let off = self.value * unit;
        Self { variance: self.variance + off * off / 3.0, ..self }
    }

    fn plus(self, other: Self) -> Self {
        Self { value: self.value + other.value, variance: self.variance + other.variance }
    }

    fn times(self, other: Self) -> Self {
        let variance = self.value.powi(2) * other.variance
            + other.value.powi(2) * self.variance
            + self.variance * other.variance;
        Self { value: self.value * other.value, variance }
    }

    fn relu(self) -> Self {
        Self { value: self.value.max(0.0), ..self }
    }

    fn sigmoid(self) -> Self {
        Self { value: 1.0 / (1.0 + (-self.value).exp()), variance: self.variance / 16.0 }
    }
}

/// What follows the last layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Last {
    Relu,
    Sigmoid,
    None,
}

/// Products with the rows of `weight`; inputs and weights are rounded to `unit` of their size.
fn linear(weight: &[f32], bias: &[f32], x: &[Near], unit: f64) -> Vec<Near> {
    let x: Vec<Near> = x.iter().map(|x| x.rounded(unit)).collect();
    let output = |(row, bias): (&[f32], &f32)| {
        let products = row.iter().zip(&x).map(|(w, x)| Near::exactly(*w).rounded(unit).times(*x));
        products.fold(Near::exactly(*bias), Near::plus)
    };
    weight.chunks(x.len()).zip(bias).map(output).collect()
}

pub fn mlp(layers: &[Layer<'_>], mut x: Vec<Near>, last: Last, unit: f64) -> Vec<Near> {
    for (index, layer) in layers.iter().enumerate() {
        x = linear(&layer.weight, &layer.bias, &x, unit);
        let activation = if index + 1 < layers.len() { Last::Relu } else { last };
        let activate = match activation {
            Last::Relu => Near::relu,
            Last::Sigmoid => Near::sigmoid,
            Last::None => |x| x,
        };
        x.iter_mut().for_each(|x| *x = activate(*x));
    }
    x
}

fn interact(model: &Model, vectors: &[Vec<Near>], unit: f64) -> Vec<Near> {
    let mut x = vectors.concat();
    match model.spec.interaction {
        Interaction::Cat => {}
        Interaction::Dot | Interaction::DotItself => {
            let itself = usize::from(model.spec.interaction == Interaction::DotItself);
            x.truncate(vectors[0].len());
            for (i, a) in vectors.iter().enumerate() {
                for b in &vectors[..i + itself] {
                    let products = a.iter().zip(b).map(|(a, b)| a.times(*b));
                    x.push(products.fold(Near::exactly(0.0), Near::plus));
                }
            }
        }
        Interaction::Projection => {
            let dim = vectors[0].len();
            let [left, right] = model
                .projection()
                .expect("its MLPs")
                .map(|layers| mlp(&layers, x.clone(), Last::Relu, unit));
            let columns = right.len() / dim;
            x.truncate(dim);
            for row in left.chunks(dim) {
                for column in 0..columns {
                    let products = (0..dim).map(|k| row[k].times(right[k * columns + column]));
                    x.push(products.fold(Near::exactly(0.0), Near::plus));
                }
            }
        }
        Interaction::Dcn => {
            let first = x.clone();
            for layer in model.cross() {
                let none = vec![0.0; layer.v.len() / x.len()];
                let low = linear(&layer.v, &none, &x, unit);
                let gate = linear(&layer.w, &layer.bias, &low, unit);
                let terms = first.iter().zip(&gate).map(|(x0, gate)| x0.times(*gate));
                x = terms.zip(&x).map(|(term, x)| term.plus(*x)).collect();
            }
        }
    }
    x
}

/// The score of one sample, from its dense features and its pooled rows, all tables side by side;
/// the layers round to `unit`.
pub fn score(model: &Model, dense: &[f32], pooled: &[f32], unit: f64) -> Near {
    let dense = dense.iter().copied().map(Near::exactly).collect();
    let mut vectors = vec![mlp(&model.bottom(), dense, Last::Relu, unit)];
    let mut rest = pooled;
    for table in &model.spec.tables {
        let (row, behind) = rest.split_at(table.dim);
        vectors.push(row.iter().copied().map(Near::exactly).collect());
        rest = behind;
    }
    let last = if model.spec.sigmoid { Last::Sigmoid } else { Last::None };
    mlp(&model.top(), interact(model, &vectors, unit), last, unit)[0]
}
