//! `hither bench bags`: lookups alone, against a reference that only reads the same rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use hither_dlrm::hotness::Histogram;
use hither_dlrm::lookups::Lookups;
use hither_dlrm::plan::effects::{Effect, Meter};
use hither_dlrm::plan::layouts::{HotRows, Layouts};
use hither_dlrm::plan::levers::{self, Setting};
use hither_dlrm::plan::measure::hot_rows;
use hither_dlrm::tables::Tables;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::detect;
use serde_json::{Map, Value, json};

use super::rounds::{self, Pass, PassWork, RoundArgs, Variant};
use super::{Needs, Subject, write_tensors};
use crate::Common;
use crate::machine::Machine;
use crate::plan::gpu::{self, Target};

/// Measure embedding bags with each lever on or off
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Levers: pages (tables copied to huge pages), prefetch (the fastest scheme, or --prefetch), lookup \
(copies of hot rows together, found by a map at each lookup). `auto` measures all sets and takes the \
fastest; of sets within 3 % of it, the one with the fewest levers.

`touch` is a reference: it resolves the same ids and reads the same rows in the same places, but pools \
and writes nothing. `of touch` is its shortest time over the variant's; if a variant with the same rows was \
faster, that variant is the reference. Every timed pass follows an untimed pass of the same variant, \
so each finds the caches as it left them.

Examples:
  hither bench bags --preset micro24 --hotness high --batch 2048 --batches 1
  hither bench bags --rows 50000 --levers each --threads 1
  hither bench bags model --ids requests.safetensors --json
  hither bench bags --preset micro24 --hotness high --batch 2048 --device cuda")]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Sets of levers, joined by `+` and separated by commas; `auto` is the fastest, `each` is all
    #[arg(long, value_name = "SETS", default_value = "auto", value_parser = wanted)]
    levers: Levers,
    /// File of ids that choose the hot rows [default: the ids that are measured]
    #[arg(long, value_name = "FILE")]
    plan_ids: Option<PathBuf>,
    /// Prefetch scheme: off or HINT:BYTES, such as l2:32K [default: the fastest]
    #[arg(long, value_name = "SCHEME")]
    prefetch: Option<Prefetch>,
    /// Memory for all copies of hot rows, in MiB [default: half of the last-level cache that a core keeps]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    hot_mib: Option<u32>,
    /// Where to measure: cpu, or cuda or cuda:NUMBER for every variant on a GPU of this machine
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Target,
    #[command(flatten)]
    rounds: RoundArgs,
}

/// For each variant the sets of levers of which the best is taken.
#[derive(Clone, Debug)]
struct Levers(Vec<Vec<Setting>>);

fn wanted(text: &str) -> Result<Levers, String> {
    let one = |name| match name {
        "auto" => Ok(Setting::all()),
        set => set.parse().map(|set| vec![set]),
    };
    let sets = match text {
        "each" => Setting::all().into_iter().map(|set| vec![set]).collect(),
        list => list.split(',').map(one).collect::<Result<_, _>>()?,
    };
    Ok(Levers(sets))
}

/// The share of the measuring time that goes into choosing schemes and sets.
const TRIAL_SHARE: f64 = 0.4;

/// Every variant of the kernels for GPUs, by the device's own clock.
fn run_gpu(args: &Args, number: u32, common: &Common) -> anyhow::Result<()> {
    // Told before a model is made.
    hither_cuda::device::Device::open(number)?;
    let needs = Needs { copies: 1.0, half_on_disk: false, seconds: args.rounds.seconds };
    let opened = args.subject.open(&needs, common)?;
    let asked = args.subject.requests(&opened, common)?;
    let (_, report) = gpu::measure_here(number, &opened.model, &asked.lookups, common)?;
    report.print(args.rounds.json)
}

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    args.rounds.check()?;
    match args.device {
        Target::Cpu => {}
        Target::Here(number) => return run_gpu(args, number, common),
        Target::Named(gpu) => bail!(
            "--device cuda:{gpu}: only a GPU of this machine can be measured; `hither plan MODEL --ids FILE \
             --device cuda:{gpu}` makes a forecast"
        ),
    }
    let mut tried: Vec<Setting> = Vec::new();
    args.levers.0.iter().flatten().for_each(|set| {
        if !tried.contains(set) {
            tried.push(*set);
        }
    });
    let copies = Layouts::copies(&tried);
    let needs = Needs { copies: copies as f64, half_on_disk: false, seconds: args.rounds.seconds };
    let opened = args.subject.open(&needs, common)?;
    let model = &opened.model;
    let asked = args.subject.requests(&opened, common)?;
    let lookups = &asked.lookups;
    let planned = match &args.plan_ids {
        Some(path) => &args.subject.lookups_of(&opened, path, common)?,
        None => lookups,
    };
    let all: Vec<usize> = (0..model.spec.tables.len()).collect();
    let histogram = |t: &usize| Arc::new(planned.histogram(*t));
    let histograms: Vec<Arc<Histogram>> = all.iter().map(histogram).collect();
    let cache_bytes = match args.hot_mib {
        Some(mib) => (mib as usize) << 21,
        None => Machine::read().measured_caches().1,
    };
    let packed = hot_rows(model, &histograms, cache_bytes);
    let hot = HotRows { histograms: &histograms, packed: &packed };
    let layouts = super::laying_out(common, model, copies, |done| {
        Ok(Layouts::new(model, &all, &hot, &tried, done)?)
    })?;
    let meter = Meter::new(common.thread_count(), detect::cpu().isa)?;
    let sizes: Vec<usize> = model.spec.tables.iter().map(|t| t.row_bytes()).collect();
    let bench = Bags {
        layouts: &layouts,
        meter: &meter,
        lookups,
        work: PassWork {
            samples: (lookups.batch * lookups.len()) as u64,
            rows: lookups.ids() as u64,
            bytes: (sizes.iter().enumerate())
                .map(|(t, bytes)| (lookups.of_table(t).count() * bytes) as u64)
                .sum(),
            flops: 0,
        },
    };
    let seconds = args.rounds.seconds * TRIAL_SHARE;
    let schemes = match args.prefetch {
        Some(prefetch) => vec![prefetch],
        None => meter.schemes(&layouts, bench.lookups, seconds * 0.2)?,
    };
    let effects = meter.effects(&layouts, bench.lookups, &tried, &schemes, seconds)?;
    let chosen = choose(&args.levers.0, &effects);
    if let (Some(path), Some(first)) = (&args.rounds.write_output, chosen.first()) {
        bench.write_output(first, path)?;
    }
    let subject = super::subject_facts(&opened, &asked, &args.subject, meter.threads());
    let variants = bench.variants(&chosen)?;
    rounds::run("bags", subject, variants, &args.rounds, 1.0 - TRIAL_SHARE, common)
}

