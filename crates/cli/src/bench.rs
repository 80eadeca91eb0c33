//! `hither bench`: measures how fast this machine looks up rows and runs layers.

mod bags;
mod mlp;
mod model;
mod rounds;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use clap::Subcommand;
use hither_data::output::show_bytes;
use hither_data::safetensors::{Entry, Writer};
use hither_data::{Dtype as Element, IdTrace, Scratch, ids};
use hither_dlrm::Model;
use hither_dlrm::generate::{self, Shape as ModelShape};
use hither_dlrm::lookups::{Hotness, Lookups, Shape};
use hither_dlrm::workload::{BATCH, Reading, Workload};
use hither_report::plural;
use serde_json::{Map, Value, json};

use crate::Common;
use crate::machine::Machine;
use crate::model::{note_ignored, table_bytes, write_tables};

/// Measure lookups, layers and whole models on this machine
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  hither bench bags --rows 50000 --hotness high --levers each
  hither bench mlp --preset mlperf --rows 1000 --batch 64
  hither bench model --preset mlperf --rows 50000
  hither bench model model --plan model --ids requests.safetensors

Without MODEL, a synthetic model is made in the directory for temporary files ($TMPDIR) and removed \
afterwards: 3 GB for the default preset; --rows makes it smaller.")]
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

/// The model that is measured, and the requests to it.
#[derive(Debug, Clone, clap::Args)]
pub struct Subject {
    /// Model directory [default: a synthetic model, made for the measurement]
    model: Option<PathBuf>,
    /// Shape of the synthetic model and ids per bag: micro24 (150), rm2_1 (120), rm1 (80), mlperf (1)
    #[arg(long, value_name = "NAME", default_value = "micro24", conflicts_with = "model")]
    preset: String,
    /// Number of tables of the synthetic model [default: the preset's]
    #[arg(long, value_name = "N", conflicts_with = "model")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tables: Option<u32>,
    /// Rows of each table of the synthetic model [default: the preset's]
    #[arg(long, value_name = "N", conflicts_with = "model")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    rows: Option<u32>,
    /// Element type of the synthetic model's tables: fp32, fp16, bf16, int8 or int4
    #[arg(long, value_name = "TYPE", default_value = "fp32", conflicts_with = "model")]
    #[arg(value_parser = crate::model::dtype)]
    dtype: hither_kernels::bag::Dtype,
    /// File of requests, or a plain list of ids (docs/formats/requests.md) [default: drawn ids]
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Hotness of drawn ids: one-item, high, medium, low or random
    #[arg(long, value_name = "CLASS", default_value = "medium", conflicts_with = "ids")]
    hotness: Hotness,
    /// Samples per batch [default: that of the file of ids; 64 if it leaves this open]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: Option<u32>,
    /// Ids per bag, if the file of ids has no bags [default: the preset's; 80 for other models]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pooling: Option<u32>,
    /// Batches per pass, if the file of ids has no bags
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batches: u32,
    /// Take ids modulo the rows of their table instead of refusing them
    #[arg(long, requires = "ids")]
    wrap: bool,
    /// Seed of the synthetic model and of all draws
    #[arg(long, value_name = "N", default_value_t = 0, env = "HITHER_SEED")]
    seed: u64,
}

/// Ids per bag for models that are not presets.
const POOLING: usize = 80;

/// What a bench takes beside the time of the measurement.
struct Needs {
    /// Copies of all tables that are in memory at once.
    copies: f64,
    /// Whether tables of half the size are written to disk as well.
    half_on_disk: bool,
    seconds: f64,
}

/// A model for as long as it is measured: a synthetic one is removed afterwards.
struct Opened {
    model: Model,
    /// Ids per bag of the preset, if the model is one.
    pooling: Option<usize>,
    _scratch: Option<Scratch>,
}

/// The requests of a measurement.
struct Asked {
    lookups: Lookups,
    /// Features of all samples, where the file has them.
    dense: Option<Vec<f32>>,
    pooling_from: &'static str,
}

