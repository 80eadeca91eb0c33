//! Inference: requests through a whole model.
//!
//! dense → bottom MLP ┐
//!                    ├→ interaction → top MLP → score
//! ids → tables ──────┘
//!
//! An [`Engine`] is a model made ready for a device, and nothing else: it has no threads and no memory
//! for what lies between the stages. Both belong to the caller, who shares them among engines: a
//! [`Worker`] is one thread's memory, and [`Threads`] are all of them. Engines never queue, batch or
//! wait; a server around them does.

mod cpu;
mod cuda;
mod sample;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hither_kernels::bag::{Bags, Ids, OutOfRange, TableBags};
use hither_kernels::detect::{self, Cpu};
pub use hither_kernels::threads::Pinning;

pub use self::cpu::Worker;
pub use self::cuda::{
    Measured as GpuMeasured, candidates as gpu_candidates, measure as measure_gpu,
};
pub use self::sample::Seen;
use crate::Error;
use crate::model::Model;
use crate::plan::Plan;
use crate::tables::Tables;

/// The threads of a process, each with a [`Worker`] of its own, shared by all engines.
pub type Threads = hither_kernels::threads::Threads<Worker>;

/// A model, loaded as its plan says. Inference changes nothing in it: any number of threads may call
/// it at once, and [`Engine::replan`] may run beside them.
pub struct Engine {
    backend: Backend,
}

/// What computes.
enum Backend {
    Cpu(Box<cpu::CpuEngine>),
    Cuda(Box<cuda::CudaEngine>),
}

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Device {
    #[default]
    Cpu,
    /// The NVIDIA GPU of this number.
    Cuda(u32),
}

/// What an engine is told beside model and plan.
#[derive(Clone, Debug)]
pub struct Options {
    pub cpu: Cpu,
    /// One reaction per table; where there are fewer, the others refuse ids that no row has.
    pub out_of_range: Vec<OutOfRange>,
    /// Longer bags are refused: one bag is summed by one thread, and others would wait for it.
    pub ids_per_bag_max: usize,
    /// About one of this many ids is remembered for [`Engine::seen`]; 0 remembers none.
    pub sample_every: u32,
}

/// One request: dense features [samples, features], and for each table a bag of ids per sample.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub dense: &'a [f32],
    pub sparse: Sparse<'a>,
}

/// Ids where their sender laid them out: they are never copied.
#[derive(Clone, Copy, Debug)]
pub enum Sparse<'a> {
    /// All tables' ids in one list, table after table.
    Joined(Bags<'a>),
    /// A list for each table, with as many bags as there are samples.
    PerTable { samples: usize, tables: &'a [TableBags<'a>] },
}

/// What became of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Ids that no row has and for which the nearest row was taken.
    pub clamped: u64,
    pub times: StageTimes,
}

/// Time in each stage, summed over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes {
    pub bottom: Duration,
    pub tables: Duration,
    /// The interaction and the top MLP: what one leaves in a core's cache, the other takes.
    pub top: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cpu: detect::cpu(),
            out_of_range: Vec::new(),
            // Integer sums of quantised rows are exact up to here.
            ids_per_bag_max: 1 << 16,
            sample_every: 0,
        }
    }
}

