//! The backend of recommendation models: an engine, its plan, and how its tables lie.

mod request;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hither_dlrm::model::{SPEC_FILE, Spec, TENSORS_FILE};
use hither_dlrm::plan::{PLAN_FILE, PageChoice, Plan};
pub use hither_dlrm::run::LoadGpu;
use hither_dlrm::run::{Device, Engine, Options, Request, Threads, Worker};
use hither_dlrm::{Error, Model};
use hither_kernels::bag::{OutOfRange, TableBags};
use hither_kernels::gemm::Precision;

use crate::backend::{Backend, Done, Failure};
use crate::config::{Mlp, ModelConfig, Reaction};
use crate::inputs::{Features, ModelShape, Signature};
use crate::memory::Share;

pub struct Dlrm {
    signature: Signature,
    engine: Engine,
    spec: Spec,
    /// How the tables are to lie in the end.
    target: Plan,
    /// Whether the target is a plan that somebody made, and not a default.
    has_plan: bool,
    state: Mutex<Layout>,
}

/// How the tables lie now.
struct Layout {
    plan: Plan,
    /// Of the copies.
    memory: Option<Share>,
}

/// Seconds that a model without a plan tries prefetch schemes for.
const SELF_TEST_S: f64 = 0.2;

/// The files of a version that the backend reads.
pub const FILES: [&str; 3] = [SPEC_FILE, TENSORS_FILE, PLAN_FILE];

/// Whether a directory holds a model.
pub fn is_model(dir: &Path) -> bool {
    dir.join(SPEC_FILE).exists()
}

impl Dlrm {
    /// Opens a version so that it can serve at once: tables are read from the mapped file, and copied
    /// later. `gpu` carries out plans for a GPU; without it such models run on the CPU.
    pub fn load(
        name: &str,
        dir: &Path,
        config: &ModelConfig,
        gpu: Option<LoadGpu>,
    ) -> Result<Self, String> {
        let shown = |error: Error| error.to_string();
        let model = Model::open(dir).map_err(shown)?;
        let spec = &model.spec;
        let (form, ids_per_bag) = config.form(spec.tables.len())?;
        let has_plan = dir.join(PLAN_FILE).exists();
        let mut plan = match has_plan {
            true => Plan::open(&dir.join(PLAN_FILE), spec).map_err(shown)?,
            false => Plan::standard(spec),
        };
        if let Some(mlp) = config.mlp {
            plan.mlp = if mlp == Mlp::Bf16 { Precision::Bf16 } else { Precision::F32 };
        }
        for table in &mut plan.tables {
            table.pages = config.pages.unwrap_or(table.pages);
        }
        let mut first = plan.clone();
        first.tables.iter_mut().for_each(|table| table.pages = PageChoice::Mapped);
        let reaction = match config.out_of_range {
            Reaction::Refuse => OutOfRange::Error,
            Reaction::Clamp => OutOfRange::Clamp,
        };
        let options =
            Options { out_of_range: vec![reaction; spec.tables.len()], gpu, ..Options::default() };
        let (engine, problem) =
            Engine::load_or_cpu(&model, &first, options, &|_| ()).map_err(shown)?;
        if let Some(problem) = problem {
            tracing::warn!("model `{name}`: {problem}; serving on the CPU");
            (plan.device, first.device) = Default::default();
        } else if plan.device != Device::Cpu {
            // The GPU has the rows: the host copies nothing later.
            first = plan.clone();
        }
        let shape = ModelShape {
            dense: spec.dense_features(),
            tables: spec.tables.iter().map(|table| (table.name.clone(), table.rows)).collect(),
            outputs: engine.outputs(),
        };
        let signature = Signature::new(name, shape, form, ids_per_bag, config);
        let layout = Layout { plan: first, memory: None };
        Ok(Self {
            signature,
            engine,
            spec: model.spec.clone(),
            target: plan,
            has_plan,
            state: Mutex::new(layout),
        })
    }

    fn layout(&self) -> MutexGuard<'_, Layout> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Dlrm {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn run(
        &self,
        batch: &[&Features],
        scores: &mut [f32],
        results: &mut [Result<(), Failure>],
        worker: &mut Worker,
        threads: &Threads,
    ) -> Done {
        let lists: Vec<Vec<TableBags>> = batch.iter().map(|features| features.lists()).collect();
        let requests: Vec<Request> =
            batch.iter().zip(&lists).map(|(features, lists)| features.request(lists)).collect();
        let mut errors: Vec<_> = requests.iter().map(|_| Ok(())).collect();
        let done = self.engine.infer(&requests, scores, &mut errors, worker, Some(threads));
        for (result, error) in results.iter_mut().zip(errors) {
            *result = error.map_err(failure);
        }
        let times = done.times;
        Done { clamped: done.clamped, stages: [times.bottom, times.tables, times.top] }
    }

    fn copy_bytes(&self) -> u64 {
        if self.layout().plan == self.target {
            return 0;
        }
        let tables = self.spec.tables.iter().zip(&self.target.tables);
        let copied = tables.filter(|(_, plan)| plan.pages != PageChoice::Mapped);
        // A table that reads another's rows takes no memory of its own.
        copied.filter(|(table, _)| table.shares.is_none()).map(|(table, _)| table.bytes()).sum()
    }

    fn copy(&self, memory: Share) -> Result<(), String> {
        self.engine.replan(&self.target, &|_| ()).map_err(|error| error.to_string())?;
        let mut layout = self.layout();
        layout.plan = self.target.clone();
        layout.memory = Some(memory);
        Ok(())
    }

    fn tune(&self) -> Result<(), String> {
        if self.has_plan || self.target.device != Device::Cpu {
            return Ok(());
        }
        let plan = self.layout().plan.clone();
        let plan = self.engine.self_test(&plan, SELF_TEST_S).map_err(|error| error.to_string())?;
        self.layout().plan = plan;
        Ok(())
    }
}

/// Whose fault an error is.
fn failure(error: Error) -> Failure {
    match error {
        Error::Gpu { problem, is_lost: true } => Failure::Lost(problem),
        Error::Gpu { problem, .. } => Failure::Backend(problem),
        error => Failure::Request(error.to_string()),
    }
}
