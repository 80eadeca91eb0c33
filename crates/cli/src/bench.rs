//! `hither bench`: how fast this machine looks up rows and runs layers, against its own limit.

mod bags;
mod layouts;
mod mlp;
mod model;
mod rounds;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use hither_data::safetensors::{Entry, Writer};
use hither_data::{Checkpoint, Dtype as Element, IdTrace};
use hither_dlrm::Model;
use hither_dlrm::generate::{self, Shape as ModelShape};
use hither_dlrm::lookups::{Hotness, Lookups, Shape};
use serde_json::{Map, Value, json};

use crate::Common;

/// Measure lookups, layers and whole models on this machine
#[derive(Debug, Subcommand)]
pub enum Command {
    Bags(bags::Args),
    Mlp(mlp::Args),
    Model(model::Args),
}

pub fn run(command: &Command, common: &Common) -> anyhow::Result<ExitCode> {
    match command {
        Command::Bags(args) => bags::run(args, common)?,
        Command::Mlp(args) => mlp::run(args, common)?,
        Command::Model(args) => model::run(args, common)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What is measured: a model and what it is asked.
#[derive(Debug, Clone, clap::Args)]
pub struct Subject {
    /// A model's directory; without one, a synthetic model is made for the measurement
    model: Option<PathBuf>,
    /// The synthetic model's shape: micro24, rm2_1, rm1 or mlperf
    #[arg(long, value_name = "NAME", default_value = "micro24", conflicts_with = "model")]
    preset: String,
    /// The synthetic model's tables [default: the preset's]
    #[arg(long, value_name = "N", conflicts_with = "model")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tables: Option<u32>,
    /// Rows of each of its tables [default: the preset's]
    #[arg(long, value_name = "N", conflicts_with = "model")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rows: Option<u32>,
    /// Type of their elements: fp32, fp16, bf16, int8 or int4
    #[arg(long, value_name = "TYPE", default_value = "fp32", conflicts_with = "model")]
    #[arg(value_parser = crate::model::dtype)]
    dtype: hither_kernels::bag::Dtype,
    /// Ids to look up: a line each, or indices and offsets; without, they are drawn
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// How hot drawn ids are: one-item, high, medium, low or random
    #[arg(long, value_name = "CLASS", default_value = "medium", conflicts_with = "ids")]
    hotness: Hotness,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// Ids a bag, where the file of ids does not say
    #[arg(long, value_name = "N", default_value_t = 80)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pooling: u32,
    /// Batches a pass, where the file of ids does not say
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batches: u32,
    /// Seed of the synthetic model and of what is drawn
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
    seed: u64,
}

/// A model for as long as it is measured: a synthetic one is removed afterwards.
struct Opened {
    model: Model,
    synthetic: Option<PathBuf>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(dir) = &self.synthetic {
            // What cannot be removed stays in the directory for temporary files.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Subject {
    fn open(&self, common: &Common) -> anyhow::Result<Opened> {
        if let Some(dir) = &self.model {
            return Ok(Opened { model: Model::open(dir)?, synthetic: None });
        }
        let mut shape = ModelShape::preset(&self.preset)?;
        shape.tables = self.tables.map_or(shape.tables, |n| n as usize);
        shape.rows = self.rows.map_or(shape.rows, |n| n as usize);
        shape.dtype = self.dtype;
        let dir = std::env::temp_dir().join(format!("hither-bench-{}", std::process::id()));
        common.say(&format!("making a model like {} in {}", self.preset, dir.display()));
        // Made before the model, so that it is removed even where that fails half-way.
        let remove = Removed(Some(dir.clone()));
        let spec = shape.spec(&self.preset);
        common.pool()?.install(|| generate::generate(&spec, self.seed, &dir, false, &|_| ()))?;
        let model = Model::open(&dir)?;
        Ok(Opened { model, synthetic: remove.keep() })
    }

    fn lookups(&self, model: &Model) -> anyhow::Result<Lookups> {
        match &self.ids {
            Some(path) => self.lookups_of(model, path),
            None => {
                let rows: Vec<usize> = model.spec.tables.iter().map(|t| t.rows).collect();
                Ok(Lookups::draw(self.hotness, &rows, self.shape(), self.seed))
            }
        }
    }

    fn lookups_of(&self, model: &Model, path: &Path) -> anyhow::Result<Lookups> {
        let trace = IdTrace::read(path)?;
        Lookups::from_trace(&trace, &model.spec, self.shape())
            .with_context(|| format!("{}", path.display()))
    }

    fn shape(&self) -> Shape {
        Shape {
            batches: self.batches as usize,
            batch: self.batch as usize,
            pooling: self.pooling as usize,
        }
    }

    /// Rows of features: the tensor of that name in the file of ids, or drawn.
    fn features(&self, name: &str, rows: Option<usize>, width: usize) -> anyhow::Result<Vec<f32>> {
        if let Some(path) = self.ids.as_deref().filter(|path| is_safetensors(path))
            && let Some(tensor) = Checkpoint::open(path)?.tensors.get(name)
        {
            let fits = tensor.shape.len() == 2 && tensor.shape[1] == width;
            if !fits || rows.is_some_and(|rows| tensor.shape[0] != rows) {
                let shape = &tensor.shape;
                bail!("{}: `{name}` has shape {shape:?}, not rows of {width}", path.display());
            }
            let values = tensor.as_f32().context("features are floating-point numbers")?;
            return Ok(values.into_owned());
        }
        // Layers alone look up no ids: without features, the file would mean nothing.
        if rows.is_none()
            && let Some(path) = &self.ids
        {
            bail!("{}: a safetensors file with rows of `{name}` is expected", path.display());
        }
        let rows = rows.unwrap_or(self.batch as usize * self.batches as usize);
        let mut state = self.seed.wrapping_mul(2).wrapping_add(1);
        // Any numbers of either sign will do: nothing here depends on their distribution.
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        Ok((0..rows * width).map(|_| draw()).collect())
    }
}

/// A directory that goes unless it is kept.
struct Removed(Option<PathBuf>);

impl Removed {
    fn keep(mut self) -> Option<PathBuf> {
        self.0.take()
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        if let Some(dir) = &self.0 {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// What every result on tables says of itself.
fn subject_facts(
    model: &Model,
    lookups: &Lookups,
    subject: &Subject,
    pool: &rayon::ThreadPool,
) -> Map<String, Value> {
    let tables = &model.spec.tables;
    let mut dtypes: Vec<&str> = tables.iter().map(|t| t.dtype.name()).collect();
    dtypes.dedup();
    let ids = subject.ids.as_ref().map_or(subject.hotness.to_string(), |path| {
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    });
    let bytes: usize = model.tables().map(|table| table.rows.len()).sum();
    let mut facts = Map::new();
    facts.insert("model".into(), json!(model.spec.name));
    facts.insert("tables".into(), json!(tables.len()));
    facts.insert("table_bytes".into(), json!(bytes));
    facts.insert("dtypes".into(), json!(dtypes.join(" ")));
    facts.insert("ids".into(), json!(ids));
    facts.insert("batch".into(), json!(lookups.batch));
    facts.insert("batches".into(), json!(lookups.len()));
    facts.insert("threads".into(), json!(pool.current_num_threads()));
    facts
}

fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "safetensors")
}

/// Tensors of fp32, each with its width, into a file.
fn write_tensors(path: &Path, tensors: &[(&str, usize, &[f32])]) -> anyhow::Result<()> {
    let entries: Vec<Entry> = tensors
        .iter()
        .map(|(name, width, values)| Entry {
            name: (*name).into(),
            dtype: Element::F32,
            shape: vec![values.len() / (*width).max(1), *width],
        })
        .collect();
    let mut writer = Writer::create(path, &entries, &Default::default())?;
    for (_, _, values) in tensors {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        writer.write(&bytes)?;
    }
    Ok(writer.finish()?)
}