impl Engine {
    /// Lays out the tables and packs the weights. `done` hears of bytes of tables that were laid out.
    pub fn load(
        model: &Model,
        plan: &Plan,
        options: Options,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, Error> {
        match plan.device {
            Device::Cpu => {
                let engine = cpu::CpuEngine::load(model, plan, options, done)?;
                Ok(Self { backend: Backend::Cpu(Box::new(engine)) })
            }
            Device::Cuda(number) => {
                let engine = cuda::CudaEngine::load(model, plan, number, options, done)?;
                Ok(Self { backend: Backend::Cuda(Box::new(engine)) })
            }
        }
    }

    /// As [`Engine::load`]; where the plan's GPU cannot be used, on the CPU. Returns why, if so.
    pub fn load_or_cpu(
        model: &Model,
        plan: &Plan,
        options: Options,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<(Self, Option<hither_kernels::cuda::Error>), Error> {
        match Self::load(model, plan, options.clone(), done) {
            Err(Error::Cuda(problem)) => {
                let plan = Plan { device: Device::Cpu, ..plan.clone() };
                Ok((Self::load(model, &plan, options, done)?, Some(problem)))
            }
            loaded => loaded.map(|engine| (engine, None)),
        }
    }

    /// The part of the engine that lives on the host: on a GPU it checks requests and holds the
    /// tables as the file has them.
    fn cpu(&self) -> &cpu::CpuEngine {
        match &self.backend {
            Backend::Cpu(engine) => engine,
            Backend::Cuda(engine) => engine.host(),
        }
    }

    /// Bytes of hot rows that the GPU was asked to keep in L2; 0 on a CPU.
    pub fn pinned_bytes(&self) -> usize {
        match &self.backend {
            Backend::Cpu(_) => 0,
            Backend::Cuda(engine) => engine.pinned_bytes(),
        }
    }

    /// Scores per sample.
    pub fn outputs(&self) -> usize {
        self.cpu().outputs()
    }

    /// Whether a request can be computed: its sizes, its offsets, and every id. [`Engine::infer`]
    /// checks all of it too; a server that checks on arrival refuses bad requests before they wait.
    pub fn check(&self, request: &Request) -> Result<(), Error> {
        self.cpu().check(request)
    }

    /// Scores all samples of some requests, as one batch; `out` is [samples of all requests, outputs].
    /// A request that cannot be computed has its error in `results` and NaN for scores, and changes
    /// nothing in the others. A score depends on its sample alone, to the last bit: not on the batch,
    /// on the threads, or on the plan.
    ///
    /// The batch runs on this thread with `worker`; idle threads of `threads`, no more than the plan
    /// says, help where there is work for several. Once `worker` has grown to the largest batch, a
    /// call allocates nothing.
    ///
    /// # Panics
    /// If `results` has not one place per request, or `out` not one per score.
    pub fn infer(
        &self,
        requests: &[Request],
        out: &mut [f32],
        results: &mut [Result<(), Error>],
        worker: &mut Worker,
        threads: Option<&Threads>,
    ) -> Done {
        match &self.backend {
            Backend::Cpu(engine) => engine.infer(requests, out, results, worker, threads),
            Backend::Cuda(engine) => engine.infer(requests, out, results),
        }
    }

    /// As [`Engine::infer`], for one request.
    pub fn infer_one(
        &self,
        request: &Request,
        out: &mut [f32],
        worker: &mut Worker,
        threads: Option<&Threads>,
    ) -> Result<Done, Error> {
        let mut result = [Ok(())];
        let requests = std::slice::from_ref(request);
        let expected = request.samples().saturating_mul(self.outputs());
        if out.len() != expected {
            return Err(Error::Batch { what: "scores", found: out.len(), expected });
        }
        let done = self.infer(requests, out, &mut result, worker, threads);
        let [result] = result;
        result.map(|()| done)
    }

    /// The lookups of one request alone, on this thread: [samples, all tables' dims]. Returns how
    /// many ids were clamped.
    pub fn pool(&self, bags: &Bags, out: &mut [f32], worker: &mut Worker) -> Result<u64, Error> {
        self.cpu().pool(bags, out, worker)
    }

    /// Changes how tables lie and are read while requests run: a request that has begun ends with the
    /// old layout, later ones have the new. Rows that stay where they are are shared, not copied.
    /// Arithmetic and device cannot change: load the model anew.
    pub fn replan(&self, plan: &Plan, done: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        match &self.backend {
            Backend::Cpu(engine) => engine.replan(plan, done),
            Backend::Cuda(_) => Err(Error::Replan { what: "how tables lie on a GPU" }),
        }
    }

    /// For models without a plan: tries prefetch schemes on the loaded tables for about `seconds` (a
    /// fifth of one is enough), and goes on with the fastest. Returns the plan that is now in force;
    /// `plan` is the one that was loaded.
    pub fn self_test(&self, plan: &Plan, seconds: f64) -> Result<Plan, Error> {
        let plan = plan.self_tested(&self.tables(), self.cpu().isa(), seconds)?;
        self.replan(&plan, &|_| {})?;
        Ok(plan)
    }

    /// The tables as they lie at this moment.
    pub fn tables(&self) -> std::sync::Arc<Tables> {
        self.cpu().tables()
    }

    /// The ids that were remembered last, some 100,000 at most. Empty without
    /// [`Options::sample_every`].
    pub fn seen(&self) -> Vec<Seen> {
        self.cpu().seen()
    }
}

impl<'a> Request<'a> {
    /// A request of 64-bit ids without weights, all tables in one list.
    pub fn new(samples: usize, dense: &'a [f32], ids: &'a [i64], offsets: &'a [i64]) -> Self {
        let bags = Bags { batch: samples, ids: Ids::I64(ids), offsets, weights: None };
        Self { dense, sparse: Sparse::Joined(bags) }
    }

    pub fn samples(&self) -> usize {
        match self.sparse {
            Sparse::Joined(bags) => bags.batch,
            Sparse::PerTable { samples, .. } => samples,
        }
    }
}

impl<'a> Sparse<'a> {
    /// The bags of one table. There are such bags, as a check has seen.
    fn table(&self, table: usize) -> TableBags<'a> {
        match self {
            Self::Joined(bags) => bags.table(table),
            Self::PerTable { tables, .. } => tables[table],
        }
    }
}

impl std::ops::AddAssign for StageTimes {
    fn add_assign(&mut self, other: Self) {
        self.bottom += other.bottom;
        self.tables += other.tables;
        self.top += other.top;
    }
}

/// `cpu` or `cuda:NUMBER`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.pad("cpu"),
            Self::Cuda(number) => f.pad(&format!("cuda:{number}")),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().map(Self::Cuda);
        match text {
            "cpu" => Some(Self::Cpu),
            _ => text.strip_prefix("cuda:").and_then(number),
        }
        .ok_or_else(|| format!("unknown device `{text}`; expected cpu, or cuda:NUMBER"))
    }
}
