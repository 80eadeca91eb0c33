//! `hither plan`: chooses how a model's tables are laid out and read, by measuring with a trace of ids.

mod describe;
pub mod gpu;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::builder::RangedU64ValueParser;
use hither_data::IdTrace;
use hither_dlrm::Model;
use hither_dlrm::hotness::Histogram;
use hither_dlrm::model::Spec;
use hither_dlrm::plan::make::{Overrides, make};
use hither_dlrm::plan::measure::{Bounds, Group, hot_rows, measure};
use hither_dlrm::plan::{PLAN_FILE, Packing, PageChoice, Plan};
use hither_dlrm::run::{Engine, Options};
use hither_dlrm::workload::{Reading, Workload};
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::detect;
use hither_kernels::gemm::Precision;

use self::gpu::Target;
use crate::inputs::number;
use crate::machine::Machine;
use crate::model::note_ignored;
use crate::outputs::{Force, Kind, OutputDir};
use crate::{Common, outputs};

/// Choose pages, prefetch, packed rows and threads for a model from a trace of ids
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither plan model --ids examples/requests.csv
  hither plan model --ids ids.txt --batch 2048 --pooling 150 -o plan
  hither plan model --ids requests.csv --pages mapped --packing off --threads 4
  hither plan model --ids requests.csv --device cuda:a100 -o gpu-plan

The trace is a file of requests (CSV, JSON lines, or tensors `indices` and `offsets` as safetensors, \
.pt or .npz), or a plain list of ids, one per line or as .npy. A plain list is read circularly over \
tables and batches. docs/formats/requests.md describes all of them. A file whose bags can be cut into \
batches in several ways is refused unless it stores its batch, or --batch gives it.

Huge pages, prefetch, and packing of the hottest rows are each measured alone and together on the \
model's own tables, on one thread and on all. The plan takes the fastest combination; of those within \
3 % of it, the one with the fewest levers. Other work on the machine blurs the figures: plan on \
an idle machine, or with more --seconds.

--device cuda:NAME plans for an a100, a10, h100 or b200 that need not be here: registers and occupancy \
of every variant from the compiled code, L1 and L2 hit rates of these ids by a cache model, the rows to \
pin, and the variant that bandwidth and latency favour. --device cuda measures the variants on this \
machine's GPU and keeps the fastest.