impl Subject {
    fn open(&self, needs: &Needs, common: &Common) -> anyhow::Result<Opened> {
        if let Some(dir) = &self.model {
            let model = Model::open(dir)?;
            let bytes = table_bytes(&model.spec);
            let written = if needs.half_on_disk { bytes / 2 } else { 0 };
            needs.tell(bytes, written, common)?;
            return Ok(Opened { model, pooling: None, _scratch: None });
        }
        let mut shape = ModelShape::preset(&self.preset)?;
        shape.tables = self.tables.map_or(shape.tables, |n| n as usize);
        shape.rows = self.rows.map_or(shape.rows, |n| n as usize);
        shape.dtype = self.dtype;
        let spec = shape.spec(&self.preset);
        let bytes = table_bytes(&spec);
        needs.tell(bytes, bytes + if needs.half_on_disk { bytes / 2 } else { 0 }, common)?;
        let scratch = Scratch::in_temp_dir("hither-bench");
        let dir = scratch.path();
        write_tables(common, "drawing", bytes, dir, |done| {
            generate::generate(&spec, self.seed, dir, false, done)
        })?;
        let model = Model::open(dir)?;
        Ok(Opened { model, pooling: Some(shape.ids_per_bag), _scratch: Some(scratch) })
    }

    /// Ids per bag where the file of ids has no bags, and where that number comes from.
    fn pooling(&self, opened: &Opened) -> (usize, &'static str) {
        match (self.pooling, opened.pooling) {
            (Some(pooling), _) => (pooling as usize, "--pooling"),
            (None, Some(pooling)) => (pooling, "preset"),
            (None, None) => (POOLING, "default"),
        }
    }

    fn requests(&self, opened: &Opened, common: &Common) -> anyhow::Result<Asked> {
        let spec = &opened.model.spec;
        let (pooling, pooling_from) = self.pooling(opened);
        let Some(path) = &self.ids else {
            let rows: Vec<usize> = spec.tables.iter().map(|t| t.rows).collect();
            let batch = self.batch.map_or(BATCH, |batch| batch as usize);
            let shape = Shape { batches: self.batches as usize, batch, pooling };
            let lookups = Lookups::draw(self.hotness, &rows, shape, self.seed);
            return Ok(Asked { lookups, dense: None, pooling_from });
        };
        let trace = IdTrace::read(path, &spec.columns())?;
        note_ignored(path, &trace, common);
        let has_bags = trace.offsets.is_some();
        if let Some(pooling) = self.pooling.filter(|_| has_bags) {
            bail!("--pooling {pooling}: {} has bags of its own", path.display());
        }
        let about = || format!("{}", path.display());
        let workload = self.workload(&trace, opened).with_context(about)?;
        workload.check_ids().with_context(about)?;
        if workload.left_over() > 0 {
            common.say(&format!(
                "note: the last {} of {} fill no batch of {} and are left out",
                plural(workload.left_over(), "sample"),
                path.display(),
                workload.batch()
            ));
        }
        let lookups = Lookups::from_workload(&workload, self.batches as usize);
        let dense = workload.dense(0..lookups.batch * lookups.len()).map(Into::into);
        Ok(Asked { lookups, dense, pooling_from: if has_bags { "file" } else { pooling_from } })
    }

    /// The ids of another file, which need not be rows of the model's tables.
    fn lookups_of(&self, opened: &Opened, path: &Path, common: &Common) -> anyhow::Result<Lookups> {
        let trace = IdTrace::read(path, &opened.model.spec.columns())?;
        note_ignored(path, &trace, common);
        let workload = self.workload(&trace, opened);
        let workload = workload.with_context(|| format!("{}", path.display()))?;
        Ok(Lookups::from_workload(&workload, self.batches as usize))
    }

