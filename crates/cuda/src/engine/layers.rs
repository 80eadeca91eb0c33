//! The layers around the tables, on the device.

use std::sync::Arc;

use crate::bags::{LAYERS_SOURCE, TILE};
use crate::device::{Buffer, Device, Kernel, Queue};

use super::stage::room;
use crate::Error;
use hither_dlrm::model::{self, CrossLayer, Interaction, Model};

/// Threads of a block of the interaction kernels.
const THREADS: u32 = 256;

pub(super) struct Layers {
    bottom: Vec<Linear>,
    interactor: Interactor,
    top: Vec<Linear>,
    kernels: Kernels,
    /// Elements per sample: behind the bottom MLP, of all pooled rows, and of the interaction's output.
    dense: usize,
    pooled: usize,
    met: usize,
    tables: usize,
}

/// An [`Interaction`] with its weights on the device.
enum Interactor {
    Dot {
        itself: bool,
    },
    Cat,
    /// `x' = x₀ · (W (V x) + bias) + x`: V and W of each layer.
    Dcn(Vec<[Linear; 2]>),
    /// The left and the right MLP.
    Projection([Vec<Linear>; 2]),
}

struct Kernels {
    linear: Kernel,
    dot: Kernel,
    cat: Kernel,
    cross: Kernel,
    products: Kernel,
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

/// Outputs of an MLP's layers, in turn.
type Pair = [Option<Buffer>; 2];

/// What lies between layers.
#[derive(Default)]
pub(super) struct Scratch {
    bottom: Pair,
    top: Pair,
    /// Outputs of layers inside the interaction.
    left: Pair,
    right: Pair,
    /// All features side by side, where the interaction needs them.
    joined: Option<Buffer>,
    met: Option<Buffer>,
}

impl Layers {
    pub fn new(device: &Arc<Device>, model: &Model) -> Result<Self, Error> {
        let spec = &model.spec;
        let module = device.module(LAYERS_SOURCE, &[])?;
        let kernel = |name| device.kernel(&module, name);
        let last = if spec.sigmoid { Activation::Sigmoid } else { Activation::None };
        let bottom = upload_mlp(device, &model.bottom(), Activation::Relu)?;
        let top = upload_mlp(device, &model.top(), last)?;
        let dense = spec.bottom_width();
        Ok(Self {
            dense,
            pooled: spec.concatenated_width() - dense,
            met: top.first().map_or(0, |layer| layer.inputs),
            tables: spec.tables.len(),
            bottom,
            interactor: Interactor::new(device, model)?,
            top,
            kernels: Kernels {
                linear: kernel("linear")?,
                dot: kernel("interact_dot")?,
                cat: kernel("interact_cat")?,
                cross: kernel("interact_cross")?,
                products: kernel("interact_products")?,
            },
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
        self.mlp(device, &self.bottom, dense, &mut scratch.bottom, samples)
    }

    /// Interaction and top MLP. Returns the buffer of scores.
    pub fn top<'a>(
        &self,
        device: &Arc<Device>,
        scratch: &'a mut Scratch,
        dense: u64,
        pooled: u64,
        samples: usize,
    ) -> Result<&'a Buffer, Error> {
        self.interact(device, scratch, dense, pooled, samples)?;
        let Scratch { top, met, .. } = scratch;
        let met = room(met, device, samples * self.met * 4)?;
        self.mlp(device, &self.top, met.address(), top, samples)?;
        let last = self.top.len().checked_sub(1).and_then(|last| top[last % 2].as_ref());
        Ok(last.unwrap_or(met))
    }

    fn interact(
        &self,
        device: &Arc<Device>,
        scratch: &mut Scratch,
        dense: u64,
        pooled: u64,
        samples: usize,
    ) -> Result<(), Error> {
        let Scratch { left, right, joined, met, .. } = scratch;
        let out = room(met, device, samples * self.met * 4)?.address();
        let per_sample = |kernel, pointers: &[u64], numbers: &[usize]| {
            let parameters = parameters(pointers, numbers);
            let grid = [samples as u32, 1, 1];
            // SAFETY: pointers and numbers are the kernel's, and the buffers have room for `samples`; they are
            // the scratch of one batch, which ends with the queue synchronised.
            unsafe { device.launch(kernel, grid, [THREADS, 1, 1], &parameters, Queue::Compute) }
        };
        let width = self.dense + self.pooled;
        let join = |to: u64| {
            let numbers = [self.dense, self.pooled, self.dense, self.pooled, width];
            per_sample(self.kernels.cat, &[dense, pooled, to], &numbers)
        };
        match &self.interactor {
            Interactor::Dot { itself } => {
                let vectors = self.tables + 1;
                let strides = [self.dense, self.pooled, self.met];
                let [a, b, c] = strides;
                let numbers = [self.dense, vectors, a, b, c, usize::from(*itself)];
                per_sample(self.kernels.dot, &[dense, pooled, out], &numbers)?;
            }
            Interactor::Cat => join(out)?,
            Interactor::Dcn(layers) => {
                let first = room(joined, device, samples * width * 4)?.address();
                join(first)?;
                join(out)?;
                for layer in layers {
                    let gate = self.mlp(device, layer, out, left, samples)?;
                    let numbers = [width; 4];
                    per_sample(self.kernels.cross, &[first, gate, out], &numbers)?;
                }
            }
            Interactor::Projection([left_mlp, right_mlp]) => {
                let x = room(joined, device, samples * width * 4)?.address();
                join(x)?;
                let a = self.mlp(device, left_mlp, x, left, samples)?;
                let b = self.mlp(device, right_mlp, x, right, samples)?;
                let [lefts, rights] =
                    [left_mlp, right_mlp].map(|mlp| mlp.last().map_or(0, |layer| layer.outputs));
                let (dim, strides) = (self.dense, [self.dense, lefts, rights, self.met]);
                let numbers = [&[dim, lefts / dim, rights / dim], &strides[..]].concat();
                per_sample(self.kernels.products, &[dense, a, b, out], &numbers)?;
            }
        }
        Ok(())
    }

