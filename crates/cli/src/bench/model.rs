//! `hither bench model`: whole models, and where their time goes.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hither_data::Scratch;
use hither_dlrm::Model;
use hither_dlrm::lookups::Lookups;
use hither_dlrm::plan::Plan;
use hither_dlrm::run::{Batch, Engine, Stage, Workspace};
use hither_kernels::bag::{Dtype, OutOfRange};
use hither_kernels::detect;
use hither_kernels::gemm::Precision;
use serde_json::Map;

use super::rounds::{self, RoundArgs, Variant, Work};
use super::{Needs, Subject, write_tensors};
use crate::Common;

/// Measure whole models in fp32 and bf16
#[derive(Debug, clap::Args)]
#[command(after_help = "\
fp32 runs the model as it is; bf16 runs its MLPs in bf16, and its fp32 tables as bf16. Dense features \
come from the file of ids where it holds `dense`, and are drawn otherwise.

Examples:
  hither bench model --preset rm1 --hotness high --batch 64
  hither bench model --preset mlperf --rows 100000
  hither bench model model --plan model --ids requests.safetensors")]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Plan of `hither plan`: plan.toml or its directory [default: huge pages, rows fetched far ahead]
    #[arg(long, value_name = "PATH")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    rounds: RoundArgs,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    // Tables of fp32 and, half as large, of bf16; without a plan, both are copied to huge pages. A
    // plan was made for the memory that there is.
    let copies = if args.plan.is_some() { 0.0 } else { 1.5 };
    let needs = Needs { copies, half_on_disk: true, seconds: args.rounds.seconds };
    let opened = args.subject.open(&needs, common)?;
    let model = &opened.model;
    let asked = args.subject.requests(&opened, common)?;
    let inputs = model.spec.dense_features();
    let samples = asked.lookups.batch * asked.lookups.len();
    let dense = match &asked.dense {
        Some(dense) => dense.clone(),
        None => args.subject.drawn(samples * inputs),
    };
    let mut lookups = asked.lookups.clone();
    let load = |model: &Model, precision: Precision| -> anyhow::Result<Engine> {
        let mut plan = match &args.plan {
            Some(path) => Plan::open(path, &model.spec)?,
            None => Plan::standard(&model.spec),
        };
        plan.mlp = precision;
        plan.threads = common.threads.map_or(plan.threads, usize::from);
        let load = |done: &(dyn Fn(u64) + Sync)| {
            Engine::load(model, &plan, detect::cpu(), OutOfRange::Error, done)
        };
        super::laying_out(common, model, 1, load)
    };
    let full = load(model, Precision::F32)?;
    // A plan may have given rows new numbers, the same in both engines.
    lookups.change(|ids, offsets, batch| full.tables().renumber(ids, offsets, batch));
    let scratch = Scratch::in_temp_dir("hither-bench-bf16");
    let halved = halved(model, scratch.path())?;
    let half = load(halved.as_ref().unwrap_or(model), Precision::Bf16)?;

    let work = Work { samples: samples as u64, rows: lookups.ids() as u64, bytes: 0, flops: 0 };
    let shares = Rc::new(RefCell::new(Vec::new()));
    let variants = [("fp32", &full), ("bf16", &half)]
        .map(|(name, engine)| variant(name, engine, &lookups, &dense, work, shares.clone()));
    if let Some(path) = &args.rounds.write_output {
        let mut out = vec![0.0; samples * full.outputs()];
        let mut work = Workspace::default();
        for (k, out) in out.chunks_mut(lookups.batch * full.outputs()).enumerate() {
            let batch = batch(&lookups, &dense, inputs, k);
            full.infer(&batch, out, &mut work, |_| ())?;
        }
        write_tensors(path, &[("output", full.outputs(), &out)])?;
    }
    let mut subject = super::subject_facts(&opened, &asked, &args.subject, full.threads());
    subject.insert("dense".into(), if asked.dense.is_some() { "file" } else { "drawn" }.into());
    rounds::run("model", subject, variants.into(), &args.rounds, 1.0, common)?;
    show_stages(&shares.borrow(), common);
    Ok(())
}

/// The same model with tables of bf16 in the place of fp32; `None` if it has no fp32 tables.
fn halved(model: &Model, dir: &Path) -> anyhow::Result<Option<Model>> {
    let tables = &model.spec.tables;
    if tables.iter().all(|t| t.dtype != Dtype::F32) {
        return Ok(None);
    }
    let smaller = |dtype| if dtype == Dtype::F32 { Dtype::Bf16 } else { dtype };
    let dtypes: Vec<Dtype> = tables.iter().map(|t| smaller(t.dtype)).collect();
    model.convert(&dtypes, dir, true, &|_| ()).context("cannot make tables of bf16")?;
    Ok(Some(Model::open(dir)?))
}

/// Time of each stage, by variant, over all passes.
type Shares = Rc<RefCell<Vec<(&'static str, [Duration; 3])>>>;

fn variant<'a>(
    name: &'static str,
    engine: &'a Engine,
    lookups: &'a Lookups,
    dense: &'a [f32],
    work: Work,
    shares: Shares,
) -> Variant<'a> {
    let width = dense.len() / (lookups.batch * lookups.len()).max(1);
    let mut out = vec![0.0; lookups.batch * engine.outputs()];
    let mut space = Workspace::default();
    let at = shares.borrow().len();
    shares.borrow_mut().push((name, [Duration::ZERO; 3]));
    let pass = move || {
        for k in 0..lookups.len() {
            let batch = batch(lookups, dense, width, k);
            let clock = Mutex::new((Instant::now(), [Duration::ZERO; 3]));
            engine.infer(&batch, &mut out, &mut space, |stage| {
                let mut clock = clock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let now = Instant::now();
                clock.1[stage_index(stage)] = now - clock.0;
                clock.0 = now;
            })?;
            let (_, took) = clock.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
            let (_, sums) = &mut shares.borrow_mut()[at];
            sums.iter_mut().zip(took).for_each(|(sum, took)| *sum += took);
        }
        Ok(())
    };
    Variant { name: name.into(), pass: Box::new(pass), work, touch: None, facts: Map::new() }
}

fn stage_index(stage: Stage) -> usize {
    match stage {
        Stage::Bottom => 0,
        Stage::Tables => 1,
        Stage::Top => 2,
    }
}

fn batch<'a>(lookups: &'a Lookups, dense: &'a [f32], width: usize, k: usize) -> Batch<'a> {
    let size = lookups.batch * width;
    Batch { dense: &dense[k * size..(k + 1) * size], bags: lookups.bags(k) }
}

fn show_stages(shares: &[(&'static str, [Duration; 3])], common: &Common) {
    for (name, stages) in shares {
        let all: Duration = stages.iter().sum();
        let share = |stage: usize| {
            100.0 * stages[stage].as_secs_f64() / all.as_secs_f64().max(f64::MIN_POSITIVE)
        };
        common.say(&format!(
            "{name}: bottom MLP {:.0} %, tables {:.0} %, interaction and top MLP {:.0} %",
            share(0),
            share(1),
            share(2)
        ));
    }
}
