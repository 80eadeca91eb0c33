//! Forecasts for GPUs: resources of every variant, hit rates and bounds by hotness. No GPU is used and
//! nothing is measured; the same numbers come out on every machine.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use hither_data::IdTrace;
use hither_dlrm::generate::Shape;
use hither_dlrm::lookups::{self, Hotness, Lookups};
use hither_dlrm::model::Spec;
use hither_dlrm::plan::gpu::forecast;
use hither_dlrm::workload::{Reading, Workload};
use hither_kernels::cuda::gpu::Gpu;
use serde_json::json;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with reuse_low_500K.txt and reuse_medium_500K.txt; left out where it has none
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,
    /// Model shape
    #[arg(long, default_value = "micro24")]
    preset: String,
    /// Samples per batch
    #[arg(long, default_value_t = 2048)]
    batch: usize,
    /// GPUs, separated by commas
    #[arg(long, value_delimiter = ',', default_values = ["a100", "h100"])]
    gpus: Vec<Gpu>,
}

/// Real traces: the name in the results, and the file.
const TRACES: [(&str, &str); 2] =
    [("trace-low", "reuse_low_500K.txt"), ("trace-medium", "reuse_medium_500K.txt")];

pub fn run(args: &Args) -> Result<()> {
    let shape = Shape::preset(&args.preset)?;
    let spec = shape.spec(&args.preset);
    let drawn = lookups::Shape { batches: 1, batch: args.batch, pooling: shape.ids_per_bag };
    let rows = vec![shape.rows; shape.tables];
    let mut cases: Vec<(String, Lookups)> = (Hotness::ALL.into_iter())
        .map(|hotness| (hotness.to_string(), Lookups::draw(hotness, &rows, drawn, 1)))
        .collect();
    for (name, file) in TRACES {
        let path = args.traces.as_ref().map(|folder| folder.join(file));
        if let Some(path) = path.filter(|path| path.exists()) {
            cases.push((name.into(), read(&path, &spec, args.batch, shape.ids_per_bag)?));
        }
    }
    for gpu in &args.gpus {
        for (ids, lookups) in &cases {
            let judged = forecast(gpu, &spec, lookups);
            let line = json!({
                "model": args.preset, "batch": args.batch, "ids": ids, "lookups": lookups.ids(),
                "forecast": judged,
            });
            println!("{line}");
        }
    }
    Ok(())
}

fn read(path: &Path, spec: &Spec, batch: usize, pooling: usize) -> Result<Lookups> {
    let about = || format!("{}", path.display());
    let trace = IdTrace::read(path, &spec.columns()).with_context(about)?;
    let reading = Reading { batch: Some(batch), pooling, wrap: true };
    let workload = Workload::new(&trace, spec, reading).with_context(about)?;
    Ok(Lookups::from_workload(&workload, 1))
}