    /// All layers in turn. Returns the address of the last one's outputs.
    fn mlp(
        &self,
        device: &Arc<Device>,
        layers: &[Linear],
        mut x: u64,
        between: &mut Pair,
        samples: usize,
    ) -> Result<u64, Error> {
        for (index, layer) in layers.iter().enumerate() {
            let Linear { inputs, outputs, activation, .. } = *layer;
            let y = room(&mut between[index % 2], device, samples * outputs * 4)?.address();
            let pointers = [x, layer.weight.address(), layer.bias.address(), y];
            let numbers = [samples, inputs, outputs, inputs, outputs, activation as usize];
            let grid = [(outputs as u32).div_ceil(TILE), (samples as u32).div_ceil(TILE), 1];
            let parameters = parameters(&pointers, &numbers);
            let block = [TILE, TILE, 1];
            // SAFETY: as for the kernels per sample; the weights live as long as `self`.
            unsafe {
                device.launch(self.kernels.linear, grid, block, &parameters, Queue::Compute)
            }?;
            x = y;
        }
        Ok(x)
    }
}

impl Interactor {
    fn new(device: &Arc<Device>, model: &Model) -> Result<Self, Error> {
        let spec = &model.spec;
        Ok(match spec.interaction {
            Interaction::Dot => Self::Dot { itself: false },
            Interaction::DotItself => Self::Dot { itself: true },
            Interaction::Cat => Self::Cat,
            Interaction::Dcn => {
                let width = spec.concatenated_width();
                let layers = model.cross();
                let upload = |layer| upload_cross(device, layer, width);
                Self::Dcn(layers.iter().map(upload).collect::<Result<_, _>>()?)
            }
            Interaction::Projection => {
                let [left, right] = model.projection().unwrap_or_default();
                let upload = |layers: &[_]| upload_mlp(device, layers, Activation::Relu);
                Self::Projection([upload(&left)?, upload(&right)?])
            }
        })
    }
}

/// Parameters as C lays them out: pointers, then 32-bit numbers.
fn parameters(pointers: &[u64], numbers: &[usize]) -> Vec<u8> {
    let mut bytes: Vec<u8> = pointers.iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    bytes.extend(numbers.iter().flat_map(|number| (*number as u32).to_le_bytes()));
    bytes
}

/// `weight` is `[outputs, inputs]`, row by row; there are as many outputs as there are biases.
fn upload(
    device: &Arc<Device>,
    weight: &[f32],
    bias: &[f32],
    inputs: usize,
    activation: Activation,
) -> Result<Linear, Error> {
    Ok(Linear {
        weight: device.upload(bytemuck::cast_slice(weight))?,
        bias: device.upload(bytemuck::cast_slice(bias))?,
        inputs,
        outputs: bias.len(),
        activation,
    })
}

fn upload_mlp(
    device: &Arc<Device>,
    layers: &[model::Layer<'_>],
    last: Activation,
) -> Result<Vec<Linear>, Error> {
    let one = |(index, layer): (usize, &model::Layer<'_>)| {
        let activation = if index + 1 == layers.len() { last } else { Activation::Relu };
        upload(device, &layer.weight, &layer.bias, layer.inputs, activation)
    };
    layers.iter().enumerate().map(one).collect()
}

fn upload_cross(
    device: &Arc<Device>,
    layer: &CrossLayer<'_>,
    width: usize,
) -> Result<[Linear; 2], Error> {
    let rank = layer.v.len() / width;
    let none = vec![0.0; rank];
    Ok([
        upload(device, &layer.v, &none, width, Activation::None)?,
        upload(device, &layer.w, &layer.bias, rank, Activation::None)?,
    ])
}