/// The best set of each group, each once.
fn choose(groups: &[Vec<Setting>], effects: &[Effect]) -> Vec<Effect> {
    let mut chosen: Vec<Effect> = Vec::new();
    for group in groups {
        let own: Vec<&Effect> = effects.iter().filter(|e| group.contains(&e.setting)).collect();
        let times: Vec<(Setting, f64)> = own.iter().map(|e| (e.setting, e.ns)).collect();
        let best = levers::best(&times).map(|at| *own[at]);
        let is_new = |e: &Effect| !chosen.iter().any(|other| other.setting == e.setting);
        let best = best.filter(is_new);
        chosen.extend(best);
    }
    chosen
}

/// Lookups in all layouts.
struct Bags<'a> {
    layouts: &'a Layouts,
    meter: &'a Meter,
    lookups: &'a Lookups,
    work: PassWork,
}

impl<'a> Bags<'a> {
    /// The chosen sets, and behind them a touch of each of their places.
    fn variants(&self, chosen: &[Effect]) -> anyhow::Result<Vec<Variant<'a>>> {
        let mut places: Vec<&Effect> = Vec::new();
        for effect in chosen {
            if !places.iter().any(|other| other.setting.place() == effect.setting.place()) {
                places.push(effect);
            }
        }
        let mut variants = Vec::new();
        for effect in chosen {
            let place = effect.setting.place();
            let touch = places.iter().position(|other| other.setting.place() == place);
            let (tables, lookups) = self.place(effect.setting)?;
            let view = self.layouts.view(effect.setting, effect.prefetch).unwrap_or_default();
            variants.push(Variant {
                name: effect.setting.to_string(),
                pass: pass(self.meter.lookup(view, lookups)?),
                work: self.work,
                touch: touch.map(|place| chosen.len() + place),
                facts: facts(effect.prefetch, tables),
            });
        }
        for (at, effect) in places.into_iter().enumerate() {
            let place = effect.setting.place();
            let (tables, lookups) = self.place(place)?;
            let view = self.layouts.view(place, effect.touch_prefetch).unwrap_or_default();
            variants.push(Variant {
                // The first keeps a plain name, for programs that compare.
                name: if at == 0 { "touch".into() } else { format!("touch ({place})") },
                pass: pass(self.meter.touch(view, effect.touch_prefetch, lookups)?),
                work: self.work,
                touch: None,
                facts: facts(effect.touch_prefetch, tables),
            });
        }
        Ok(variants)
    }

    fn place(&self, setting: Setting) -> anyhow::Result<(&'a Tables, &'a Lookups)> {
        let tables = self.layouts.tables(setting).context("a setting that was not laid out")?;
        Ok((tables, self.lookups))
    }

    fn write_output(&self, effect: &Effect, path: &Path) -> anyhow::Result<()> {
        let (tables, lookups) = self.place(effect.setting)?;
        let size = lookups.batch * tables.width();
        let mut out = vec![0.0; size * lookups.len()];
        let view = self.layouts.view(effect.setting, effect.prefetch).unwrap_or_default();
        let mut pool = self.meter.pooling(view)?;
        for (k, out) in out.chunks_mut(size.max(1)).enumerate() {
            pool(&lookups.bags(k), out)?;
        }
        write_tensors(path, &[("output", tables.width(), &out)])
    }
}

fn pass(timed: hither_dlrm::plan::timer::Timed<'_>) -> Pass<'_> {
    let mut pass = timed.into_pass();
    Box::new(move || Ok(pass()?))
}

fn facts(prefetch: Prefetch, tables: &Tables) -> Map<String, Value> {
    let backing = tables.backing();
    let share = |bytes: usize| {
        format!("{:.0} %", 100.0 * bytes.min(backing.bytes) as f64 / backing.bytes as f64)
    };
    let huge = match tables.is_copied() {
        false => "mapped".into(),
        true => backing.huge_bytes.map_or("unknown".into(), share),
    };
    let mut facts = Map::new();
    facts.insert("prefetch".into(), json!(prefetch.to_string()));
    facts.insert("huge pages".into(), json!(huge));
    facts
}
