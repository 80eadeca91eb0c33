//! One layer: y = activation(x · weightᵀ + bias).

use half::bf16;

use super::blocks::{self, Layout};
use super::panels::{Panels, Shape};
use super::rows::sealed::Element as _;
use super::rows::{competes, convert};
use super::tile::{Kernels, Output, Target, Tile};
use super::{
    Activation, Element, LayerScratch, Precision, Rows, RowsMut, dot, reference, stride_for,
};
use crate::detect::{self, Bf16, Cpu, Isa};

/// Rows of x that are taken through all panels before the next ones. A multiple of the rows of
/// tiles; with up to 2,048 inputs they fit into the second-level cache beside a panel.
const ROWS_AT_ONCE: usize = 96;
/// Below this many inputs bf16 gains nothing: fp32 is kept, and the weights as they are.
const BF16_INPUTS_MIN: usize = 32;

/// A layer with packed weights. Computing with it changes nothing in it: threads share it, each
/// with rows and a [`LayerScratch`] of its own.
pub struct Linear {
    inputs: usize,
    outputs: usize,
    /// Zeros behind, up to whole panels.
    bias: Vec<f32>,
    activation: Activation,
    precision: Precision,
    weights: Weights,
}

enum Weights {
    Plain(Vec<f32>),
    Dot(Vec<f32>, dot::DotFn),
    Panels(Panels, &'static Kernels),
    #[cfg(target_arch = "x86_64")]
    Amx(Panels),
}

/// Rows of x, in the type and with the padding that the weights ask for.
struct InputRows {
    x: *const u8,
    stride: usize,
    rows: usize,
}

impl Linear {
    /// `weight` is `[outputs, inputs]`, row by row; there are as many outputs as there are biases.
    /// More than the processor has is not used, whatever `cpu` says.
    ///
    /// # Panics
    /// If `weight` is not `inputs` times the number of biases long.
    pub fn pack(
        weight: &[f32],
        bias: &[f32],
        inputs: usize,
        activation: Activation,
        precision: Precision,
        cpu: Cpu,
    ) -> Self {
        let outputs = bias.len();
        assert_eq!(Some(weight.len()), inputs.checked_mul(outputs), "weights of the layer");
        let skinny = inputs < BF16_INPUTS_MIN || outputs <= dot::OUTPUTS_MAX;
        let precision = if skinny { Precision::F32 } else { precision };
        let weights = Weights::pack(weight, inputs, outputs, precision, lowered(cpu));
        let columns = weights.columns(outputs);
        let mut bias = bias.to_vec();
        bias.resize(columns, 0.0);
        Self { inputs, outputs, bias, activation, precision, weights }
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// What x is rounded to here, and so best handed over as. Layers with few inputs stay in fp32.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Computes all rows of x in this thread. A row's result depends on nothing but the row.
    ///
    /// # Panics
    /// If x and y differ in rows, or do not hold rows of the layer's widths.
    pub fn forward<X: Element, Y: Element>(
        &self,
        x: Rows<'_, X>,
        mut y: RowsMut<'_, Y>,
        scratch: &mut LayerScratch,
    ) {
        assert_eq!(x.rows, y.rows, "rows of x and y");
        x.check(self.inputs);
        y.check(self.outputs);
        if x.rows == 0 || self.outputs == 0 {
            return;
        }
        if let Weights::Plain(weight) = &self.weights {
            let pairs = self.precision == Precision::Bf16;
            return reference::forward(weight, &self.bias, self.activation, pairs, x, &mut y);
        }
        let output = output_of(&mut y);
        for first in (0..x.rows).step_by(ROWS_AT_ONCE) {
            let rows = ROWS_AT_ONCE.min(x.rows - first);
            let x = self.steps(x.range(first, rows), scratch);
            // SAFETY: `first` is a row of y, y has the rows that x has, and the weights were
            // packed for kernels that this processor can run.
            unsafe {
                let y = output.at(first, 0);
                match &self.weights {
                    Weights::Plain(_) => {}
                    Weights::Dot(weight, run) => self.dots(weight, *run, &x, y),
                    Weights::Panels(panels, kernels) => self.blocks(panels, kernels, &x, y),
                    #[cfg(target_arch = "x86_64")]
                    Weights::Amx(panels) => self.tiles(panels, &x, y),
                }
            }
        }
    }

    /// x as it is, where the kernels can read it; else a copy in their type and stride.
    fn steps<X: Element>(&self, x: Rows<'_, X>, scratch: &mut LayerScratch) -> InputRows {
        let (bytes, panels) = match &self.weights {
            Weights::Plain(_) | Weights::Dot(..) => (self.inputs * 4, 0),
            Weights::Panels(panels, kernels) => (panels.steps * kernels.x_bytes, panels.count),
            #[cfg(target_arch = "x86_64")]
            Weights::Amx(panels) => (panels.steps * 4, panels.count),
        };
        let rounds = self.precision == Precision::Bf16;
        // x is wanted rounded, but as fp32, and no caller has it so.
        let widens = matches!(&self.weights, Weights::Panels(_, kernels) if kernels.x_bytes > 4);
        let pairs = rounds && !widens;
        let stride = x.stride * size_of::<X>();
        // Rows that compete for cache cost more than a copy if they are read often.
        let slow = competes(stride) && x.rows > 4 && panels > 4;
        if !widens && X::IS_BF16 == pairs && self.inputs * size_of::<X>() == bytes && !slow {
            return InputRows { x: x.data.as_ptr().cast(), stride, rows: x.rows };
        }
        let stride = stride_for::<f32>(bytes / 4) * 4;
        let copy = scratch.bytes(stride * x.rows);
        let start = copy.as_ptr();
        if pairs {
            convert(x, self.inputs, bytemuck::cast_slice_mut(copy), stride / 2, bf16::narrow);
        } else {
            let is_rounded = X::IS_BF16 || !rounds;
            let round = |value| if is_rounded { value } else { bf16::narrow(value).widen() };
            convert(x, self.inputs, bytemuck::cast_slice_mut(copy), stride / 4, round);
        }
        InputRows { x: start, stride, rows: x.rows }
    }

    /// # Safety
    /// `x` was prepared by this layer, and `y` has as many rows.
    unsafe fn dots(&self, weight: &[f32], run: dot::DotFn, x: &InputRows, y: Output) {
        let target = self.target(y, self.outputs);
        let (start, x_stride, rows) = (x.x.cast(), x.stride / 4, x.rows);
        // SAFETY: the caller's promise.
        unsafe { run(&dot::Job { x: start, x_stride, rows, weight, bias: &self.bias, target }) }
    }

    /// # Safety
    /// `x` was prepared by this layer, and `y` has as many rows.
    unsafe fn blocks(&self, panels: &Panels, kernels: &Kernels, x: &InputRows, y: Output) {
        let layout = Layout::Rows { stride: x.stride };
        let x = blocks::BlockInput { x: x.x, rows: x.rows, layout };
        // SAFETY: the caller's promise; the kernels were chosen for this processor.
        unsafe {
            blocks::run(kernels, &x, &panels.view(), &self.bias, &self.target(y, self.outputs))
        }
    }

    /// # Safety
    /// As for `blocks`, and the processor has AMX.
    #[cfg(target_arch = "x86_64")]
    unsafe fn tiles(&self, panels: &Panels, x: &InputRows, y: Output) {
        use super::amx::{ROWS, Shaped, TILE_ROWS};
        // SAFETY: the caller's promise, and as in `blocks`.
        unsafe {
            let shaped = Shaped::new(x.rows.min(ROWS));
            // All rows against one panel before the next: its weights come from far once.
            for panel in 0..panels.count {
                let column = panel * panels.width;
                let columns = panels.width.min(self.outputs - column);
                for first in (0..x.rows).step_by(ROWS) {
                    let left = x.rows - first;
                    let rows = x.rows.min(if left > TILE_ROWS { ROWS } else { TILE_ROWS });
                    // The last block reaches back to rows that are done, which come out the same: another
                    // shape would take longer.
                    let first = first.min(x.rows - rows);
                    shaped.block(
                        rows,
                        &Tile {
                            x: x.x.add(first * x.stride),
                            x_stride: x.stride,
                            x_step: 4,
                            panel: panels.from(panel).as_ptr(),
                            panel_step: panels.width,
                            panel_stride: 0,
                            steps: panels.steps,
                            bias: self.bias[column..].as_ptr(),
                            target: self.target(y.at(first, column), columns),
                            next: panels.from(panel).as_ptr().cast(),
                            next_step: 0,
                        },
                    );
                }
            }
        }
    }

    fn target(&self, y: Output, columns: usize) -> Target {
        Target { y, columns, activation: self.activation, accumulate: false }
    }
}

impl Weights {
    fn pack(weight: &[f32], inputs: usize, outputs: usize, precision: Precision, cpu: Cpu) -> Self {
        let pairs = precision == Precision::Bf16;
        let Some((dots, kernels)) = kernels(pairs, cpu) else {
            let round = |w: &f32| if pairs { bf16::narrow(*w).widen() } else { *w };
            return Self::Plain(weight.iter().map(round).collect());
        };
        if outputs <= dot::OUTPUTS_MAX {
            return Self::Dot(weight.to_vec(), dots);
        }
        #[cfg(target_arch = "x86_64")]
        if pairs && cpu.bf16 == Bf16::Amx {
            let (width, steps_multiple) = (super::amx::COLUMNS, super::amx::STEPS);
            let shape = Shape { width, narrow: width, pairs, steps_multiple };
            return Self::Amx(Panels::pack(weight, inputs, outputs, &shape));
        }
        let (width, narrow) = (2 * kernels.lanes, kernels.lanes);
        let shape = Shape { width, narrow, pairs, steps_multiple: 1 };
        Self::Panels(Panels::pack(weight, inputs, outputs, &shape), kernels)
    }

