//! Advice on smaller element types: the gain, and the error they bring.

use half::f16;
use hither_kernels::bag::Dtype;
use hither_kernels::bag::quant::int4_element;

use crate::model::{TableData, element, floats, store};

/// The error is measured on this many rows, evenly spaced.
const ROWS: usize = 256;
/// Types with a larger relative error are not advised.
const ERROR_MAX: f64 = 0.01;
/// Types with a smaller gain are not advised.
const GAIN_MIN: f64 = 1.1;

/// A smaller element type for a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Smaller {
    pub dtype: Dtype,
    pub row_bytes: usize,
    /// Norm of the rounding errors over the norm of the rows.
    pub error: f64,
    /// Of lookups in the tables that were measured for this one.
    pub speedup: f64,
}

impl Smaller {
    /// Types for a table that is not quantised yet; none for a quantised one. `measured` has the
    /// nanoseconds per row of its own type, and then of smaller ones.
    pub fn types_for(table: &TableData, measured: &[(Dtype, f64)]) -> Vec<Self> {
        let Some(kind) = element(table.spec.dtype) else { return Vec::new() };
        let Some(((_, own_ns), smaller)) = measured.split_first() else { return Vec::new() };
        let smaller = smaller.iter().map(|(dtype, ns)| Self {
            dtype: *dtype,
            row_bytes: dtype.row_bytes(table.spec.dim),
            error: error(table, kind, *dtype),
            speedup: own_ns / ns,
        });
        smaller.collect()
    }

    pub fn is_advised(&self) -> bool {
        self.error <= ERROR_MAX && self.speedup >= GAIN_MIN
    }
}

fn error(table: &TableData, kind: hither_data::Dtype, dtype: Dtype) -> f64 {
    let (dim, rows) = (table.spec.dim, table.spec.rows);
    let stride = table.spec.row_bytes();
    let mut values = vec![0.0f32; dim];
    let mut row = vec![0u8; dtype.row_bytes(dim)];
    let (mut lost, mut all) = (0.0f64, 0.0f64);
    for sample in 0..ROWS.min(rows) {
        let number = (sample as u128 * rows as u128 / ROWS.min(rows) as u128) as usize;
        floats(kind, &table.rows[number * stride..][..stride], &mut values);
        let params = store(dtype, &values, &mut row);
        let (scale, bias) = (f16::to_f32(params.scale), f16::to_f32(params.bias));
        for (d, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            let q = if dtype == Dtype::Int8 { row[d] } else { int4_element(&row, d) };
            let back = scale * f32::from(q) + bias;
            lost += f64::from(value - back).powi(2);
            all += f64::from(*value).powi(2);
        }
    }
    if all == 0.0 { 0.0 } else { (lost / all).sqrt() }
}
