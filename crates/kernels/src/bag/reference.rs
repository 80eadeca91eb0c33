//! The plain truth, element by element. The other kernels add the same numbers in the same order,
//! with the same fused multiplications, and must agree to the last bit.

use half::{bf16, f16};

use super::kernel::{Mode, Work};
use super::quant::{Params, int4_element};
use super::{Dtype, integer};

/// # Safety
/// As [`pool`](super::kernel::pool) promises of its work.
pub(super) unsafe fn pool(work: &Work) {
    let dim = work.dim;
    let row_bytes = work.dtype.row_bytes(dim);
    let (mut next, mut sum) = (0, vec![0.0f32; dim]);
    for bag in work.bags {
        let mut bias_sum = 0.0f32;
        sum.fill(if work.mode == Mode::Max { f32::NEG_INFINITY } else { 0.0 });
        for i in next..next + bag.rows as usize {
            // SAFETY: the list has the rows of all bags, and each is a whole row.
            let row = unsafe { std::slice::from_raw_parts(*work.rows.add(i), row_bytes) };
            let weight = match work.mode {
                // SAFETY: a weight per row, where there are weights.
                Mode::WeightedSum => unsafe { *work.weights.add(i) },
                _ => 1.0,
            };
            let Params { scale, bias } = match work.dtype.is_quantised() {
                // SAFETY: params a row, where the table is quantised.
                true => unsafe { *work.params.add(i) },
                false => Params { scale: f16::ONE, bias: f16::ZERO },
            };
            let (scale, bias) = (scale.to_f32(), bias.to_f32());
            for (d, sum) in sum.iter_mut().enumerate() {
                let q = element(work.dtype, row, d);
                *sum = match work.mode {
                    Mode::Max => sum.max(q.mul_add(scale, bias)),
                    Mode::Sum | Mode::WeightedSum => q.mul_add(scale * weight, *sum),
                };
            }
            bias_sum = bias.mul_add(weight, bias_sum);
        }
        next += bag.rows as usize;
        for (d, sum) in sum.iter().enumerate() {
            let value = match work.mode {
                Mode::Max if bag.rows == 0 => 0.0,
                Mode::Max => *sum,
                _ if work.dtype.is_quantised() => (sum + bias_sum) * bag.scale,
                _ => sum * bag.scale,
            };
            // SAFETY: the bag's elements lie inside of the output.
            unsafe { *work.out.at(bag.out + d) = value };
        }
    }
}

/// Sums of quantised rows in integers.
///
/// # Safety
/// As for [`pool`]; all bags are long enough.
pub(super) unsafe fn pool_integers(work: &Work) {
    let row_bytes = work.dtype.row_bytes(work.dim);
    let mut next = 0;
    for bag in work.bags {
        // SAFETY: rows and params of the bag, as the caller promises.
        let (rows, params) = unsafe {
            let rows = std::slice::from_raw_parts(work.rows.add(next), bag.rows as usize);
            (rows, std::slice::from_raw_parts(work.params.add(next), rows.len()))
        };
        let Some(step) = integer::step(params) else {
            // SAFETY: one bag of the work.
            unsafe { pool(&work.bag(bag, next)) };
            next += rows.len();
            continue;
        };
        next += rows.len();
        let bias_sum: f64 = params.iter().map(|p| f64::from(p.bias.to_f32())).sum();
        for d in 0..work.dim {
            let mut sums = [0i32; integer::DIGITS];
            for (row, params) in rows.iter().zip(params) {
                // SAFETY: each is a whole row.
                let row = unsafe { std::slice::from_raw_parts(*row, row_bytes) };
                let q = element(work.dtype, row, d) as i32;
                for (sum, digit) in sums.iter_mut().zip(integer::digits(params.scale, step)) {
                    *sum += q * i32::from(digit);
                }
            }
            let value = (integer::joined(sums) * step + bias_sum as f32) * bag.scale;
            // SAFETY: the bag's elements lie inside of the output.
            unsafe { *work.out.at(bag.out + d) = value };
        }
    }
}

fn element(dtype: Dtype, row: &[u8], d: usize) -> f32 {
    let half = || [row[2 * d], row[2 * d + 1]];
    match dtype {
        Dtype::F32 => f32::from_le_bytes(row[4 * d..4 * d + 4].try_into().expect("four bytes")),
        Dtype::F16 => f16::from_le_bytes(half()).to_f32(),
        Dtype::Bf16 => bf16::from_le_bytes(half()).to_f32(),
        Dtype::Int8 => f32::from(row[d]),
        Dtype::Int4 => f32::from(int4_element(row, d)),
    }
}
