//! A plan for a GPU: forecast for one by its name, measured on one that is here.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use comfy_table::{CellAlignment, Table, presets};
use hither_cuda::device::Device;
use hither_cuda::forecast::{Forecast, GpuForecast, forecast};
use hither_cuda::gpu::Gpu;
use hither_cuda::occupancy::Arch;
use hither_dlrm::Model;
use hither_dlrm::lookups::Lookups;
use hither_dlrm::plan::Plan;
use hither_dlrm::run::Device as DeviceNumber;
use hither_dlrm::workload::Workload;
use serde::Serialize;

use super::Args;
use crate::{Common, outputs};

/// Where a plan's model is to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    Cpu,
    /// A GPU of this machine, by its number.
    Here(u32),
    /// A GPU that need not be here.
    Named(Gpu),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Here(0)),
            Some(("cuda", number)) if number.parse::<u32>().is_ok() => {
                number.parse().map(Self::Here).map_err(|_| format!("no GPU number: `{number}`"))
            }
            Some(("cuda", name)) => name.parse().map(Self::Named),
            _ => Err(format!(
                "unknown device `{text}`; expected cpu, cuda, cuda:NUMBER or cuda:NAME"
            )),
        }
    }
}

/// Batches of a plain list of ids.
const BATCHES: usize = 4;
/// Each variant is timed so often, in turn; the fastest counts.
const ROUNDS: usize = 5;

/// The variants of the embedding stage, measured on a GPU of this machine.
#[derive(Serialize)]
pub struct GpuReport {
    gpu: String,
    model: String,
    batch: usize,
    lookups: usize,
    variants: Vec<hither_cuda::Measured>,
    chosen: usize,
}

/// Plans for `target`, which is no CPU; writes the plan into `directory` and prints what it rests on.
pub fn run(
    args: &Args,
    target: Target,
    model: &Model,
    workload: &Workload<'_>,
    directory: &Path,
    common: &Common,
) -> anyhow::Result<()> {
    let flags = [
        ("--pages", args.pages.is_some()),
        ("--prefetch", args.prefetch.is_some()),
        ("--packing", args.packing.is_some()),
        ("--hot-rows", args.hot_rows.is_some()),
        ("--memory", args.memory.is_some()),
        ("--mlp", args.mlp.is_some()),
    ];
    if let Some((flag, _)) = flags.into_iter().find(|(_, given)| *given) {
        bail!("{flag} is a lever of the CPU; leave it out, or plan for --device cpu");
    }
    let about = || format!("{}", args.ids.display());
    workload.check_ids().with_context(about)?;
    let lookups = Lookups::from_workload(workload, BATCHES);
    match target {
        Target::Cpu => Ok(()),
        Target::Named(gpu) => {
            let judged = forecast(&gpu, &model.spec, &lookups);
            save(&judged.plan(&model.spec, &lookups), &judged, directory, common)?;
            match args.json {
                true => outputs::print_json(&judged),
                false => outputs::print(&shown(&judged, &lookups)),
            }
        }
        Target::Here(number) => {
            let (plan, report) = measure_here(number, model, &lookups, common)?;
            save(&plan, &report, directory, common)?;
            report.print(args.json)
        }
    }
}

fn save(
    plan: &Plan,
    report: &impl Serialize,
    directory: &Path,
    common: &Common,
) -> anyhow::Result<()> {
    let path = plan.save(directory)?;
    outputs::write_file(&directory.join("plan.json"), &serde_json::to_vec_pretty(report)?)?;
    common.say(&format!("wrote {}", path.display()));
    Ok(())
}

/// Measures every variant on a GPU of this machine. Returns the plan with the fastest, and the figures.
pub fn measure_here(
    number: u32,
    model: &Model,
    lookups: &Lookups,
    common: &Common,
) -> anyhow::Result<(Plan, GpuReport)> {
    let limits = Device::open(number)?.limits().clone();
    // The data sheet of the nearest kin, with what this one says of itself.
    let arch = Arch::for_version(limits.version);
    let kin = Gpu::ALL.into_iter().find(|gpu| gpu.arch == arch);
    let gpu = Gpu {
        sms: limits.sms,
        l2_bytes: limits.l2_bytes,
        persisting_bytes: limits.persisting_bytes_max.min(limits.window_bytes_max),
        memory_bytes: limits.memory_bytes as u64,
        ..kin.unwrap_or(Gpu::ALL[0])
    };
    let mut plan = forecast(&gpu, &model.spec, lookups).plan(&model.spec, lookups);
    plan.device = DeviceNumber::Cuda(number);
    let bar = common.bar(0, "measuring variants");
    let cold_on_host = plan.cuda.as_ref().is_some_and(|cuda| cuda.cold_on_host);
    let candidates = hither_cuda::candidates(&limits, cold_on_host);
    let told = |at, all| {
        bar.set_length(all as u64);
        bar.set_position(at as u64);
    };
    let variants = hither_cuda::measure(model, &plan, lookups, number, &candidates, ROUNDS, &told);
    bar.finish_and_clear();
    let variants = variants?;
    let times = variants.iter().map(|one| one.ns_per_lookup).enumerate();
    let chosen = times.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(index, _)| index);
    plan.cuda = variants.get(chosen).map(|best| best.plan.clone());
    let (batch, lookups) = (lookups.batch, lookups.ids());
    let model = model.spec.name.clone();
    Ok((plan, GpuReport { gpu: limits.name, model, batch, lookups, variants, chosen }))
}

