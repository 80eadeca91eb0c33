//! Layers with a few outputs: a block of sixteen columns would be mostly padding, so each output
//! is one sum along its row.

use super::tile::{Target, finish};
use crate::simd::Lanes;

/// Up to this many outputs a layer is computed here.
pub(crate) const OUTPUTS_MAX: usize = 8;

/// Rows at a time: enough independent sums to hide the latency of an addition.
const TOGETHER: usize = 4;

pub(crate) struct Job<'a> {
    pub x: *const f32,
    /// Elements from row to row.
    pub x_stride: usize,
    pub rows: usize,
    /// `[outputs, inputs]`.
    pub weight: &'a [f32],
    pub bias: &'a [f32],
    pub target: Target,
}

pub(crate) type DotFn = unsafe fn(&Job<'_>);

/// # Safety
/// The processor has the features of `L`; the pointers hold what the fields say.
#[inline(always)]
pub(crate) unsafe fn run<L: Lanes>(job: &Job<'_>) {
    let mut row = 0;
    // SAFETY: the rows handed on are within the job's.
    unsafe {
        while row + TOGETHER <= job.rows {
            rows::<L, TOGETHER>(job, row);
            row += TOGETHER;
        }
        while row < job.rows {
            rows::<L, 1>(job, row);
            row += 1;
        }
    }
}

/// # Safety
/// As for [`run`]; rows `first` to `first + ROWS` exist.
#[inline(always)]
unsafe fn rows<L: Lanes, const ROWS: usize>(job: &Job<'_>, first: usize) {
    let outputs = job.bias.len();
    let inputs = job.weight.len() / outputs;
    let whole = inputs / L::LANES * L::LANES;
    let mut sums = [0.0f32; TOGETHER * OUTPUTS_MAX];
    for (output, bias) in job.bias.iter().enumerate() {
        // SAFETY: `k` stays below `inputs`, so all addresses are within a row of x or of weights.
        unsafe {
            let x = job.x.add(first * job.x_stride);
            let weight = job.weight.as_ptr().add(output * inputs);
            let zero = L::load_first(weight, 0);
            let mut acc = [zero; ROWS];
            let mut k = 0;
            while k < whole {
                let w = L::load(weight.add(k));
                for (r, acc) in acc.iter_mut().enumerate() {
                    *acc = L::fma(L::load(x.add(r * job.x_stride + k)), w, *acc);
                }
                k += L::LANES;
            }
            if k < inputs {
                let w = L::load_first(weight.add(k), inputs - k);
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = L::load_first(x.add(r * job.x_stride + k), inputs - k);
                    *acc = L::fma(x, w, *acc);
                }
            }
            for (r, acc) in acc.into_iter().enumerate() {
                sums[r * outputs + output] = bias + L::sum(acc);
            }
        }
    }
    // SAFETY: y has the rows that x has.
    unsafe {
        let target = Target { y: job.target.y.at(first, 0), ..job.target };
        finish(&target, &mut sums[..ROWS * outputs], outputs);
    }
}
