//! Tables on the device: hot rows of all tables side by side, cold rows behind them or in host memory.

use std::sync::Arc;

use crate::bags::{Build, Slice, device_dtype, row_stride};
use crate::device::{Buffer, Device, HostBuffer};
use half::bf16;
use hither_kernels::bag::quant::{Params, int4_element};
use hither_kernels::bag::{Dtype, Table};

use crate::Error;
use hither_dlrm::plan::{Packing, Plan};

/// Where all rows lie.
pub(super) struct DeviceRows {
    hot: Buffer,
    tables: Vec<DeviceTable>,
}

struct DeviceTable {
    dtype: Dtype,
    stride: usize,
    hot_rows: usize,
    /// Bytes from the beginning of the hot rows of all tables.
    hot_offset: usize,
    cold: Cold,
    params: Option<Buffer>,
    /// The number of each row, hottest first; `None` where rows keep the file's order.
    numbers: Option<Vec<u32>>,
}

enum Cold {
    Device(Buffer),
    /// Read over the bus, row by row, where the device has no room.
    Host(HostBuffer),
}

impl DeviceRows {
    pub fn upload(
        device: &Arc<Device>,
        tables: &[Table<'_>],
        plan: &Plan,
        cold_on_host: bool,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        let mut hot = Vec::new();
        let mut uploaded = Vec::with_capacity(tables.len());
        for (index, table) in tables.iter().enumerate() {
            let wanted = match plan.tables[index].packing {
                Packing::Off => &[][..],
                _ => {
                    let list = &plan.hot[index];
                    &list[..plan.tables[index].hot_rows.min(list.len())]
                }
            };
            let (order, hot_rows) = order(table.rows, wanted);
            let stride = row_stride(device_dtype(table.dtype), table.dim);
            let hot_offset = hot.len();
            for row in &order[..hot_rows] {
                put_row(table, *row as usize, stride, &mut hot);
            }
            // Hot rows of the next table begin on a line of their own.
            hot.resize(hot.len().next_multiple_of(128), 0);
            let cold = upload_cold(device, table, &order[hot_rows..], stride, cold_on_host)?;
            let params = match table.params.is_empty() {
                true => None,
                false => {
                    let params: Vec<Params> =
                        order.iter().map(|row| table.params[*row as usize]).collect();
                    Some(device.upload(bytemuck::cast_slice(&params))?)
                }
            };
            let numbers = (hot_rows > 0).then(|| inverse(&order));
            let dtype = device_dtype(table.dtype);
            uploaded.push(DeviceTable {
                dtype,
                stride,
                hot_rows,
                hot_offset,
                cold,
                params,
                numbers,
            });
            done(table.data.len() as u64);
        }
        Ok(Self { hot: device.upload(&hot)?, tables: uploaded })
    }

    /// Address and bytes of the hot rows of all tables.
    pub fn hot_range(&self) -> (u64, usize) {
        (self.hot.address(), self.hot.len())
    }

    /// The number by which the device knows a row.
    pub fn number(&self, table: usize, row: usize) -> u32 {
        self.tables[table].numbers.as_ref().map_or(row as u32, |numbers| numbers[row])
    }

    /// A table as slices that a group of threads can sum; `column` is where it stands in the output.
    pub fn slices(&self, table: usize, dim: usize, column: usize, build: &Build) -> Vec<Slice> {
        let from = &self.tables[table];
        let cold = match &from.cold {
            Cold::Device(buffer) => buffer.address(),
            Cold::Host(buffer) => buffer.address(),
        };
        debug_assert!(from.dtype == Dtype::Int8 || from.params.is_none());
        let whole = Slice {
            hot: self.hot.address() + from.hot_offset as u64,
            cold: cold.wrapping_sub((from.hot_rows * from.stride) as u64),
            params: from.params.as_ref().map_or(0, Buffer::address),
            hot_rows: from.hot_rows as u32,
            stride: from.stride as u32,
            table: table as u32,
            column: column as u32,
            ..Slice::default()
        };
        whole.cut(dim, build).collect()
    }
}

fn upload_cold(
    device: &Arc<Device>,
    table: &Table<'_>,
    rows: &[u32],
    stride: usize,
    on_host: bool,
) -> Result<Cold, Error> {
    // So many rows are laid out at a time: the whole table would need its size once more.
    const CHUNK: usize = 1 << 16;
    let len = rows.len() * stride;
    let mut bytes = Vec::with_capacity(CHUNK.min(rows.len()) * stride);
    if on_host {
        let mut buffer = device.alloc_host(len)?;
        for (chunk, rows) in rows.chunks(CHUNK).enumerate() {
            bytes.clear();
            rows.iter().for_each(|row| put_row(table, *row as usize, stride, &mut bytes));
            buffer.bytes_mut()[chunk * CHUNK * stride..][..bytes.len()].copy_from_slice(&bytes);
        }
        return Ok(Cold::Host(buffer));
    }
    let buffer = device.alloc(len)?;
    for (chunk, rows) in rows.chunks(CHUNK).enumerate() {
        bytes.clear();
        rows.iter().for_each(|row| put_row(table, *row as usize, stride, &mut bytes));
        buffer.write(chunk * CHUNK * stride, &bytes)?;
    }
    Ok(Cold::Device(buffer))
}

/// All rows, the wanted ones first, and how many of those there are.
fn order(rows: usize, wanted: &[u32]) -> (Vec<u32>, usize) {
    let mut is_placed = vec![false; rows];
    let mut order = Vec::with_capacity(rows);
    for row in wanted {
        // A list that was made elsewhere may name rows twice, or rows that the table does not have.
        if let Some(placed) = is_placed.get_mut(*row as usize).filter(|placed| !**placed) {
            *placed = true;
            order.push(*row);
        }
    }
    let hot_rows = order.len();
    order.extend((0..rows as u32).filter(|row| !is_placed[*row as usize]));
    (order, hot_rows)
}

fn inverse(order: &[u32]) -> Vec<u32> {
    let mut numbers = vec![0; order.len()];
    for (number, row) in order.iter().enumerate() {
        numbers[*row as usize] = number as u32;
    }
    numbers
}

/// Appends a row as the device reads it: its own type, padded with zeros to the stride.
fn put_row(table: &Table<'_>, row: usize, stride: usize, to: &mut Vec<u8>) {
    let end = to.len() + stride;
    let from = &table.data[row * table.stride..];
    match table.dtype {
        Dtype::F32 => to.extend_from_slice(&from[..table.dim * 4]),
        Dtype::F16 => to.extend_from_slice(&from[..table.dim * 2]),
        Dtype::Int8 => to.extend_from_slice(&from[..table.dim]),
        Dtype::Int4 => to.extend((0..table.dim).map(|d| int4_element(from, d))),
        Dtype::Bf16 => {
            let value = |d: usize| bf16::from_le_bytes([from[2 * d], from[2 * d + 1]]).to_f32();
            to.extend((0..table.dim).flat_map(|d| value(d).to_le_bytes()));
        }
    }
    to.resize(end, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_rows_come_first_and_every_row_once() {
        let (order, hot) = order(6, &[4, 1, 4, 9]);
        assert_eq!((&order[..], hot), (&[4, 1, 0, 2, 3, 5][..], 2));
        let numbers = inverse(&order);
        assert!((0..6).all(|row| order[numbers[row] as usize] == row as u32));
    }
}
