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
mod host;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hither_kernels::bag::{Bags, Ids, OutOfRange, TableBags};
use hither_kernels::detect::{self, Cpu};
pub use hither_kernels::threads::Pinning;

pub use self::cpu::Worker;
pub(crate) use self::cpu::part_samples;
pub use self::host::Host;
use crate::Error;
use crate::model::Model;
use crate::plan::Plan;
use crate::tables::Tables;

/// The threads of a process, each with a [`Worker`] of its own, shared by all engines.
pub type Threads = hither_kernels::threads::Threads<Worker>;

/// A model, loaded as its plan says. Inference changes nothing in it: any number of threads may call
/// it at once, and [`Engine::replan`] may run beside them.
pub struct Engine {
    host: Arc<Host>,
    processor: Processor,
}

/// What computes.
enum Processor {
    Cpu(Box<cpu::CpuEngine>),
    Gpu(Box<dyn Gpu>),
}

/// A model on a GPU. The crate `hither-cuda` has one.
pub trait Gpu: Send + Sync {
    /// As [`Engine::infer`].
    fn infer(
        &self,
        requests: &[Request],
        out: &mut [f32],
        results: &mut [Result<(), Error>],
    ) -> Done;

    /// Bytes of hot rows that the GPU was asked to keep in L2.
    fn pinned_bytes(&self) -> usize;
}

/// Puts a model on the GPU of a number. The host has its tables mapped, and checks requests.
pub type LoadGpu =
    fn(&Model, &Plan, u32, Arc<Host>, &(dyn Fn(u64) + Sync)) -> Result<Box<dyn Gpu>, Error>;

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
    /// How plans for a GPU are carried out; without it they are refused.
    pub gpu: Option<LoadGpu>,
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
        Self { cpu: detect::cpu(), out_of_range: Vec::new(), gpu: None }
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
                let engine = Box::new(cpu::CpuEngine::new(model, plan, &options));
                let host = Arc::new(Host::load(model, plan, options, done)?);
                Ok(Self { host, processor: Processor::Cpu(engine) })
            }
            Device::Cuda(number) => {
                let problem = "this program has no code for GPUs".to_string();
                let load = options.gpu.ok_or(Error::Gpu { problem, is_lost: false })?;
                let host = Arc::new(Host::load(model, &plan.mapped(), options, &|_| {})?);
                let gpu = load(model, plan, number, Arc::clone(&host), done)?;
                Ok(Self { host, processor: Processor::Gpu(gpu) })
            }
        }
    }

    /// As [`Engine::load`]; where the plan's GPU cannot be used, on the CPU. Returns why, if so.
    pub fn load_or_cpu(
        model: &Model,
        plan: &Plan,
        options: Options,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<(Self, Option<String>), Error> {
        match Self::load(model, plan, options.clone(), done) {
            Err(Error::Gpu { problem, .. }) => {
                let plan = Plan { device: Device::Cpu, ..plan.clone() };
                Ok((Self::load(model, &plan, options, done)?, Some(problem)))
            }
            loaded => loaded.map(|engine| (engine, None)),
        }
    }

    /// Bytes of hot rows that the GPU was asked to keep in L2; 0 on a CPU.
    pub fn pinned_bytes(&self) -> usize {
        match &self.processor {
            Processor::Cpu(_) => 0,
            Processor::Gpu(gpu) => gpu.pinned_bytes(),
        }
    }

    /// Scores per sample.
    pub fn outputs(&self) -> usize {
        self.host.outputs()
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
        match &self.processor {
            Processor::Cpu(cpu) => cpu.infer(&self.host, requests, out, results, worker, threads),
            Processor::Gpu(gpu) => gpu.infer(requests, out, results),
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

    /// Changes how tables lie and are read while requests run: a request that has begun ends with the
    /// old layout, later ones have the new. Rows that stay where they are are shared, not copied.
    /// Arithmetic and device cannot change: load the model anew.
    pub fn replan(&self, plan: &Plan, done: &(dyn Fn(u64) + Sync)) -> Result<(), Error> {
        match &self.processor {
            Processor::Gpu(_) => Err(Error::Replan { what: "how tables lie on a GPU" }),
            Processor::Cpu(cpu) if plan.mlp != cpu.precision() => {
                Err(Error::Replan { what: "the arithmetic of the MLPs" })
            }
            Processor::Cpu(_) if plan.device != Device::Cpu => {
                Err(Error::Replan { what: "the device" })
            }
            Processor::Cpu(_) => self.host.replan(plan, done),
        }
    }

    /// For models without a plan: tries prefetch schemes on the loaded tables for about `seconds` (a
    /// fifth of one is enough), and goes on with the fastest. Returns the plan that is now in force;
    /// `plan` is the one that was loaded.
    pub fn self_test(&self, plan: &Plan, seconds: f64) -> Result<Plan, Error> {
        let plan = plan.self_tested(&self.tables(), self.host.isa(), seconds)?;
        self.replan(&plan, &|_| {})?;
        Ok(plan)
    }

    /// The tables as they lie at this moment.
    pub fn tables(&self) -> Arc<Tables> {
        self.host.tables()
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
    pub fn table(&self, table: usize) -> TableBags<'a> {
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
