//! `hither bench mlp`: the layers alone.

use std::cell::RefCell;

use hither_dlrm::mlp::{Mlp, Scratch};
use hither_dlrm::model::Layer;
use hither_dlrm::workload::BATCH;
use hither_kernels::detect;
use hither_kernels::gemm::{Activation, Precision, Rows, RowsMut};
use hither_kernels::threads::Threads;
use serde_json::Map;

use super::rounds::{self, PassWork, RoundArgs, Variant};
use super::{Needs, Subject, write_tensors};
use crate::Common;

/// Measure a model's bottom and top MLP in fp32 and bf16
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither bench mlp --preset mlperf --rows 1000 --batch 64 --threads 1
  hither bench mlp model --batch 2048 --json

--ids FILE may hold rows of `dense`, the inputs of the bottom MLP, and of `features`, the inputs of the \
top MLP, as safetensors, .pt or .npz; without it they are drawn.")]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    #[command(flatten)]
    rounds: RoundArgs,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    args.rounds.check()?;
    let needs = Needs { copies: 0.0, half_on_disk: false, seconds: args.rounds.seconds };
    let opened = args.subject.open(&needs, common)?;
    let model = &opened.model;
    let crew = Crew { own: RefCell::default(), helpers: common.helpers(0)? };
    let batch = args.subject.batch.map_or(BATCH, |batch| batch as usize);
    let last = if model.spec.sigmoid { Activation::Sigmoid } else { Activation::None };
    let stacks = [
        ("bottom", "dense", model.bottom(), Activation::Relu),
        ("top", "features", model.top(), last),
    ];

    let mut variants = Vec::new();
    let mut written = Vec::new();
    for (name, input, layers, last) in &stacks {
        let inputs = layers.first().map_or(0, |layer| layer.inputs);
        let x = args.subject.features(input, inputs)?;
        for (precision, suffix) in [(Precision::F32, "fp32"), (Precision::Bf16, "bf16")] {
            let mlp = Mlp::new(layers, *last, precision, detect::cpu());
            if precision == Precision::F32 && args.rounds.write_output.is_some() {
                let mut out = vec![0.0; x.len() / inputs.max(1) * mlp.outputs()];
                crew.forward(&mlp, &x, &mut out);
                written.push((*name, mlp.outputs(), out));
            }
            let work =
                PassWork { flops: flops(layers, x.len() / inputs.max(1)), ..PassWork::default() };
            variants.push(variant(format!("{name}-{suffix}"), mlp, x.clone(), batch, &crew, work));
        }
    }
    if let Some(path) = &args.rounds.write_output {
        let tensors: Vec<(&str, usize, &[f32])> =
            written.iter().map(|(name, width, out)| (*name, *width, out.as_slice())).collect();
        write_tensors(path, &tensors)?;
    }
    let mut subject = Map::new();
    subject.insert("model".into(), model.spec.name.clone().into());
    subject.insert("batch".into(), batch.into());
    subject.insert("threads".into(), (crew.helpers.count() + 1).into());
    rounds::run("mlp", subject, variants, &args.rounds, 1.0, common)
}

fn flops(layers: &[Layer], samples: usize) -> u64 {
    layers.iter().map(|layer| 2 * (layer.inputs * layer.outputs * samples) as u64).sum()
}

/// The calling thread, and others that help it.
struct Crew {
    own: RefCell<Scratch>,
    helpers: Threads<Scratch>,
}

/// Samples that a thread takes at a time.
const PART_SAMPLES: usize = 64;

impl Crew {
    fn forward(&self, mlp: &Mlp, x: &[f32], out: &mut [f32]) {
        let (inputs, outputs, helpers) = (mlp.inputs(), mlp.outputs(), self.helpers.count());
        let samples = (out.len() / outputs.max(1)).div_ceil(helpers + 1).clamp(1, PART_SAMPLES);
        let work = |part: usize, out: &mut [f32], scratch: &mut Scratch| {
            let count = out.len() / outputs;
            let x = Rows::new(&x[part * samples * inputs..], count, inputs);
            mlp.forward(x, RowsMut::new(out, count, outputs), scratch);
        };
        let own = &mut self.own.borrow_mut();
        self.helpers.split_chunks(own, out, (samples * outputs).max(1), helpers, &work);
    }
}

fn variant(
    name: String,
    mlp: Mlp,
    x: Vec<f32>,
    batch: usize,
    crew: &Crew,
    work: PassWork,
) -> Variant<'_> {
    let (inputs, outputs) = (mlp.inputs(), mlp.outputs());
    let work = PassWork { samples: (x.len() / inputs.max(1)) as u64, ..work };
    let mut out = vec![0.0; batch * outputs];
    let pass = move || {
        for x in x.chunks(batch * inputs) {
            crew.forward(&mlp, x, &mut out[..x.len() / inputs * outputs]);
        }
        Ok(())
    };
    Variant { name, pass: Box::new(pass), work, touch: None, facts: Map::new() }
}
