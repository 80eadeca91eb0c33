//! The embedding stage on the device: tables, the compiled variant, and its launches.

use std::sync::Arc;

use crate::bags::{
    Batch, Build, Mode, PIN_KERNEL, PIN_STEP_BYTES, SOURCE, Slice, THREADS, bags_per_group,
    blocks_for, device_dtype, kernel_name,
};
use crate::device::{Buffer, Device, HostBuffer, Module, Queue};
use hither_kernels::bag::{Dtype, Pooling, Table};

use super::resolve::Resolved;
use super::rows::DeviceRows;
use crate::Error;
use hither_dlrm::plan::gpu::{CudaPlan, Pinning};

pub(super) struct Stage {
    device: Arc<Device>,
    rows: Arc<DeviceRows>,
    groups: Vec<TableGroup>,
    build: Build,
    module: Arc<Module>,
    width: usize,
    /// Bytes of packed hot rows that the device was asked to keep in L2.
    pub pinned_bytes: usize,
    /// Time that the kernel which pins took, by the device's clock. Other forms pin while they read.
    pub pin_ms: f32,
}

/// Tables of one launch: one type of elements, sums or maxima.
struct TableGroup {
    dtype: Dtype,
    is_max: bool,
    slices: Buffer,
    slice_count: u32,
}

/// Memory of a batch, kept from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    ids: Staged,
    pooled: Option<Buffer>,
}

/// Bytes on their way to the device.
#[derive(Default)]
pub(super) struct Staged {
    host: Option<HostBuffer>,
    device: Option<Buffer>,
}

impl Staged {
    /// Queues a copy of `parts`, each at a multiple of 256 bytes. Returns where each begins.
    pub fn send<const N: usize>(
        &mut self,
        device: &Arc<Device>,
        parts: [&[u8]; N],
        queue: Queue,
    ) -> Result<[u64; N], Error> {
        let mut offsets = [0; N];
        let mut len = 0;
        for (offset, part) in offsets.iter_mut().zip(parts) {
            *offset = len;
            len += part.len().next_multiple_of(256);
        }
        if self.host.as_ref().is_none_or(|host| host.bytes().len() < len) {
            let room = len.next_power_of_two();
            (self.host, self.device) = (Some(device.alloc_host(room)?), Some(device.alloc(room)?));
        }
        let (Some(host), Some(buffer)) = (&mut self.host, &self.device) else {
            return Err(Error::NoDriver);
        };
        for (offset, part) in offsets.iter().zip(parts) {
            host.bytes_mut()[*offset..*offset + part.len()].copy_from_slice(part);
        }
        // SAFETY: `&mut self` keeps the staging buffer from being written, and a batch ends with both queues
        // synchronised before the next one is sent.
        unsafe { buffer.write_queued(host, len, queue) }?;
        Ok(offsets.map(|offset| buffer.address() + offset as u64))
    }
}

/// A buffer of at least `len` bytes, kept if it is large enough.
pub(super) fn room<'a>(
    buffer: &'a mut Option<Buffer>,
    device: &Arc<Device>,
    len: usize,
) -> Result<&'a Buffer, Error> {
    if buffer.as_ref().is_none_or(|buffer| buffer.len() < len) {
        *buffer = Some(device.alloc(len.next_power_of_two())?);
    }
    buffer.as_ref().ok_or(Error::NoDriver)
}

