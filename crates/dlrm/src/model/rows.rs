//! Converts the rows of a table from one form to another, a block at a time.

use half::{bf16, f16};
use hither_data::safetensors::Writer;
use hither_data::{Bytes, Dtype as Element};
use hither_kernels::bag::Dtype;
use hither_kernels::bag::quant::{Foreign, Params, quantise_int4, quantise_int8};
use rayon::prelude::*;

use super::TableSpec;
use crate::Error;

/// Bytes converted at a time: large enough for all threads, small beside any table.
const BLOCK_BYTES: usize = 32 << 20;

/// The rows to be converted.
#[derive(Clone, Debug)]
pub enum Source {
    /// Elements of fp32, fp16, bf16 or fp64, row by row.
    Float(Element, Bytes),
    /// Our own quantised rows, with scales and biases.
    Quantised(Dtype, Bytes, Bytes),
    /// Quantised rows of another program, and the bytes from one row to the next.
    Foreign(Foreign, usize, Bytes),
}

/// A table's rows and the table that they become.
pub struct Conversion<'a> {
    pub source: &'a Source,
    pub table: &'a TableSpec,
}

impl Conversion<'_> {
    /// Writes the rows and then, if the table is quantised, their scales and biases.
    /// `done` is told the bytes of every block written.
    pub fn write(&self, writer: &mut Writer, done: &dyn Fn(u64)) -> Result<(), Error> {
        if let Some((rows, params)) = self.as_they_are() {
            for block in rows.chunks(BLOCK_BYTES).chain(params.chunks(BLOCK_BYTES)) {
                writer.write(block)?;
                done(block.len() as u64);
            }
            return Ok(());
        }
        self.check()?;
        let TableSpec { rows, dim, dtype, .. } = *self.table;
        let row_bytes = dtype.row_bytes(dim);
        let rows_at_once = (BLOCK_BYTES / row_bytes.max(dim * 4)).clamp(1, rows);
        let mut block = vec![0; rows_at_once * row_bytes];
        // Only these of a whole table are held in memory, and only where they are needed.
        let mut params = Vec::new();
        for start in (0..rows).step_by(rows_at_once) {
            let count = rows_at_once.min(rows - start);
            let block = &mut block[..count * row_bytes];
            if !dtype.is_quantised() {
                params.clear();
            }
            let known = params.len();
            params.resize(known + count, none());
            let rows_of_block = block.par_chunks_mut(row_bytes).zip(&mut params[known..]);
            rows_of_block.enumerate().with_min_len(64).for_each_init(
                || vec![0.0; dim],
                |values, (row, (out, params))| *params = self.convert(start + row, values, out),
            );
            writer.write(block)?;
            done(block.len() as u64);
        }
        write_params(writer, dtype, &params, done)
    }

    /// Rows and parameters that need no conversion.
    fn as_they_are(&self) -> Option<(&[u8], &[u8])> {
        match (self.source, self.table.dtype) {
            (Source::Float(Element::F32, bytes), Dtype::F32)
            | (Source::Float(Element::F16, bytes), Dtype::F16)
            | (Source::Float(Element::Bf16, bytes), Dtype::Bf16) => Some((bytes, &[])),
            (Source::Quantised(dtype, rows, params), target) if *dtype == target => {
                Some((rows, params))
            }
            _ => None,
        }
    }

    /// Refuses to quantise what is quantised already: the errors would add up.
    pub fn check(&self) -> Result<(), Error> {
        let from = match self.source {
            Source::Float(..) => return Ok(()),
            Source::Quantised(dtype, ..) => *dtype,
            Source::Foreign(layout, ..) if layout.is_int4() => Dtype::Int4,
            Source::Foreign(..) => Dtype::Int8,
        };
        if from == self.table.dtype {
            return Ok(());
        }
        let (from, to) = (from.name(), self.table.dtype.name());
        Err(Error::Requantise { table: self.table.name.clone(), from, to })
    }

    fn convert(&self, row: usize, values: &mut [f32], out: &mut [u8]) -> Params {
        let dim = self.table.dim;
        match self.source {
            Source::Foreign(layout, stride, bytes) => {
                let len = layout.row_bytes(dim);
                layout.read(dim, &bytes[row * stride..][..len], out)
            }
            Source::Float(element, bytes) => {
                let stride = element.bytes() * dim;
                floats(*element, &bytes[row * stride..][..stride], values);
                store(self.table.dtype, values, out)
            }
            // Copied whole, or refused.
            Source::Quantised(..) => none(),
        }
    }
}

fn none() -> Params {
    Params { scale: f16::ZERO, bias: f16::ZERO }
}

/// One row in the form of a table, with its scale and bias where it is quantised.
pub fn store(target: Dtype, values: &[f32], out: &mut [u8]) -> Params {
    match target {
        Dtype::F32 => each(values, out, f32::to_le_bytes),
        Dtype::F16 => each(values, out, |value| f16::from_f32(value).to_le_bytes()),
        Dtype::Bf16 => each(values, out, |value| bf16::from_f32(value).to_le_bytes()),
        Dtype::Int8 => return quantise_int8(values, out),
        Dtype::Int4 => return quantise_int4(values, out),
    }
    none()
}

fn each<const N: usize>(values: &[f32], out: &mut [u8], convert: impl Fn(f32) -> [u8; N]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = convert(*value);
    }
}

/// The elements of one row.
pub(crate) fn floats(element: Element, bytes: &[u8], values: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], values: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = convert(*bytes);
        }
    }
    match element {
        Element::F16 => each(bytes, values, |b| f16::from_le_bytes(b).to_f32()),
        Element::Bf16 => each(bytes, values, |b| bf16::from_le_bytes(b).to_f32()),
        Element::F64 => each(bytes, values, |b| f64::from_le_bytes(b) as f32),
        _ => each(bytes, values, f32::from_le_bytes),
    }
}

/// Scales and biases go behind all rows of their table; a table that is not quantised has none.
pub(crate) fn write_params(
    writer: &mut Writer,
    dtype: Dtype,
    params: &[Params],
    done: &dyn Fn(u64),
) -> Result<(), Error> {
    if dtype.is_quantised() {
        writer.write(bytemuck::cast_slice(params))?;
        done(size_of_val(params) as u64);
    }
    Ok(())
}
