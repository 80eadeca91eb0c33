//! Loads one version of a model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hither_dlrm::Model;
use hither_dlrm::model::Spec;
use hither_dlrm::plan::{PLAN_FILE, Packing, PageChoice, Plan};
use hither_dlrm::run::{Device, Engine, Options, Threads};
use hither_kernels::bag::OutOfRange;
use hither_kernels::gemm::Precision;

use crate::backend::Served;
use crate::config::{Mlp, ModelConfig, Reaction};
use crate::inputs::Signature;
use crate::settle::Settling;

/// The memory that copies of tables may take, over all models.
#[derive(Debug)]
pub struct Budget {
    bytes_max: Option<u64>,
    used: AtomicU64,
    /// Held while tables are copied: one model at a time.
    pub(crate) copying: tokio::sync::Mutex<()>,
}

/// Bytes taken from a budget, given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub fn new(bytes_max: Option<u64>) -> Self {
        Self { bytes_max, used: AtomicU64::new(0), copying: Default::default() }
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes bytes for copies, or says why not: the limit, or the machine's free memory.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Share, String> {
        let show = hither_data::output::show_bytes;
        let used = self.used.fetch_add(bytes, Ordering::Relaxed);
        let share = Share { budget: Arc::clone(self), bytes };
        if let Some(max) = self.bytes_max.filter(|max| used + bytes > *max) {
            return Err(format!(
                "{} of tables do not fit beside {} into --memory-max, {}",
                show(bytes),
                show(used),
                show(max)
            ));
        }
        if let Some(free) = available_bytes().filter(|free| bytes > *free) {
            return Err(format!(
                "{} of tables do not fit into memory, of which {} are free",
                show(bytes),
                show(free)
            ));
        }
        Ok(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Opens a version so that it can serve at once: tables are read from the mapped file, and copied
/// later ([`crate::settle`]).
pub(super) fn load(
    name: &str,
    version: u64,
    dir: &Path,
    config: &ModelConfig,
    threads: &Arc<Threads>,
    budget: &Arc<Budget>,
) -> Result<Served, String> {
    let model = Model::open(dir).map_err(|error| error.to_string())?;
    let spec = &model.spec;
    let (form, ids_per_bag) = config.form(spec)?;
    let has_plan = dir.join(PLAN_FILE).exists();
    let mut plan = match has_plan {
        true => Plan::open(&dir.join(PLAN_FILE), spec).map_err(|error| error.to_string())?,
        false => Plan::standard(spec),
    };
    if let Some(mlp) = config.mlp {
        plan.mlp = if mlp == Mlp::Bf16 { Precision::Bf16 } else { Precision::F32 };
    }
    for table in &mut plan.tables {
        table.pages = config.pages.unwrap_or(table.pages);
        // Without a plan, rows become hot only by what requests ask for.
        if config.hotness.hot_bytes.is_some_and(|bytes| bytes > 0) && table.packing == Packing::Off
        {
            table.packing = Packing::Lookup;
        }
    }
    let mut first = mapped(&plan);
    // Rows in another order are a copy whatever the pages.
    let reordered = bytes_where(spec, &first, |table| table.packing == Packing::Ids);
    let share = budget.take(reordered)?;
    let reaction = match config.out_of_range {
        Reaction::Refuse => OutOfRange::Error,
        Reaction::Clamp => OutOfRange::Clamp,
    };
    let options = Options {
        out_of_range: vec![reaction; spec.tables.len()],
        ids_per_bag_max: config.ids_per_bag_max,
        sample_every: config.hotness.sample_every,
        ..Options::default()
    };
    let (engine, problem) =
        Engine::load_or_cpu(&model, &first, options, &|_| ()).map_err(|error| error.to_string())?;
    if let Some(problem) = problem {
        tracing::warn!("model `{name}`: {problem}; serving on the CPU");
        (plan.device, first.device) = Default::default();
    } else if plan.device != Device::Cpu {
        // The GPU has the rows: the host copies nothing later.
        first = plan.clone();
    }
    let signature = Signature::new(name, spec, form, ids_per_bag, config.max_batch_size);
    let settling = Settling::new(spec.clone(), plan, first, has_plan, share);
    let (config, threads) = (config.clone(), Arc::clone(threads));
    Ok(Served::new(version, config, signature, engine, settling, threads))
}

/// The same plan with tables read where they are, as far as their order is the file's.
fn mapped(plan: &Plan) -> Plan {
    let mut first = plan.clone();
    for table in first.tables.iter_mut().filter(|table| table.packing != Packing::Ids) {
        table.pages = PageChoice::Mapped;
    }
    first
}

/// Bytes of the tables that a plan says something of.
pub(crate) fn bytes_where(
    spec: &Spec,
    plan: &Plan,
    is_meant: impl Fn(&hither_dlrm::plan::TablePlan) -> bool,
) -> u64 {
    let tables = spec.tables.iter().zip(&plan.tables);
    tables.filter(|(_, plan)| is_meant(plan)).map(|(table, _)| table.bytes()).sum()
}

/// Memory that the system could give without swapping; `None` where it does not tell.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes << 10)
}