Writes plan.toml and a file of hot rows, which serving reads, and plan.json and plan.html for people. \
Flags fix a choice for all tables; for one table, edit plan.toml.")]
pub struct Args {
    /// Model directory
    model: PathBuf,
    /// Trace of ids, or any file of requests
    #[arg(long, value_name = "FILE")]
    ids: PathBuf,
    /// Directory to write to [default: the model's]
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
    /// Samples per batch [default: that of the trace; 64 if it leaves this open]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    batch: Option<usize>,
    /// Ids per bag, if the trace has no bags
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    pooling: usize,
    /// Take ids modulo the rows of their table instead of refusing them
    #[arg(long)]
    wrap: bool,
    /// Measure for about S seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = |t: &str| number(t, 0.01, 3600.0))]
    #[arg(allow_negative_numbers = true)]
    seconds: f64,
    /// Memory for copies of tables while measuring, in GB [default: half of what is available]
    #[arg(long, value_name = "GB", value_parser = |t: &str| number(t, 0.0, 1e6))]
    #[arg(allow_negative_numbers = true)]
    memory: Option<f64>,
    /// Fix the pages: mapped, small or huge
    #[arg(long, value_name = "KIND", value_parser = pages)]
    pages: Option<PageChoice>,
    /// Fix the prefetch: off or HINT:BYTES, such as l2:32K
    #[arg(long, value_name = "HOW")]
    prefetch: Option<Prefetch>,
    /// Fix the packing: off, lookup or ids
    #[arg(long, value_name = "HOW", value_parser = packing)]
    packing: Option<Packing>,
    /// Fix the number of hot rows of each table
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    hot_rows: Option<usize>,
    /// Arithmetic of the MLPs: fp32 or bf16
    #[arg(long, value_name = "TYPE", value_parser = precision)]
    mlp: Option<Precision>,
    /// Where the model runs: cpu, cuda or cuda:NUMBER for a GPU of this machine, cuda:NAME for any
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Target,
    /// Show every table instead of one line for tables that are alike
    #[arg(long)]
    all: bool,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// Upper bound of the ids per batch that one table is asked for.
const BATCH_IDS_MAX: usize = 1 << 22;
/// The share of the available memory that tables may take.
const ROOM_SHARE: f64 = 0.9;

fn pages(name: &str) -> Result<PageChoice, String> {
    match name {
        "mapped" => Ok(PageChoice::Mapped),
        "small" => Ok(PageChoice::Small),
        "huge" => Ok(PageChoice::Huge),
        _ => Err(format!("unknown pages `{name}`; expected mapped, small or huge")),
    }
}

fn packing(name: &str) -> Result<Packing, String> {
    match name {
        "off" => Ok(Packing::Off),
        "lookup" => Ok(Packing::Lookup),
        _ => Err(format!("unknown packing `{name}`; expected off or lookup")),
    }
}

fn precision(name: &str) -> Result<Precision, String> {
    match name {
        "fp32" => Ok(Precision::F32),
        "bf16" => Ok(Precision::Bf16),
        _ => Err(format!("unknown type `{name}`; expected fp32 or bf16")),
    }
}

/// A plan and everything that it rests on.
struct Planned<'a> {
    args: &'a Args,
    model: &'a Model,
    machine: &'a Machine,
    bounds: &'a Bounds,
    batch: usize,
    pooling: f64,
    hot: &'a [Arc<Histogram>],
    /// As many per table as half of the third-level cache holds.
    hot_rows: &'a [usize],
    groups: &'a [Group],
    plan: &'a Plan,
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<ExitCode> {
    let directory = args.output.clone().unwrap_or_else(|| args.model.clone());
    // Told before the work, not after it. A plan may have been edited by hand.
    let mut output = OutputDir::open_beside(&directory, Kind::Model)?;
    args.force.check_file(&directory.join(PLAN_FILE))?;
    let model = Model::open(&args.model)?;
    let trace = IdTrace::read(&args.ids, &model.spec.columns())?;
    note_ignored(&args.ids, &trace, common);
    let reading = Reading { batch: args.batch, pooling: args.pooling, wrap: args.wrap };
    let about = || format!("{}", args.ids.display());
    let workload = Workload::new(&trace, &model.spec, reading).with_context(about)?;
    let batch = workload.batch();
    if workload.lookups_per_batch() > BATCH_IDS_MAX as f64 {
        bail!(
            "{batch} samples per batch ask a table for {:.0} ids; up to {BATCH_IDS_MAX} are possible: \
             lower --batch or --pooling",
            workload.lookups_per_batch()
        );
    }
    if args.device != Target::Cpu {
        output.create()?;
        gpu::run(args, args.device, &model, &workload, &directory, common)?;
        return Ok(ExitCode::SUCCESS);
    }
    let hot = common.pool()?.install(|| workload.histograms()).with_context(about)?;
    output.create()?;

    let machine = Machine::read();
    let bounds = bounds(args, common, &machine);
    let packed: Vec<usize> = match args.hot_rows {
        Some(rows) => vec![rows; hot.len()],
        None => hot_rows(&model, &hot, bounds.l3_bytes),
    };
    common.say(&format!("measuring for about {} s", args.seconds));
    let bar = common.bar(0, "measuring groups of tables");
    let groups = measure(&model, &workload, &hot, &packed, &bounds, &|group, groups| {
        bar.set_length(groups as u64);
        bar.set_position(group as u64);
    });
    bar.finish_and_clear();
    let groups = groups?;
    let overrides = Overrides {
        pages: args.pages,
        prefetch: args.prefetch,
        packing: args.packing,
        hot_rows: args.hot_rows,
        threads: common.threads.map(usize::from),
        mlp: args.mlp,
    };
    let room = machine.available_bytes.map_or(u64::MAX, |bytes| (bytes as f64 * ROOM_SHARE) as u64);
    let mut plan = make(&model.spec, &hot, &packed, &groups, room, &overrides);
    plan.machine = Some(machine.processor());
    let planned = Planned {
        args,
        model: &model,
        machine: &machine,
        bounds: &bounds,
        batch,
        pooling: workload.lookups_per_batch() / batch as f64,
        hot: &hot,
        hot_rows: &packed,
        groups: &groups,
        plan: &plan,
    };
    let report = planned.report();
    let path = plan.save(&directory)?;
    outputs::write_file(&directory.join("plan.json"), &serde_json::to_vec_pretty(&report)?)?;
    outputs::write_file(&directory.join("plan.html"), report.html().as_bytes())?;
    common.say(&format!("wrote {} and plan.html beside it", path.display()));
    match args.json {
        true => outputs::print_json(&report)?,
        false => outputs::print(&report.text(args.all))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn bounds(args: &Args, common: &Common, machine: &Machine) -> Bounds {
    let half = machine.available_bytes.unwrap_or(0) / 2;
    let (l2_bytes, l3_bytes) = machine.measured_caches();
    Bounds {
        l2_bytes,
        l3_bytes,
        copy_bytes: args.memory.map_or(half, |gb| (gb * 1e9) as u64),
        seconds: args.seconds,
        threads: common.threads.map_or(machine.cores, usize::from),
        isa: detect::cpu().isa,
    }
}

/// Loads a model as its plan says, or on the CPU where the plan's GPU cannot be used, and says so.
pub fn load(
    model: &Model,
    plan: &Plan,
    options: Options,
    done: &(dyn Fn(u64) + Sync),
    common: &Common,
) -> anyhow::Result<Engine> {
    let options = Options { gpu: Some(hither_cuda::load), ..options };
    let (engine, problem) = Engine::load_or_cpu(model, plan, options, done)?;
    if let Some(problem) = problem {
        common.say(&format!("warning: {problem}; running on the CPU"));
    }
    Ok(engine)
}

/// Opens a plan, and says where it was measured on another processor.
pub fn open(path: &Path, spec: &Spec, common: &Common) -> anyhow::Result<Plan> {
    let plan = Plan::open(path, spec)?;
    if let Some(warning) = plan.machine_warning(&Machine::read().processor()) {
        common.say(&format!("warning: {warning}"));
    }
    Ok(plan)
}