impl Stage {
    pub fn new(
        device: &Arc<Device>,
        rows: &Arc<DeviceRows>,
        tables: &[Table<'_>],
        how: &CudaPlan,
    ) -> Result<Self, Error> {
        let widest = tables.iter().map(|table| table.dim).max().unwrap_or(1);
        let build = Build {
            variant: how.variant,
            distance: how.distance,
            lanes: Build::lanes_for(how.variant, widest),
            min_blocks: how.min_blocks,
        };
        let mut stage = Self {
            device: Arc::clone(device),
            rows: Arc::clone(rows),
            groups: groups(device, tables, rows, &build)?,
            build,
            module: device.module(SOURCE, &build.defines())?,
            width: tables.iter().map(|table| table.dim).sum(),
            pinned_bytes: 0,
            pin_ms: 0.0,
        };
        (stage.pinned_bytes, stage.pin_ms) = stage.pin()?;
        Ok(stage)
    }

    /// Pins the packed hot rows as the variant says. Returns how many bytes, and the time it took.
    fn pin(&self) -> Result<(usize, f32), Error> {
        let (base, len) = self.rows.hot_range();
        if len == 0 {
            return Ok((0, 0.0));
        }
        match self.build.variant.pinning {
            Pinning::None => Ok((0, 0.0)),
            // The loads themselves carry the policy; what they may keep is set aside here.
            Pinning::Policy => Ok((self.device.pin_window(base, len)?, 0.0)),
            Pinning::Prefetch => {
                let kernel = self.device.kernel(&self.module, PIN_KERNEL)?;
                let len = len.min(self.device.limits().persisting_bytes_max);
                let blocks = len.div_ceil(PIN_STEP_BYTES * THREADS as usize).clamp(1, 65_535);
                let mut parameters = base.to_le_bytes().to_vec();
                parameters.extend((len as u64).to_le_bytes());
                let (grid, block) = ([blocks as u32, 1, 1], [THREADS, 1, 1]);
                // SAFETY: the kernel only reads, within the hot rows that `rows` keeps.
                let launch = || unsafe {
                    self.device.launch(kernel, grid, block, &parameters, Queue::Compute)
                };
                Ok((len, self.device.time(launch)?))
            }
        }
    }

    pub fn rows(&self) -> &DeviceRows {
        &self.rows
    }

    /// Queues the copy of a batch's ids.
    pub fn send(
        &self,
        scratch: &mut Scratch,
        resolved: &Resolved,
        samples: usize,
    ) -> Result<Batch, Error> {
        let bytes = bytemuck::cast_slice::<f32, u8>;
        let numbers = bytemuck::cast_slice::<u32, u8>;
        let parts = [
            numbers(&resolved.rows),
            numbers(&resolved.starts),
            bytes(&resolved.weights),
            bytes(&resolved.scales),
        ];
        let [rows, starts, weights, scales] = scratch.ids.send(&self.device, parts, Queue::Copy)?;
        let slices: usize = self.groups.iter().map(|group| group.slice_count as usize).sum();
        let out = room(&mut scratch.pooled, &self.device, samples * self.width * 4)?.address();
        Ok(Batch {
            rows,
            starts,
            weights,
            scales,
            out,
            bags: samples as u32,
            out_stride: self.width as u32,
            bags_per_group: bags_per_group(&self.build, self.device.limits().sms, samples, slices),
            unused: 0,
        })
    }

    /// Queues the sums of all tables.
    pub fn launch(&self, batch: &Batch, is_weighted: bool) -> Result<(), Error> {
        self.groups.iter().try_for_each(|group| self.launch_group(group, batch, is_weighted))
    }

    fn launch_group(
        &self,
        group: &TableGroup,
        batch: &Batch,
        is_weighted: bool,
    ) -> Result<(), Error> {
        let mode = match (group.is_max, is_weighted) {
            (true, _) => Mode::Max,
            (false, true) => Mode::Weighted,
            (false, false) => Mode::Sum,
        };
        let kernel = self.device.kernel(&self.module, &kernel_name(group.dtype, mode))?;
        let mut parameters = bytemuck::bytes_of(batch).to_vec();
        parameters.extend(group.slices.address().to_le_bytes());
        let grid =
            [blocks_for(&self.build, batch.bags, batch.bags_per_group), group.slice_count, 1];
        // SAFETY: the batch's addresses are those of buffers that it was sent to, and ids were resolved to rows
        // that exist; a batch ends with the queue synchronised.
        unsafe { self.device.launch(kernel, grid, [THREADS, 1, 1], &parameters, Queue::Compute) }?;
        Ok(())
    }
}

/// One launch per type of element and kind of pooling.
fn groups(
    device: &Arc<Device>,
    tables: &[Table<'_>],
    rows: &DeviceRows,
    build: &Build,
) -> Result<Vec<TableGroup>, Error> {
    let mut groups: Vec<(Dtype, bool, Vec<Slice>)> = Vec::new();
    let mut column = 0;
    for (index, table) in tables.iter().enumerate() {
        let dtype = device_dtype(table.dtype);
        let is_max = table.pooling == Pooling::Max;
        let at = groups.iter().position(|(d, m, _)| (*d, *m) == (dtype, is_max));
        let at = at.unwrap_or_else(|| {
            groups.push((dtype, is_max, Vec::new()));
            groups.len() - 1
        });
        groups[at].2.extend(rows.slices(index, table.dim, column, build));
        column += table.dim;
    }
    let group = |(dtype, is_max, slices): (Dtype, bool, Vec<Slice>)| {
        let slice_count = slices.len() as u32;
        let slices = device.upload(bytemuck::cast_slice(&slices))?;
        Ok(TableGroup { dtype, is_max, slices, slice_count })
    };
    groups.into_iter().map(group).collect()
}
