//! `hither bench model`: whole models, and where their time goes.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Context as _;
use hither_data::Scratch;
use hither_dlrm::Model;
use hither_dlrm::lookups::Lookups;
use hither_dlrm::plan::Plan;
use hither_dlrm::run::{Engine, Options, Request, Sparse, StageTimes, Threads, Worker};
use hither_kernels::bag::Dtype;
use hither_kernels::gemm::Precision;
use serde_json::Map;

use super::rounds::{self, PassWork, RoundArgs, Variant};
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
    /// Plan of `hither plan`: plan.toml or its directory [default: huge pages, a tested prefetch]
    #[arg(long, value_name = "PATH")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    rounds: RoundArgs,
}

/// The time of the test that chooses a prefetch where there is no plan.
const SELF_TEST_S: f64 = 0.2;

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    args.rounds.check()?;
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
    let lookups = asked.lookups.clone();
    let load = |model: &Model, precision: Precision| -> anyhow::Result<Engine> {
        let mut plan = match &args.plan {
            Some(path) => crate::plan::open(path, &model.spec, common)?,
            None => Plan::standard(&model.spec),
        };
        plan.mlp = precision;
        plan.threads = common.threads.map_or(plan.threads, usize::from);
        let engine = lay_out(model, &plan, common)?;
        if args.plan.is_none() {
            engine.self_test(&plan, SELF_TEST_S)?;
        }
        Ok(engine)
    };
    let full = load(model, Precision::F32)?;
    let scratch = Scratch::in_temp_dir("hither-bench-bf16");
    let halved = halved(model, scratch.path())?;
    let half = load(halved.as_ref().unwrap_or(model), Precision::Bf16)?;

    let work = PassWork { samples: samples as u64, rows: lookups.ids() as u64, bytes: 0, flops: 0 };
    let crew = Crew { worker: RefCell::default(), threads: common.helpers(0)? };
    let times = Rc::new(RefCell::new(Vec::new()));
    let variants = [("fp32", &full), ("bf16", &half)]
        .into_iter()
        .map(|(name, engine)| variant(name, engine, &crew, &lookups, &dense, work, times.clone()))
        .collect();
    if let Some(path) = &args.rounds.write_output {
        let mut out = vec![0.0; samples * full.outputs()];
        for (k, out) in out.chunks_mut(lookups.batch * full.outputs()).enumerate() {
            crew.infer(&full, &request(&lookups, &dense, inputs, k), out)?;
        }
        write_tensors(path, &[("output", full.outputs(), &out)])?;
    }
    let threads = crew.threads.count() + 1;
    let mut subject = super::subject_facts(&opened, &asked, &args.subject, threads);
    subject.insert("dense".into(), if asked.dense.is_some() { "file" } else { "drawn" }.into());
    rounds::run("model", subject, variants, &args.rounds, 1.0, common)?;
    show_stages(&times.borrow(), common);
    Ok(())
}

fn lay_out(model: &Model, plan: &Plan, common: &Common) -> anyhow::Result<Engine> {
    super::laying_out(common, model, 1, |done| {
        crate::plan::load(model, plan, Options::default(), done, common)
    })
}

/// The calling thread, and others that help it.
struct Crew {
    worker: RefCell<Worker>,
    threads: Threads,
}

impl Crew {
    fn infer(
        &self,
        engine: &Engine,
        request: &Request,
        out: &mut [f32],
    ) -> Result<StageTimes, hither_dlrm::Error> {
        let worker = &mut self.worker.borrow_mut();
        Ok(engine.infer_one(request, out, worker, Some(&self.threads))?.times)
    }
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
type Times = Rc<RefCell<Vec<(&'static str, StageTimes)>>>;

fn variant<'a>(
    name: &'static str,
    engine: &'a Engine,
    crew: &'a Crew,
    lookups: &'a Lookups,
    dense: &'a [f32],
    work: PassWork,
    times: Times,
) -> Variant<'a> {
    let width = dense.len() / (lookups.batch * lookups.len()).max(1);
    let mut out = vec![0.0; lookups.batch * engine.outputs()];
    let at = times.borrow().len();
    times.borrow_mut().push((name, StageTimes::default()));
    let pass = move || {
        for k in 0..lookups.len() {
            let took = crew.infer(engine, &request(lookups, dense, width, k), &mut out)?;
            times.borrow_mut()[at].1 += took;
        }
        Ok(())
    };
    Variant { name: name.into(), pass: Box::new(pass), work, touch: None, facts: Map::new() }
}

fn request<'a>(lookups: &'a Lookups, dense: &'a [f32], width: usize, k: usize) -> Request<'a> {
    let size = lookups.batch * width;
    let sparse = Sparse::Joined(lookups.bags(k));
    Request { dense: &dense[k * size..(k + 1) * size], sparse }
}

fn show_stages(times: &[(&'static str, StageTimes)], common: &Common) {
    for (name, StageTimes { bottom, tables, top }) in times {
        let all = (*bottom + *tables + *top).as_secs_f64().max(f64::MIN_POSITIVE);
        let [bottom, tables, top] =
            [bottom, tables, top].map(|stage| 100.0 * stage.as_secs_f64() / all);
        common.say(&format!(
            "{name}: bottom MLP {bottom:.0} %, tables {tables:.0} %, \
             interaction and top MLP {top:.0} %"
        ));
    }
}
