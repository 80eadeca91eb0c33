//! Loops over vectors: what is left of training when the products are done.
//!
//! Plain Rust, compiled once for each instruction set; no operation is fused or put in another order
//! by the compiler, so that all of them, and any number of threads, give the same bits.

use rayon::prelude::*;

use crate::compiled::compiled;
use crate::detect::{self, Isa};

/// From this many elements on, threads share the work.
const ELEMENTS_MIN: usize = 1 << 18;
/// What one thread takes at a time; sums are made by blocks of it, too.
const BLOCK: usize = 1 << 14;

/// One step of Adam, with the arithmetic of `torch.optim.Adam` on a CPU, down to which operations are
/// fused: from equal parameters, moments agree with those of PyTorch 2.14 (AVX-512) to the last bit.
/// Of the new parameters three in a thousand differ in it, as the root that PyTorch takes from MKL
/// is not always the nearest number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    pub rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    /// Times the parameters, added to the gradients.
    pub decay: f64,
    /// The number of this step, from 1.
    pub step: u64,
}

/// What of a step is the same for all elements.
#[derive(Clone, Copy)]
struct AdamFactors {
    decay: f32,
    first_new: f32,
    second_old: f32,
    second_new: f32,
    second_root: f32,
    epsilon: f32,
    step_size: f32,
}

/// Moves `params` against `grads`, and the moments with them.
///
/// # Panics
/// If the slices are not of one length.
pub fn adam(adam: &Adam, params: &mut [f32], first: &mut [f32], second: &mut [f32], grads: &[f32]) {
    adam_by(detect::cpu().isa, adam, params, first, second, grads);
}

/// [`adam`] by no more than this instruction set.
pub fn adam_by(
    isa: Isa,
    adam: &Adam,
    params: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    grads: &[f32],
) {
    let lens = [params.len(), first.len(), second.len(), grads.len()];
    assert!(lens.iter().all(|len| *len == lens[0]), "elements of an Adam step: {lens:?}");
    let factors = adam.factors();
    if params.len() < ELEMENTS_MIN {
        return adam_block(isa, factors, params, first, second, grads);
    }
    let blocks = params
        .par_chunks_mut(BLOCK)
        .zip(first.par_chunks_mut(BLOCK))
        .zip(second.par_chunks_mut(BLOCK))
        .zip(grads.par_chunks(BLOCK));
    blocks.for_each(|(((params, first), second), grads)| {
        adam_block(isa, factors, params, first, second, grads);
    });
}

impl Adam {
    fn factors(&self) -> AdamFactors {
        let power = |beta: f64| 1.0 - beta.powf(self.step as f64);
        AdamFactors {
            decay: self.decay as f32,
            first_new: (1.0 - self.beta1) as f32,
            second_old: self.beta2 as f32,
            second_new: (1.0 - self.beta2) as f32,
            second_root: power(self.beta2).sqrt() as f32,
            epsilon: self.epsilon as f32,
            step_size: (self.rate / power(self.beta1)) as f32,
        }
    }
}

compiled! {
    fn adam_block(
        f: AdamFactors, params: &mut [f32], first: &mut [f32], second: &mut [f32], grads: &[f32]
    ) = adam_plain
}

#[inline(always)]
fn adam_plain(
    f: AdamFactors,
    params: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    grads: &[f32],
) {
    let len = params.len();
    let (first, second, grads) = (&mut first[..len], &mut second[..len], &grads[..len]);
    for i in 0..len {
        let grad = f.decay.mul_add(params[i], grads[i]);
        let m = f.first_new.mul_add(grad - first[i], first[i]);
        let v = (f.second_new * grad).mul_add(grad, second[i] * f.second_old);
        first[i] = m;
        second[i] = v;
        params[i] -= f.step_size * m / (v.sqrt() / f.second_root + f.epsilon);
    }
}

/// `y += a · x`.
///
/// # Panics
/// If the slices are not of one length.
pub fn add_scaled(y: &mut [f32], a: f32, x: &[f32]) {
    add_scaled_by(detect::cpu().isa, y, a, x);
}

/// [`add_scaled`] by no more than this instruction set.
pub fn add_scaled_by(isa: Isa, y: &mut [f32], a: f32, x: &[f32]) {
    assert_eq!(y.len(), x.len(), "elements of a sum");
    if y.len() < ELEMENTS_MIN {
        return add_block(isa, y, a, x);
    }
    let blocks = y.par_chunks_mut(BLOCK).zip(x.par_chunks(BLOCK));
    blocks.for_each(|(y, x)| add_block(isa, y, a, x));
}

compiled! { fn add_block(y: &mut [f32], a: f32, x: &[f32]) = add_plain }

#[inline(always)]
fn add_plain(y: &mut [f32], a: f32, x: &[f32]) {
    let x = &x[..y.len()];
    for i in 0..x.len() {
        y[i] += a * x[i];
    }
}

/// The sum of squares, block by block.
pub fn norm_squared(x: &[f32]) -> f64 {
    norm_squared_by(detect::cpu().isa, x)
}

