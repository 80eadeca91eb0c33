//! The layer between the two MLPs, which combines dense features and pooled rows.

use hither_kernels::detect::Cpu;
use hither_kernels::gemm::{Activation, Linear, Precision, Rows, RowsMut};
use hither_kernels::interact::{Dot, cat, cross, products};

use crate::mlp::{Mlp, ROWS_AT_ONCE, Scratch, view, view_mut};
use crate::model::{CrossLayer, Interaction, Model};

/// An [`Interaction`] made ready to compute.
pub enum Interactor {
    Dot(Dot),
    Cat(Widths),
    Dcn(Widths, Vec<LowRank>),
    /// The left and the right MLP.
    Projection(Widths, Mlp, Mlp),
}

/// Elements of a sample's dense features, and of its pooled rows together.
#[derive(Clone, Copy, Debug)]
pub struct Widths {
    dense: usize,
    pooled: usize,
}

/// `x' = x₀ · (W (V x) + bias) + x`.
pub struct LowRank {
    v: Linear,
    w: Linear,
}

impl Interactor {
    pub fn new(model: &Model, precision: Precision, cpu: Cpu) -> Self {
        let spec = &model.spec;
        let dense = spec.bottom_width();
        let widths = Widths { dense, pooled: spec.concatenated_width() - dense };
        match spec.interaction {
            Interaction::Dot => Self::Dot(Dot::new(dense, spec.tables.len(), cpu.isa)),
            Interaction::DotItself => {
                Self::Dot(Dot::with_itself(dense, spec.tables.len(), cpu.isa))
            }
            Interaction::Cat => Self::Cat(widths),
            Interaction::Dcn => {
                let pack = |layer| LowRank::pack(layer, widths.total(), precision, cpu);
                Self::Dcn(widths, model.cross().iter().map(pack).collect())
            }
            Interaction::Projection => {
                let [left, right] = model.projection().unwrap_or_default();
                let mlp = |layers: &[_]| Mlp::new(layers, Activation::Relu, precision, cpu);
                Self::Projection(widths, mlp(&left), mlp(&right))
            }
        }
    }

    /// Outputs per sample.
    pub fn width(&self) -> usize {
        match self {
            Self::Dot(dot) => dot.width(),
            Self::Cat(widths) | Self::Dcn(widths, _) => widths.total(),
            Self::Projection(widths, left, right) => {
                let vectors = |mlp: &Mlp| mlp.outputs() / widths.dense;
                widths.dense + vectors(left) * vectors(right)
            }
        }
    }

    /// Computes all rows in this thread. A row's result depends on nothing but the row.
    ///
    /// # Panics
    /// If the matrices differ in rows or do not hold rows of these widths.
    pub fn forward(
        &self,
        dense: Rows<'_, f32>,
        pooled: Rows<'_, f32>,
        out: RowsMut<'_, f32>,
        scratch: &mut Scratch,
    ) {
        match self {
            Self::Dot(dot) => dot.forward(dense, pooled, out),
            Self::Cat(widths) => cat(dense, widths.dense, pooled, widths.pooled, out),
            Self::Dcn(widths, layers) => {
                let RowsMut { data, rows, stride } = out;
                cat(dense, widths.dense, pooled, widths.pooled, RowsMut::new(data, rows, stride));
                for first in (0..rows).step_by(ROWS_AT_ONCE) {
                    let rows = ROWS_AT_ONCE.min(rows - first);
                    let some = RowsMut::new(&mut data[first * stride..], rows, stride);
                    run(layers, widths.total(), some, scratch);
                }
            }
            Self::Projection(widths, left, right) => {
                project(*widths, [left, right], dense, pooled, out, scratch);
            }
        }
    }
}

/// All features side by side through both MLPs, whose outputs are multiplied.
fn project(
    widths: Widths,
    mlps: [&Mlp; 2],
    dense: Rows<'_, f32>,
    pooled: Rows<'_, f32>,
    out: RowsMut<'_, f32>,
    scratch: &mut Scratch,
) {
    let (rows, total) = (dense.rows, widths.total());
    let [mut joined, mut left, mut right] = std::mem::take(&mut scratch.projected);
    let x = view_mut::<f32>(&mut joined, rows, total);
    cat(Rows::new(dense.data, rows, dense.stride), widths.dense, pooled, widths.pooled, x);
    for (mlp, buffer) in mlps.into_iter().zip([&mut left, &mut right]) {
        let y = view_mut::<f32>(buffer, rows, mlp.outputs());
        mlp.forward(view(&joined, rows, total), y, scratch);
    }
    let [lefts, rights] = mlps.map(Mlp::outputs);
    let (x, y) = (view(&left, rows, lefts), view(&right, rows, rights));
    products(dense, widths.dense, (x, lefts), (y, rights), out);
    scratch.projected = [joined, left, right];
}

impl Widths {
    fn total(self) -> usize {
        self.dense + self.pooled
    }
}

impl LowRank {
    fn pack(layer: &CrossLayer<'_>, width: usize, precision: Precision, cpu: Cpu) -> Self {
        let rank = layer.v.len() / width;
        let none = vec![0.0; rank];
        let v = Linear::pack(&layer.v, &none, width, Activation::None, precision, cpu);
        let w = Linear::pack(&layer.w, &layer.bias, rank, Activation::None, precision, cpu);
        Self { v, w }
    }
}

/// All cross layers on `x`, in place.
fn run(layers: &[LowRank], width: usize, x: RowsMut<'_, f32>, scratch: &mut Scratch) {
    let RowsMut { data, rows, stride } = x;
    let Scratch { kernel, buffers: [first, gate], low, .. } = scratch;
    let copy = view_mut::<f32>(first, rows, width);
    for row in 0..rows {
        copy.data[row * copy.stride..][..width].copy_from_slice(&data[row * stride..][..width]);
    }
    for layer in layers {
        let rank = layer.v.outputs();
        layer.v.forward(Rows::new(data, rows, stride), view_mut::<f32>(low, rows, rank), kernel);
        layer.w.forward(view::<f32>(low, rows, rank), view_mut::<f32>(gate, rows, width), kernel);
        let x = RowsMut::new(data, rows, stride);
        cross(view(first, rows, width), view(gate, rows, width), x, width);
    }
}
