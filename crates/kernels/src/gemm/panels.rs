//! Weights as the blocks read them: panels of neighbouring outputs, and within a panel the
//! outputs' words of the first step, then of the second, and so on.

use half::bf16;

use super::rows::Line;
use super::rows::sealed::Element as _;

#[derive(Default)]
pub(crate) struct Panels {
    lines: Vec<Line>,
    /// Outputs of a panel. The last one may have fewer columns, and is as wide as `last`.
    pub width: usize,
    pub last: usize,
    pub count: usize,
    pub steps: usize,
}

/// Panels as kernels read them: packed, or as they lie in the rows of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub words: &'a [u32],
    pub width: usize,
    pub last: usize,
    pub count: usize,
    pub steps: usize,
    /// Words from row to row of a matrix whose columns are these panels.
    pub rows: Option<usize>,
}

impl View<'_> {
    /// The first word of a panel, the words from its step to step, and to the next panel.
    pub fn panel(&self, panel: usize) -> (&[u32], usize, usize) {
        let width = if panel + 1 == self.count { self.last } else { self.width };
        match self.rows {
            None => {
                let stride = self.width * self.steps;
                (&self.words[panel * stride..], width, stride)
            }
            Some(stride) => (&self.words[panel * self.width..], stride, self.width),
        }
    }
}

/// How a kernel wants its panels.
pub(crate) struct Shape {
    pub width: usize,
    /// Width for a last panel that needs no more than this.
    pub narrow: usize,
    /// Two bf16 a step, not one fp32.
    pub pairs: bool,
    /// The number of steps is rounded up to a multiple of this.
    pub steps_multiple: usize,
}

impl Panels {
    /// Room for `outputs` columns of `steps`, with anything in it.
    pub fn resize(&mut self, steps: usize, outputs: usize, width: usize, narrow: usize) {
        let count = outputs.div_ceil(width);
        let rest = outputs - count.saturating_sub(1) * width;
        self.last = if rest <= narrow { narrow } else { width };
        (self.width, self.count, self.steps) = (width, count, steps);
        let lines = (self.columns() * steps).div_ceil(16);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line::default());
        }
    }

    /// The words of all panels.
    pub fn words_mut(&mut self) -> &mut [u32] {
        let len = self.columns() * self.steps;
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }

    /// `weight` is `[outputs, inputs]`; what is missing to whole panels and steps is zero.
    pub fn pack(weight: &[f32], inputs: usize, outputs: usize, shape: &Shape) -> Self {
        let Shape { width, narrow, pairs, steps_multiple } = *shape;
        let inputs_a_step = if pairs { 2 } else { 1 };
        let steps = inputs.div_ceil(inputs_a_step).next_multiple_of(steps_multiple);
        let mut panels = Self::default();
        panels.resize(steps, outputs, width, narrow);
        let Self { last, count, .. } = panels;
        let words = panels.words_mut();
        for output in 0..outputs {
            let panel = output / width;
            let panel_width = if panel + 1 == count { last } else { width };
            let row = &weight[output * inputs..][..inputs];
            for (step, values) in row.chunks(inputs_a_step).enumerate() {
                let at = panel * width * steps + step * panel_width + output % width;
                words[at] = if pairs {
                    let half = |k: usize| values.get(k).map_or(0, |v| bf16::narrow(*v).to_bits());
                    u32::from(half(0)) | u32::from(half(1)) << 16
                } else {
                    values[0].to_bits()
                };
            }
        }
        panels
    }

    /// The words of `panel` and, right behind, of those that follow it.
    pub fn from(&self, panel: usize) -> &[u32] {
        &bytemuck::cast_slice(&self.lines)[panel * self.width * self.steps..]
    }

    pub fn view(&self) -> View<'_> {
        let Self { width, last, count, steps, .. } = *self;
        View { words: self.from(0), width, last, count, steps, rows: None }
    }

    /// How many outputs there is room for.
    pub fn columns(&self) -> usize {
        self.count.saturating_sub(1) * self.width + self.last
    }
}
