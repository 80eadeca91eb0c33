//! The plain truth: weights as they came, one sum after the other.

use half::bf16;

use super::rows::{Rows, RowsMut};
use super::{Activation, Element};
use crate::gemm::sealed::Element as _;

/// The layer as plain loops. `weight` is `[outputs, inputs]`. With `pairs` the inputs are rounded to bf16 first, as the
/// weights have been.
pub(crate) fn forward<X: Element, Y: Element>(
    weight: &[f32],
    bias: &[f32],
    activation: Activation,
    pairs: bool,
    x: Rows<'_, X>,
    y: &mut RowsMut<'_, Y>,
) {
    let outputs = bias.len();
    let inputs = weight.len() / outputs.max(1);
    for row in 0..x.rows {
        let x = x.row(row, inputs);
        for (output, (y, bias)) in y.row(row, outputs).iter_mut().zip(bias).enumerate() {
            let mut sum = *bias;
            for (x, w) in x.iter().zip(&weight[output * inputs..]) {
                let x = x.widen();
                sum += w * if pairs { bf16::narrow(x).widen() } else { x };
            }
            activation.apply(std::slice::from_mut(&mut sum));
            *y = Y::narrow(sum);
        }
    }
}
