//! Epochs of training on one machine, as `bench/train` has the peers run them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use hither_gnn::layer::Norm;
use hither_gnn::load;
use hither_gnn::local::{Learner, Pace, Steps, Until};
use hither_gnn::model::{Kind, Model, Spec};
use hither_gnn::optim::{Method, Optimiser};
use hither_gnn::sample::Fanout;
use hither_gnn::task::Task;
use serde_json::json;

use crate::machine;

const LAYERS: usize = 2;
const HIDDEN: usize = 256;
const FANOUT: usize = 10;
const BATCH: usize = 1024;
const RATE: f32 = 0.01;

#[derive(Parser)]
pub struct Args {
    /// A file in Hither's mapped form
    #[arg(long)]
    dataset: PathBuf,
    #[arg(long, value_enum)]
    case: Case,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// The first is warm-up
    #[arg(long, default_value_t = 4)]
    epochs: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Case {
    SageMinibatch,
    GcnFull,
    SageFull,
}

pub fn run(args: &Args) -> Result<()> {
    rayon::ThreadPoolBuilder::new().num_threads(args.threads).build_global()?;
    let data = Arc::new(load::open(&args.dataset, &load::Options::default())?);
    let loaded = machine::resident_bytes().context("no /proc/self/status")?;
    let (kind, batch) = match args.case {
        Case::SageMinibatch => (Kind::Sage, Some(BATCH)),
        Case::GcnFull => (Kind::Gcn, None),
        Case::SageFull => (Kind::Sage, None),
    };
    let model = Model::new(Spec {
        layers: vec![kind; LAYERS],
        inputs: data.features.dim(),
        hidden: HIDDEN,
        outputs: data.labels.count(),
        heads: 1,
        norm: Norm::Symmetric,
        batch_norm: false,
        layer_norm: false,
        residual: false,
        length_power: 1.0,
        dropout: 0.0,
        steps: 1,
        alpha: 0.0,
    })?;
    let count = batch.map_or(1, |size| data.split.train.len().div_ceil(size)) as u32;
    let optimiser = Optimiser::new(Method::Adam, 0.0, model.params_len());
    let mut learner = Learner::new(data, Task::Nodes, optimiser);
    let pace = Pace { batch, fanout: Fanout::AtMost(FANOUT), rate: RATE, clip: None };
    let mut weights = model.start(args.seed);
    let (mut seconds, mut cpu_seconds, mut loss) = (vec![], vec![], 0.0);
    for round in 1..=args.epochs {
        let (start, cpu_start) = (Instant::now(), machine::cpu_s());
        let steps = Steps {
            seed: args.seed,
            who: "epoch",
            round,
            until: Until::Count(count),
            without: &[],
        };
        let learnt = learner.learn(&model, &weights, &pace, &steps);
        weights = learnt.weights;
        loss = learnt.loss;
        seconds.push(start.elapsed().as_secs_f64());
        cpu_seconds.push(machine::cpu_s() - cpu_start);
    }
    let peak = machine::peak_bytes().context("no /proc/self/status")?;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let line = json!({
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "loss": loss,
        "rss_loaded_mb": mb(loaded),
        "rss_peak_mb": mb(peak),
        "rss_peak_over_loaded_mb": mb(peak.saturating_sub(loaded)),
        "versions": machine::facts(),
    });
    println!("{line}");
    Ok(())
}
