//! Forecasts for GPUs: resources of every variant, hit rates and bounds by hotness. No GPU is used and
//! nothing is measured; the same numbers come out on every machine.
//!
//! The machine code of every variant runs in the emulator, and its requests pass the cache model. `by_ids`
//! is what `hither plan --device cuda:GPU` says of the same ids without compilers and emulator.

mod emulate;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use hither_cuda::bags::Build;
use hither_cuda::forecast::cache::Traffic;
use hither_cuda::forecast::{GpuForecast, forecast, forecast_from};
use hither_cuda::gpu::{Gpu, planned_builds};
use hither_data::IdTrace;
use hither_dlrm::generate::Shape;
use hither_dlrm::lookups::{self, Hotness, Lookups};
use hither_dlrm::model::Spec;
use hither_dlrm::plan::gpu::Variant;
use hither_dlrm::workload::{Reading, Workload};
use rayon::prelude::*;
use serde_json::json;

use self::emulate::{Programs, Template};

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
        let builds = planned_builds(&gpu.arch).filter(|build| build.min_blocks == 0);
        let builds: Vec<Build> = builds.collect();
        let programs = Programs::new(gpu, builds.iter().copied())?;
        let (_, any) = cases.first().context("ids to look up")?;
        let templates: Result<BTreeMap<&str, Template>> = (builds.par_iter())
            .map(|build| {
                let template = programs.template(gpu, &spec, any, build)?;
                eprintln!("{gpu}: {} is emulated", build.variant);
                Ok((build.variant.name, template))
            })
            .collect();
        let templates = templates?;
        for (ids, lookups) in &cases {
            let line = json!({
                "model": args.preset, "batch": args.batch, "ids": ids, "lookups": lookups.ids(),
                "forecast": emulated(gpu, &templates, &spec, lookups)?,
                "by_ids": forecast(gpu, &spec, lookups),
            });
            println!("{line}");
        }
    }
    Ok(())
}

/// A forecast from the requests of emulated machine code. A register cap changes what is spilled, not
/// what is asked of global memory, so both caps of a variant share one run.
fn emulated(
    gpu: &Gpu,
    templates: &BTreeMap<&str, Template>,
    spec: &Spec,
    lookups: &Lookups,
) -> Result<GpuForecast> {
    let mut failed = None;
    let judged = forecast_from(gpu, spec, lookups, &mut |build, hot, setting| {
        // Pinning by a kernel that runs before runs the code of vec4.
        let variant = if build.variant.has_own_code() { build.variant } else { Variant::VEC4 };
        let is_pinned = setting.pinned_bytes.is_some();
        match templates[variant.name].with_ids(spec, lookups, hot, is_pinned) {
            Ok(launch) => launch.traffic(gpu, setting),
            Err(error) => {
                failed.get_or_insert(error);
                Traffic::default()
            }
        }
    });
    failed.map_or(Ok(judged), Err)
}

fn read(path: &Path, spec: &Spec, batch: usize, pooling: usize) -> Result<Lookups> {
    let about = || format!("{}", path.display());
    let trace = IdTrace::read(path, &spec.columns()).with_context(about)?;
    let reading = Reading { batch: Some(batch), pooling, wrap: true };
    let workload = Workload::new(&trace, spec, reading).with_context(about)?;
    Ok(Lookups::from_workload(&workload, 1))
}