impl GpuReport {
    pub fn print(&self, as_json: bool) -> anyhow::Result<()> {
        match as_json {
            true => outputs::print_json(self),
            false => outputs::print(&self.text()),
        }
    }

    fn text(&self) -> String {
        let mut table = new_table(&["variant", "distance", "min blocks", "ns/lookup", "of base"]);
        let base = self.variants.first().map_or(0.0, |base| base.ns_per_lookup);
        for (index, one) in self.variants.iter().enumerate() {
            table.add_row([
                format!("{}{}", one.variant, if index == self.chosen { "*" } else { "" }),
                one.distance.to_string(),
                one.min_blocks.to_string(),
                format!("{:.3}", one.ns_per_lookup),
                format!("{:.2} ×", base / one.ns_per_lookup),
            ]);
        }
        align(&mut table);
        format!("{} on {}, {} lookups\n{table}\n", self.model, self.gpu, self.lookups)
    }
}

fn shown(judged: &GpuForecast, lookups: &Lookups) -> String {
    let columns = [
        "variant",
        "min blocks",
        "registers",
        "spills",
        "shared",
        "warps/SM",
        "limited by",
        "L1 hits",
        "L2 hits",
        "DRAM B/lookup",
        "KiB in flight",
        "bound",
        "ns/lookup",
    ];
    let mut table = new_table(&columns);
    for (index, one) in judged.variants.iter().enumerate() {
        table.add_row(row(one, index == judged.chosen));
    }
    align(&mut table);
    let best = judged.variants.get(judged.chosen);
    let wanted = best.map_or(0.0, |best| best.wanted_bytes / 1024.0);
    format!(
        "{} ({}), {} lookups in batches of {}: a forecast from compiled code, a cache model and bounds; \
         nothing was measured\n{table}\n\
         pinned      {} hot rows, {:.1} MB of L2, take {:.1} % of lookups{}\n\
         in flight   {wanted:.0} KiB per SM hide DRAM's latency by Little's law\n\
         chosen      {}: {}\n",
        judged.gpu,
        judged.arch,
        lookups.ids(),
        lookups.batch,
        judged.pinned_rows,
        judged.pinned_bytes as f64 / 1e6,
        judged.pinned_share * 100.0,
        if judged.cold_on_host {
            "; tables exceed the GPU's memory: cold rows stay in host memory"
        } else {
            ""
        },
        best.map_or(String::new(), |best| format!(
            "{}, min blocks {}",
            best.variant, best.min_blocks
        )),
        judged.reason,
    )
}

fn row(one: &Forecast, is_chosen: bool) -> Vec<String> {
    vec![
        format!("{}{}", one.variant, if is_chosen { "*" } else { "" }),
        one.min_blocks.to_string(),
        one.registers.to_string(),
        one.spill_bytes.to_string(),
        one.shared_bytes.to_string(),
        one.warps.to_string(),
        one.limit.clone(),
        format!("{:.1} %", one.traffic.l1_hits * 100.0),
        format!("{:.1} %", one.traffic.l2_hits * 100.0),
        format!("{:.0}", one.traffic.dram_bytes),
        format!("{:.0}", one.in_flight_bytes / 1024.0),
        one.bound().into(),
        format!("{:.3}", one.ns_per_lookup()),
    ]
}

fn new_table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(columns);
    table
}

fn align(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_numbers_or_names() {
        assert_eq!("cpu".parse(), Ok(Target::Cpu));
        assert_eq!("cuda".parse(), Ok(Target::Here(0)));
        assert_eq!("cuda:2".parse(), Ok(Target::Here(2)));
        assert!(matches!("cuda:h100".parse(), Ok(Target::Named(gpu)) if gpu.name == "h100"));
        for wrong in ["gpu", "cuda:", "cuda:k80", "cpu:1", "cuda:99999999999"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
