//! The plain truth, element by element. The other kernels add the same numbers in the same order,
//! with the same fused multiplications, and must agree to the last bit.

use half::{bf16, f16};

use super::Dtype;
use super::kernel::{Mode, Work};
use super::quant::{Params, int4_element};

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
                // SAFETY: a weight a row, where there are weights.
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
            unsafe {
                match work.out.is_bf16 {
                    true => *work.out.at(bag.out + d).cast() = bf16::from_f32(value),
                    false => *work.out.at(bag.out + d).cast() = value,
                }
            }
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