    fn workload<'a>(
        &self,
        trace: &'a IdTrace,
        opened: &'a Opened,
    ) -> Result<Workload<'a>, hither_dlrm::Error> {
        let batch = self.batch.map(|batch| batch as usize);
        let reading = Reading { batch, pooling: self.pooling(opened).0, wrap: self.wrap };
        Workload::new(trace, &opened.model.spec, reading)
    }

    /// Rows of features for layers alone: the tensor of that name in the file of ids, or drawn.
    fn features(&self, name: &str, width: usize) -> anyhow::Result<Vec<f32>> {
        let Some(path) = &self.ids else {
            let rows = self.batch.map_or(BATCH, |batch| batch as usize) * self.batches as usize;
            return Ok(self.drawn(rows * width));
        };
        // Layers look up no ids: a file without features would mean nothing.
        let expected =
            || format!("{}: a tensor `{name}` with rows of {width} is expected", path.display());
        let file = ids::open_tensors(path).with_context(expected)?;
        let Some(tensor) = file.tensors.get(name) else { bail!(expected()) };
        if tensor.shape.len() != 2 || tensor.shape[1] != width {
            bail!("{}: `{name}` has shape {:?}, not rows of {width}", path.display(), tensor.shape);
        }
        let values = tensor.as_f32().with_context(|| {
            format!(
                "{}: `{name}` is {}; floating-point numbers are expected",
                path.display(),
                tensor.dtype
            )
        })?;
        Ok(values.into_owned())
    }

    /// Numbers of either sign: nothing here depends on their distribution.
    fn drawn(&self, count: usize) -> Vec<f32> {
        let mut state = self.seed.wrapping_mul(2).wrapping_add(1);
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..count).map(|_| draw()).collect()
    }
}

impl Needs {
    /// Says before the start what the bench takes, and refuses where memory is short.
    fn tell(&self, table_bytes: u64, disk_bytes: u64, common: &Common) -> anyhow::Result<()> {
        let memory = (table_bytes as f64 * self.copies) as u64;
        let available = Machine::read().available_bytes;
        if let Some(available) = available.filter(|available| memory > *available) {
            bail!(
                "copies of the tables need {} of memory, {} are available; use fewer --rows or --tables",
                show_bytes(memory),
                show_bytes(available)
            );
        }
        let mut needs = Vec::new();
        if disk_bytes > 0 {
            let place = std::env::temp_dir();
            needs.push(format!("{} in {}", show_bytes(disk_bytes), place.display()));
        }
        if memory > 0 {
            needs.push(format!("{} of memory", show_bytes(memory)));
        }
        let takes = if needs.is_empty() {
            String::new()
        } else {
            format!("needs {}; ", needs.join(" and "))
        };
        common
            .say(&format!("{takes}measures for about {} s once the model is ready", self.seconds));
        Ok(())
    }
}

/// Lays out `copies` of a model's tables with a bar of the mebibytes done.
fn laying_out<T>(
    common: &Common,
    model: &Model,
    copies: usize,
    lay_out: impl FnOnce(&(dyn Fn(u64) + Sync)) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let bar =
        common.bar((table_bytes(&model.spec) * copies as u64) >> 20, "laying out tables, MiB");
    let done = AtomicU64::new(0);
    let result = lay_out(&|bytes| {
        let before = done.fetch_add(bytes, Ordering::Relaxed);
        bar.set_position((before + bytes) >> 20);
    });
    bar.finish_and_clear();
    result
}

/// The facts about model and requests that every result on tables carries.
fn subject_facts(
    opened: &Opened,
    asked: &Asked,
    subject: &Subject,
    threads: usize,
) -> Map<String, Value> {
    let (model, lookups) = (&opened.model, &asked.lookups);
    let tables = &model.spec.tables;
    let mut dtypes: Vec<&str> = tables.iter().map(|t| t.dtype.name()).collect();
    dtypes.dedup();
    let ids = subject.ids.as_ref().map_or(subject.hotness.to_string(), |path| {
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    });
    let bags = lookups.batch * lookups.len() * tables.len();
    let pooling = (lookups.ids() as f64 / bags.max(1) as f64 * 100.0).round() / 100.0;
    let mut facts = Map::new();
    facts.insert("model".into(), json!(model.spec.name));
    facts.insert("tables".into(), json!(tables.len()));
    facts.insert("table_bytes".into(), json!(table_bytes(&model.spec)));
    facts.insert("dtypes".into(), json!(dtypes.join(" ")));
    facts.insert("ids".into(), json!(ids));
    facts.insert("batch".into(), json!(lookups.batch));
    facts.insert("batches".into(), json!(lookups.len()));
    facts.insert("ids_per_bag".into(), json!(pooling));
    facts.insert("ids_per_bag_from".into(), json!(asked.pooling_from));
    facts.insert("threads".into(), json!(threads));
    facts
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