/// [`norm_squared`] by no more than this instruction set.
pub fn norm_squared_by(isa: Isa, x: &[f32]) -> f64 {
    if x.len() < ELEMENTS_MIN {
        return x.chunks(BLOCK).map(|x| norm_block(isa, x)).sum();
    }
    let blocks: Vec<f64> = x.par_chunks(BLOCK).map(|x| norm_block(isa, x)).collect();
    blocks.iter().sum()
}

compiled! { fn norm_block(x: &[f32]) -> f64 = norm_plain }

#[inline(always)]
fn norm_plain(x: &[f32]) -> f64 {
    const LANES: usize = 32;
    let mut sums = [0.0_f64; LANES];
    let whole = x.len() / LANES * LANES;
    let mut at = 0;
    while at < whole {
        let x = &x[at..at + LANES];
        for lane in 0..LANES {
            sums[lane] += f64::from(x[lane]) * f64::from(x[lane]);
        }
        at += LANES;
    }
    for lane in 0..x.len() - whole {
        sums[lane] += f64::from(x[whole + lane]) * f64::from(x[whole + lane]);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

/// Replaces each element by `exp(x − shift)` and returns the sum of all. Elements of −∞ become 0; the relative
/// error of the others is below 2⁻²².
pub fn exp_sum(x: &mut [f32], shift: f32) -> f32 {
    exp_sum_by(detect::cpu().isa, x, shift)
}

/// [`exp_sum`] by no more than this instruction set.
pub fn exp_sum_by(isa: Isa, x: &mut [f32], shift: f32) -> f32 {
    exp_block(isa, x, shift)
}

compiled! { fn exp_block(x: &mut [f32], shift: f32) -> f32 = exp_plain }

#[inline(always)]
fn exp_plain(x: &mut [f32], shift: f32) -> f32 {
    const LANES: usize = 32;
    let mut sums = [0.0_f32; LANES];
    let whole = x.len() / LANES * LANES;
    let mut at = 0;
    while at < whole {
        let x = &mut x[at..at + LANES];
        for lane in 0..LANES {
            x[lane] = exp(x[lane] - shift);
            sums[lane] += x[lane];
        }
        at += LANES;
    }
    for lane in 0..x.len() - whole {
        x[whole + lane] = exp(x[whole + lane] - shift);
        sums[lane] += x[whole + lane];
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

/// eˣ by powers of two and a polynomial (Cephes), in operations that vectors have.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Below this the result would not be a normal number; beyond 88 it would not be finite.
    const LEAST: f32 = -87.0;
    /// Added and taken away again, it rounds to an integer.
    const ROUNDS: f32 = 12_582_912.0;
    let bounded = if x < LEAST { LEAST } else { x };
    let bounded = if bounded > 88.0 { 88.0 } else { bounded };
    let rounded = bounded * std::f32::consts::LOG2_E + ROUNDS;
    let power = rounded - ROUNDS;
    let rest = (-power).mul_add(-2.121_944_4e-4, (-power).mul_add(0.693_359_4, bounded));
    let mut sum = 1.987_569_1e-4_f32;
    sum = sum.mul_add(rest, 1.398_2e-3);
    sum = sum.mul_add(rest, 8.333_452e-3);
    sum = sum.mul_add(rest, 4.166_579_6e-2);
    sum = sum.mul_add(rest, 1.666_666_5e-1);
    sum = sum.mul_add(rest, 0.5);
    let sum = sum.mul_add(rest * rest, rest + 1.0);
    // The integer stands in the last bits of `rounded`.
    let exponent = rounded.to_bits().wrapping_sub(ROUNDS.to_bits()).wrapping_add(127);
    let scale = f32::from_bits(exponent << 23);
    if x < LEAST { 0.0 } else { sum * scale }
}

/// Adds the sums of the columns of rows of `cols` elements to `out`.
///
/// # Panics
/// If `x` is not whole rows, or `out` is not one row.
pub fn add_column_sums(x: &[f32], cols: usize, out: &mut [f32]) {
    add_column_sums_by(detect::cpu().isa, x, cols, out);
}

/// [`add_column_sums`] by no more than this instruction set.
pub fn add_column_sums_by(isa: Isa, x: &[f32], cols: usize, out: &mut [f32]) {
    assert_eq!(out.len(), cols, "sums of the columns");
    if cols == 0 {
        return;
    }
    assert!(x.len().is_multiple_of(cols), "{} elements in rows of {cols}", x.len());
    let block = (BLOCK / cols).max(1) * cols;
    if x.len() <= block {
        return column_block(isa, x, out);
    }
    let sums_of = |x: &[f32]| {
        let mut sums = vec![0.0; cols];
        column_block(isa, x, &mut sums);
        sums
    };
    if x.len() < ELEMENTS_MIN {
        return x.chunks(block).for_each(|x| add_block(isa, out, 1.0, &sums_of(x)));
    }
    let blocks: Vec<Vec<f32>> = x.par_chunks(block).map(sums_of).collect();
    blocks.iter().for_each(|sums| add_block(isa, out, 1.0, sums));
}

compiled! { fn column_block(x: &[f32], out: &mut [f32]) = column_plain }

#[inline(always)]
fn column_plain(x: &[f32], out: &mut [f32]) {
    let cols = out.len();
    let mut at = 0;
    while at < x.len() {
        let row = &x[at..at + cols];
        for i in 0..cols {
            out[i] += row[i];
        }
        at += cols;
    }
}

/// Which elements are dropped, and how many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    pub seed: u64,
    /// The share of elements that becomes zero, below 1.
    pub rate: f32,
}

impl Dropout {
    /// Factor of the elements that stay.
    pub fn scale(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }
}

/// Zero where x is below zero, in place; then, with a `Dropout`, zero for some of the rest, and more
/// for the others. Whether element `i` stays follows from the seed and `i` alone.
///
/// # Panics
/// If the rate is not in `0.0..1.0`.
pub fn relu_dropout(x: &mut [f32], dropout: Option<Dropout>) {
    relu_dropout_by(detect::cpu().isa, x, dropout);
}

/// [`relu_dropout`] by no more than this instruction set.
pub fn relu_dropout_by(isa: Isa, x: &mut [f32], dropout: Option<Dropout>) {
    if let Some(Dropout { rate, .. }) = dropout {
        assert!((0.0..1.0).contains(&rate), "a dropout of {rate}");
    }
    let dropout = dropout.filter(|dropout| dropout.rate > 0.0);
    let block = |(index, x): (usize, &mut [f32])| match dropout {
        None => relu_block(isa, x),
        Some(dropout) => dropout_block(isa, x, Keys::for_block(dropout, index)),
    };
    if x.len() < ELEMENTS_MIN {
        x.chunks_mut(BLOCK).enumerate().for_each(block);
    } else {
        x.par_chunks_mut(BLOCK).enumerate().for_each(block);
    }
}

compiled! { fn relu_block(x: &mut [f32]) = relu_plain }

#[inline(always)]
fn relu_plain(x: &mut [f32]) {
    for x in x {
        *x = relu(*x);
    }
}

/// NaN stays NaN.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// What the random bits of a block come from.
#[derive(Clone, Copy)]
struct Keys {
    keys: [u32; 2],
    /// A number of 32 bits below this drops its element.
    dropped_below: u32,
    scale: f32,
}

impl Keys {
    /// By splitmix64's finaliser, of the seed and the block's number.
    fn for_block(dropout: Dropout, block: usize) -> Self {
        let mut z =
            dropout.seed.wrapping_add((block as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        Self {
            keys: [z as u32, (z >> 32) as u32],
            dropped_below: (f64::from(dropout.rate) * 2_f64.powi(32)) as u32,
            scale: dropout.scale(),
        }
    }
}

compiled! { fn dropout_block(x: &mut [f32], keys: Keys) = dropout_plain }

/// The element's place in its block, mixed twice: by one key before each time, so that neither two
/// blocks nor two seeds share a run of numbers.
#[inline(always)]
fn dropout_plain(x: &mut [f32], keys: Keys) {
    for (i, x) in x.iter_mut().enumerate() {
        let mut bits = i as u32 ^ keys.keys[0];
        bits = (bits ^ bits >> 16).wrapping_mul(0x7feb_352d);
        bits = (bits ^ bits >> 15 ^ keys.keys[1]).wrapping_mul(0x846c_a68b);
        bits ^= bits >> 16;
        let kept = relu(*x) * keys.scale;
        *x = if bits < keys.dropped_below { 0.0 } else { kept };
    }
}

/// Through [`relu_dropout`], whose output was `out`: `grad · scale` where something came out, else
/// zero. `scale` is that of the dropout, or 1.
///
/// # Panics
/// If the slices are not of one length.
pub fn relu_dropout_backward(out: &[f32], scale: f32, grad: &mut [f32]) {
    relu_dropout_backward_by(detect::cpu().isa, out, scale, grad);
}

/// [`relu_dropout_backward`] by no more than this instruction set.
pub fn relu_dropout_backward_by(isa: Isa, out: &[f32], scale: f32, grad: &mut [f32]) {
    assert_eq!(out.len(), grad.len(), "elements of a gradient");
    if out.len() < ELEMENTS_MIN {
        return backward_block(isa, out, scale, grad);
    }
    let blocks = out.par_chunks(BLOCK).zip(grad.par_chunks_mut(BLOCK));
    blocks.for_each(|(out, grad)| backward_block(isa, out, scale, grad));
}

compiled! { fn backward_block(out: &[f32], scale: f32, grad: &mut [f32]) = backward_plain }

#[inline(always)]
fn backward_plain(out: &[f32], scale: f32, grad: &mut [f32]) {
    let grad = &mut grad[..out.len()];
    for i in 0..out.len() {
        grad[i] = if out[i] != 0.0 { grad[i] * scale } else { 0.0 };
    }
}
