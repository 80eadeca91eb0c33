//! `hither doctor`: what this machine has, and which optional parts of Hither work on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

#[cfg(feature = "serve")]
use hither_cuda::{Limits, device};
use hither_kernels::detect;
use serde::Serialize;

use crate::machine::Machine;
use crate::outputs;

/// Show what this machine offers: processor, memory, pages, optional programs
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hither doctor
  hither doctor --json")]
pub struct Args {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Facts {
    hither: &'static str,
    cpu: Cpu,
    memory: Memory,
    cuda: Cuda,
    programs: Vec<Program>,
}

#[derive(Serialize)]
struct Cuda {
    /// Whether the driver's library can be loaded, and the run-time compiler's.
    driver: bool,
    compiler: bool,
    gpus: Vec<Gpu>,
    /// Why no GPU can be used; `None` where one can.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Gpu {
    name: String,
    architecture: String,
    memory_bytes: usize,
    l2_bytes: usize,
    /// The part of L2 that can be set aside for hot rows.
    pinnable_bytes: usize,
}

#[derive(Serialize)]
struct Cpu {
    model: String,
    architecture: &'static str,
    /// Cores that this process may use.
    cores: usize,
    l2_bytes: Option<usize>,
    l3_bytes: Option<usize>,
    features: BTreeMap<&'static str, bool>,
    /// Instruction set of the kernels: the best that the processor has, unless HITHER_ISA lowers it.
    kernels: &'static str,
    /// Instructions used for bf16 matrix products.
    bf16: &'static str,
}

#[derive(Serialize)]
struct Memory {
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    page_bytes: usize,
    /// always, madvise or never.
    transparent_huge_pages: Option<String>,
    huge_page_bytes: Option<u64>,
    huge_pages_total: Option<u64>,
    huge_pages_free: Option<u64>,
}

#[derive(Serialize)]
struct Program {
    name: &'static str,
    path: Option<PathBuf>,
    needed_for: &'static str,
}

const PROGRAMS: [(&str, &str); 8] = [
    ("sbatch", "running jobs on a Slurm cluster"),
    ("squeue", "watching jobs on a Slurm cluster"),
    ("scontrol", "reading a Slurm cluster's machines"),
    ("scancel", "preempting jobs on a Slurm cluster"),
    ("sinfo", "reading a Slurm cluster's state"),
    ("nvidia-smi", "seeing GPUs and their driver"),
    ("chromium", "testing the report pages in a browser"),
    ("node", "testing the report pages in a browser"),
];

/// Feature names as in /proc/cpuinfo. Elsewhere the standard library detects them.
const FEATURES: [&str; 10] = [
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
];

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = Machine::read();
    let facts = Facts {
        hither: env!("CARGO_PKG_VERSION"),
        cpu: cpu(&machine),
        memory: memory(machine),
        cuda: cuda(),
        programs: programs(),
    };
    if args.json {
        outputs::print_json(&facts)?;
    } else {
        outputs::print(&shown(&facts))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn cpu(machine: &Machine) -> Cpu {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    let flags: Vec<&str> = flags.map_or("", |(_, flags)| flags).split_whitespace().collect();
    let has = |name: &'static str| (name, flags.contains(&name) || detected(name));
    Cpu {
        model: machine.cpu.clone(),
        architecture: std::env::consts::ARCH,
        cores: machine.cores,
        l2_bytes: machine.l2_bytes,
        l3_bytes: machine.l3_bytes,
        features: FEATURES.into_iter().map(has).collect(),
        kernels: detect::cpu().isa.name(),
        bf16: detect::cpu().bf16.name(),
    }
}

#[cfg(target_arch = "x86_64")]
fn detected(name: &str) -> bool {
    match name {
        "avx2" => std::is_x86_feature_detected!("avx2"),
        "fma" => std::is_x86_feature_detected!("fma"),
        "f16c" => std::is_x86_feature_detected!("f16c"),
        "avx512f" => std::is_x86_feature_detected!("avx512f"),
        "avx512bw" => std::is_x86_feature_detected!("avx512bw"),
        "avx512_vnni" => std::is_x86_feature_detected!("avx512vnni"),
        "avx512_bf16" => std::is_x86_feature_detected!("avx512bf16"),
        _ => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detected(_: &str) -> bool {
    false
}

fn memory(machine: Machine) -> Memory {
    Memory {
        total_bytes: machine.memory_bytes,
        available_bytes: machine.available_bytes,
        page_bytes: rustix::param::page_size(),
        transparent_huge_pages: machine.transparent_huge_pages,
        huge_page_bytes: machine.huge_page_bytes,
        huge_pages_total: machine.huge_pages_total,
        huge_pages_free: machine.huge_pages_free,
    }
}

#[cfg(not(feature = "serve"))]
fn cuda() -> Cuda {
    let problem = Some("this build does not serve models".into());
    Cuda { driver: false, compiler: false, gpus: Vec::new(), problem }
}

#[cfg(feature = "serve")]
fn cuda() -> Cuda {
    let listed = device::list();
    let gpu = |limits: &Limits| Gpu {
        name: limits.name.clone(),
        architecture: format!("sm_{}{}", limits.version.0, limits.version.1),
        memory_bytes: limits.memory_bytes,
        l2_bytes: limits.l2_bytes,
        pinnable_bytes: limits.persisting_bytes_max,
    };
    let (driver, compiler) = (device::has_driver(), device::has_compiler());
    let problem = match &listed {
        Err(error) => Some(error.to_string()),
        Ok(gpus) if gpus.is_empty() => Some("the driver shows no GPU".into()),
        Ok(_) if !compiler => Some(hither_cuda::Error::NoCompiler.to_string()),
        Ok(_) => None,
    };
    let gpus = listed.unwrap_or_default().iter().map(gpu).collect();
    Cuda { driver, compiler, gpus, problem }
}

fn programs() -> Vec<Program> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&search).collect();
    let find = |name: &str| dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
    let program = |(name, needed_for)| Program { name, path: find(name), needed_for };
    PROGRAMS.into_iter().map(program).collect()
}

fn shown(facts: &Facts) -> String {
    let Facts { hither, cpu, memory, cuda, programs } = facts;
    let unknown = || "unknown".to_owned();
    let gib = |bytes: Option<u64>| {
        bytes.map_or_else(unknown, |b| format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64))
    };
    let mib = |bytes: Option<usize>| {
        bytes.map_or_else(unknown, |b| format!("{:.1} MiB", b as f64 / (1u64 << 20) as f64))
    };
    let count = |n: Option<u64>| n.map_or_else(unknown, |n| n.to_string());
    let mut text = format!(
        "hither      {hither}\nprocessor   {} ({}), {} cores\n",
        cpu.model, cpu.architecture, cpu.cores
    );
    for (name, has) in &cpu.features {
        text.push_str(&format!("            {name:12} {}\n", if *has { "yes" } else { "no" }));
    }
    text.push_str(&format!(
        "caches      L2 {} per core, L3 {}\n\
         memory      {}, {} available\n\
         pages       {} KiB; transparent huge pages: {}; huge pages of {} KiB: {} of {} free\n",
        mib(cpu.l2_bytes),
        mib(cpu.l3_bytes),
        gib(memory.total_bytes),
        gib(memory.available_bytes),
        memory.page_bytes / 1024,
        memory.transparent_huge_pages.clone().unwrap_or_else(unknown),
        count(memory.huge_page_bytes.map(|b| b / 1024)),
        count(memory.huge_pages_free),
        count(memory.huge_pages_total),
    ));
    for Gpu { name, architecture, memory_bytes, l2_bytes, pinnable_bytes } in &cuda.gpus {
        text.push_str(&format!(
            "GPU         {name} ({architecture}), {}, L2 {}, {} of it for hot rows\n",
            gib(Some(*memory_bytes as u64)),
            mib(Some(*l2_bytes)),
            mib(Some(*pinnable_bytes)),
        ));
    }
    if let Some(problem) = &cuda.problem {
        text.push_str(&format!("GPU         none: {problem}\n"));
    }
    text.push_str("programs\n");
    for Program { name, path, needed_for } in programs {
        let found = match path {
            Some(path) => path.display().to_string(),
            None => format!("not found: needed for {needed_for}"),
        };
        text.push_str(&format!("            {name:12} {found}\n"));
    }
    text
}