    /// For how many outputs there is room.
    fn columns(&self, outputs: usize) -> usize {
        match self {
            Self::Plain(_) | Self::Dot(..) => outputs,
            Self::Panels(panels, _) => panels.columns(),
            #[cfg(target_arch = "x86_64")]
            Self::Amx(panels) => panels.columns(),
        }
    }
}

/// The vector kernels for `cpu`, if it has vectors.
#[cfg(target_arch = "x86_64")]
pub(super) fn kernels(pairs: bool, cpu: Cpu) -> Option<(dot::DotFn, &'static Kernels)> {
    use super::{avx2, avx512};
    Some(match (cpu.isa, pairs) {
        (Isa::Reference, _) => return None,
        (Isa::Avx2, false) => (avx2::dots, &avx2::F32),
        (Isa::Avx2, true) => (avx2::dots, &avx2::BF16_WIDENED),
        (Isa::Avx512 | Isa::Avx512Vnni, false) => (avx512::dots, &avx512::F32),
        // Tiles come without `vdpbf16ps` nowhere but in odd virtual machines.
        (Isa::Avx512 | Isa::Avx512Vnni, true)
            if cpu.bf16 > Bf16::Emulated && std::is_x86_feature_detected!("avx512bf16") =>
        {
            (avx512::dots, &avx512::BF16)
        }
        (Isa::Avx512 | Isa::Avx512Vnni, true) => (avx512::dots, &avx512::BF16_WIDENED),
    })
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn kernels(_: bool, _: Cpu) -> Option<(dot::DotFn, &'static Kernels)> {
    None
}

/// No more than this processor can do: kernels are called on the strength of it.
fn lowered(cpu: Cpu) -> Cpu {
    let isa = cpu.isa.lowered();
    let bf16 = if isa >= Isa::Avx512 { cpu.bf16.min(detect::cpu().bf16) } else { Bf16::Emulated };
    Cpu { isa, bf16 }
}

fn output_of<Y: Element>(y: &mut RowsMut<'_, Y>) -> Output {
    let stride = y.stride;
    if Y::IS_BF16 {
        Output::Bf16 { to: y.data.as_mut_ptr().cast(), stride }
    } else {
        Output::F32 { to: y.data.as_mut_ptr().cast(), stride }
    }
}
