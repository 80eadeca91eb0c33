//! The layers around the tables, on the device.

use std::sync::Arc;

use hither_kernels::cuda::device::{Buffer, Device, Kernel, Queue};
use hither_kernels::cuda::{LAYERS_SOURCE, TILE};

use super::stage::room;
use crate::Error;
use crate::model::{self, Interaction, Model};

/// Threads of a block of the interaction kernels.
const THREADS: u32 = 256;

pub(super) struct Layers {
    bottom: Vec<Linear>,
    top: Vec<Linear>,
    interaction: Interaction,
    linear: Kernel,
    dot: Kernel,
    cat: Kernel,
    /// Elements of the dense features behind the bottom MLP, and of the interaction's output.
    dense: usize,
    met: usize,
    tables: usize,
}

struct Linear {
    weight: Buffer,
    bias: Buffer,
    inputs: usize,
    outputs: usize,
    activation: Activation,
}

/// As the kernel numbers them.
#[derive(Clone, Copy)]
enum Activation {
    None = 0,
    Relu = 1,
    Sigmoid = 2,
}

/// What lies between layers.
#[derive(Default)]
pub(super) struct Scratch {
    /// Two for the bottom MLP, two for the top.
    between: [Option<Buffer>; 4],
    met: Option<Buffer>,
}

impl Layers {
    pub fn new(device: &Arc<Device>, model: &Model) -> Result<Self, Error> {
        let spec = &model.spec;
        let interaction = spec.interaction;
        if !matches!(interaction, Interaction::Dot | Interaction::DotItself | Interaction::Cat) {
            return Err(Error::CudaInteraction { interaction: interaction.name() });
        }
        let module = device.module(LAYERS_SOURCE, &[])?;
        let kernel = |name| device.kernel(&module, name);
        let last = if spec.sigmoid { Activation::Sigmoid } else { Activation::None };
        let bottom = upload(device, &model.bottom(), Activation::Relu)?;
        let top = upload(device, &model.top(), last)?;
        Ok(Self {
            dense: spec.bottom_width(),
            met: top.first().map_or(0, |layer| layer.inputs),
            tables: spec.tables.len(),
            bottom,
            top,
            interaction,
            linear: kernel("linear")?,
            dot: kernel("interact_dot")?,
            cat: kernel("interact_cat")?,
        })
    }

    /// Dense features through the bottom MLP. Returns the address of its outputs.
    pub fn bottom(
        &self,
        device: &Arc<Device>,
        scratch: &mut Scratch,
        dense: u64,
        samples: usize,
    ) -> Result<u64, Error> {
        let [first, second, ..] = &mut scratch.between;
        let mut x = dense;
        for (index, layer) in self.bottom.iter().enumerate() {
            let to = if index % 2 == 0 { &mut *first } else { &mut *second };
            let y = room(to, device, samples * layer.outputs * 4)?.address();
            self.forward(device, layer, x, y, samples)?;
            x = y;
        }
        Ok(x)
    }

    /// Interaction and top MLP. Returns the buffer of scores.
    pub fn top<'a>(
        &self,
        device: &Arc<Device>,
        scratch: &'a mut Scratch,
        dense: u64,
        pooled: u64,
        pooled_width: usize,
        samples: usize,
    ) -> Result<&'a Buffer, Error> {
        let Scratch { between: [_, _, first, second], met } = scratch;
        let met = room(met, device, samples * self.met * 4)?;
        self.interact(device, dense, pooled, pooled_width, met.address(), samples)?;
        let mut x = met.address();
        for (index, layer) in self.top.iter().enumerate() {
            let to = if index % 2 == 0 { &mut *first } else { &mut *second };
            let y = room(to, device, samples * layer.outputs * 4)?.address();
            self.forward(device, layer, x, y, samples)?;
            x = y;
        }
        let scores = if self.top.len() % 2 == 1 { first } else { second };
        Ok(scores.as_ref().unwrap_or(met))
    }

    fn interact(
        &self,
        device: &Arc<Device>,
        dense: u64,
        pooled: u64,
        pooled_width: usize,
        out: u64,
        samples: usize,
    ) -> Result<(), Error> {
        let strides = [self.dense, pooled_width, self.met];
        let pointers = [dense, pooled, out];
        let (kernel, numbers) = match self.interaction {
            Interaction::Cat => (self.cat, vec![self.dense, pooled_width]),
            _ => (self.dot, vec![self.dense, self.tables + 1]),
        };
        let mut numbers = numbers;
        numbers.extend(strides);
        if self.interaction != Interaction::Cat {
            numbers.push(usize::from(self.interaction == Interaction::DotItself));
        }
        let grid = [samples as u32, 1, 1];
        device.launch(
            kernel,
            grid,
            [THREADS, 1, 1],
            &parameters(&pointers, &numbers),
            Queue::Compute,
        )?;
        Ok(())
    }

    fn forward(
        &self,
        device: &Arc<Device>,
        layer: &Linear,
        x: u64,
        y: u64,
        samples: usize,
    ) -> Result<(), Error> {
        let pointers = [x, layer.weight.address(), layer.bias.address(), y];
        let Linear { inputs, outputs, activation, .. } = *layer;
        let numbers = [samples, inputs, outputs, inputs, outputs, activation as usize];
        let grid = [(outputs as u32).div_ceil(TILE), (samples as u32).div_ceil(TILE), 1];
        let block = [TILE, TILE, 1];
        device.launch(
            self.linear,
            grid,
            block,
            &parameters(&pointers, &numbers),
            Queue::Compute,
        )?;
        Ok(())
    }
}

/// Parameters as C lays them out: pointers, then 32-bit numbers.
fn parameters(pointers: &[u64], numbers: &[usize]) -> Vec<u8> {
    let mut bytes: Vec<u8> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    bytes.extend(numbers.iter().flat_map(|number| (*number as u32).to_le_bytes()));
    bytes
}

fn upload(
    device: &Arc<Device>,
    layers: &[model::Layer<'_>],
    last: Activation,
) -> Result<Vec<Linear>, Error> {
    let one = |(index, layer): (usize, &model::Layer<'_>)| {
        Ok(Linear {
            weight: device.upload(bytemuck::cast_slice(&layer.weight))?,
            bias: device.upload(bytemuck::cast_slice(&layer.bias))?,
            inputs: layer.inputs,
            outputs: layer.outputs,
            activation: if index + 1 == layers.len() { last } else { Activation::Relu },
        })
    };
    layers.iter().enumerate().map(one).collect()
}
