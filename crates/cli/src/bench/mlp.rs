//! `hither bench mlp`: the layers alone.

use hither_dlrm::mlp::Mlp;
use hither_dlrm::model::Layer;
use hither_dlrm::run::{at_once, in_blocks};
use hither_dlrm::workload::BATCH;
use hither_kernels::detect;
use hither_kernels::gemm::{Activation, Precision};
use rayon::ThreadPool;
use serde_json::Map;

use super::rounds::{self, RoundArgs, Variant, Work};
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
    let needs = Needs { copies: 0.0, half_on_disk: false, seconds: args.rounds.seconds };
    let opened = args.subject.open(&needs, common)?;
    let model = &opened.model;
    let pool = common.pool()?;
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
                pool.install(|| in_blocks(&mlp, &x, &mut out, mlp.outputs(), 64));
                written.push((*name, mlp.outputs(), out));
            }
            let work = Work { flops: flops(layers, x.len() / inputs.max(1)), ..Work::default() };
            variants.push(variant(format!("{name}-{suffix}"), mlp, x.clone(), batch, &pool, work));
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
    subject.insert("threads".into(), pool.current_num_threads().into());
    rounds::run("mlp", subject, variants, &args.rounds, 1.0, common)
}

fn flops(layers: &[Layer], samples: usize) -> u64 {
    layers.iter().map(|layer| 2 * (layer.inputs * layer.outputs * samples) as u64).sum()
}

fn variant(
    name: String,
    mlp: Mlp,
    x: Vec<f32>,
    batch: usize,
    pool: &ThreadPool,
    work: Work,
) -> Variant<'_> {
    let (inputs, outputs) = (mlp.inputs(), mlp.outputs());
    let work = Work { samples: (x.len() / inputs.max(1)) as u64, ..work };
    let mut out = vec![0.0; batch * outputs];
    let pass = move || {
        pool.install(|| {
            let at_once = at_once(batch, pool.current_num_threads());
            for x in x.chunks(batch * inputs) {
                let out = &mut out[..x.len() / inputs * outputs];
                in_blocks(&mlp, x, out, outputs, at_once);
            }
        });
        Ok(())
    };
    Variant { name, pass: Box::new(pass), work, touch: None, facts: Map::new() }
}
