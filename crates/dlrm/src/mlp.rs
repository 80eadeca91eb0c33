//! Perceptrons: layers one behind the other.

use half::bf16;
use hither_kernels::detect::Cpu;
use hither_kernels::gemm::{self, Activation, Element, Linear, Precision, Rows, RowsMut};

use crate::model::Layer;

/// Rows that pass all layers before the next ones begin: what lies between layers stays in the
/// second-level cache, and [`Scratch`] stays small.
pub(crate) const ROWS_AT_ONCE: usize = 96;

/// A perceptron with packed weights.
pub struct Mlp {
    layers: Vec<Linear>,
}

/// Memory of a thread's own for what lies between layers. It grows to what the widest layers
/// need, and is then kept from call to call.
#[derive(Default)]
pub struct Scratch {
    pub(crate) kernel: gemm::LayerScratch,
    pub(crate) buffers: [Vec<f32>; 2],
    /// Between the two products of a cross layer.
    pub(crate) low: Vec<f32>,
    /// The input and the two outputs of a projection.
    pub(crate) projected: [Vec<f32>; 3],
}

/// What a layer reads, or writes, in the type that its neighbour wants.
enum Values<T, U> {
    F32(T),
    Bf16(U),
}

impl Mlp {
    /// Packs the layers, with ReLU between them and `last` behind the last one.
    ///
    /// # Panics
    /// If a layer's tensors do not have its size, which opening a model has checked.
    pub fn new(layers: &[Layer<'_>], last: Activation, precision: Precision, cpu: Cpu) -> Self {
        let pack = |(index, layer): (usize, &Layer<'_>)| {
            let activation = if index + 1 == layers.len() { last } else { Activation::Relu };
            Linear::pack(&layer.weight, &layer.bias, layer.inputs, activation, precision, cpu)
        };
        Self { layers: layers.iter().enumerate().map(pack).collect() }
    }

    pub fn inputs(&self) -> usize {
        self.layers.first().map_or(0, Linear::inputs)
    }

    pub fn outputs(&self) -> usize {
        self.layers.last().map_or(0, Linear::outputs)
    }

    /// Computes all rows of x in this thread. A row's result depends on nothing but the row.
    ///
    /// # Panics
    /// If x and y differ in rows, or do not hold rows of these widths.
    pub fn forward(&self, x: Rows<'_, f32>, y: RowsMut<'_, f32>, scratch: &mut Scratch) {
        assert_eq!(x.rows, y.rows, "rows of x and y");
        for first in (0..x.rows).step_by(ROWS_AT_ONCE) {
            let rows = ROWS_AT_ONCE.min(x.rows - first);
            let x = Rows::new(&x.data[first * x.stride..], rows, x.stride);
            let y = RowsMut::new(&mut y.data[first * y.stride..], rows, y.stride);
            self.forward_some(x, y, scratch);
        }
    }

    fn forward_some(&self, x: Rows<'_, f32>, y: RowsMut<'_, f32>, scratch: &mut Scratch) {
        let Some((last, others)) = self.layers.split_last() else { return };
        let rows = x.rows;
        let Scratch { kernel, buffers: [from, to], .. } = scratch;
        let (mut from, mut to) = (from, to);
        let mut x = Values::F32(x);
        for (layer, next) in others.iter().zip(&self.layers[1..]) {
            let width = layer.outputs();
            let y = match next.precision() {
                Precision::F32 => Values::F32(view_mut::<f32>(to, rows, width)),
                Precision::Bf16 => Values::Bf16(view_mut::<bf16>(to, rows, width)),
            };
            run(layer, x, y, kernel);
            std::mem::swap(&mut from, &mut to);
            x = match next.precision() {
                Precision::F32 => Values::F32(view::<f32>(from, rows, width)),
                Precision::Bf16 => Values::Bf16(view::<bf16>(from, rows, width)),
            };
        }
        run(last, x, Values::F32(y), kernel);
    }
}

fn run(
    layer: &Linear,
    x: Values<Rows<'_, f32>, Rows<'_, bf16>>,
    y: Values<RowsMut<'_, f32>, RowsMut<'_, bf16>>,
    scratch: &mut gemm::LayerScratch,
) {
    match (x, y) {
        (Values::F32(x), Values::F32(y)) => layer.forward(x, y, scratch),
        (Values::F32(x), Values::Bf16(y)) => layer.forward(x, y, scratch),
        (Values::Bf16(x), Values::F32(y)) => layer.forward(x, y, scratch),
        (Values::Bf16(x), Values::Bf16(y)) => layer.forward(x, y, scratch),
    }
}

/// Room in `buffer` for rows of `width` elements, as the kernels like them.
pub(crate) fn view_mut<T: Element>(
    buffer: &mut Vec<f32>,
    rows: usize,
    width: usize,
) -> RowsMut<'_, T> {
    let stride = gemm::stride_for::<T>(width);
    let len = (rows * stride * size_of::<T>()).div_ceil(size_of::<f32>());
    RowsMut::new(bytemuck::cast_slice_mut(aligned(buffer, len)), rows, stride)
}

/// Room for `len` elements that begins with a cache line. It holds what was left there, or zeros: a
/// buffer grows when it must and is never cleared.
pub(crate) fn aligned(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len + LINE {
        buffer.resize(len + LINE, 0.0);
    }
    let start = line_start(buffer);
    &mut buffer[start..start + len]
}

/// Rows of `width` elements in `buffer`, to read.
pub(crate) fn view<T: Element>(buffer: &[f32], rows: usize, width: usize) -> Rows<'_, T> {
    let data = bytemuck::cast_slice(&buffer[line_start(buffer)..]);
    Rows::new(data, rows, gemm::stride_for::<T>(width))
}

/// Elements of a cache line.
pub(crate) const LINE: usize = 16;

/// Where the buffer's first whole cache line begins: vectors that straddle two are slow.
fn line_start(buffer: &[f32]) -> usize {
    buffer.as_ptr().align_offset(64).min(LINE)
}
