//! `hither bench bags`: lookups alone, against a reference that only reads the same rows.

use std::path::PathBuf;

use hither_dlrm::plan::Packing;
use hither_dlrm::plan::levers::{self, Setting};
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::touch::Touch;
use hither_kernels::detect;
use rayon::ThreadPool;
use serde_json::{Map, Value, json};

use super::layouts::{self, Layout, Layouts};
use super::rounds::{self, Pass, RoundArgs, Variant, Work};
use super::{Needs, Subject, write_tensors};
use crate::Common;
use crate::machine::Machine;

/// Measure embedding bags with each lever on or off
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Levers: pages (tables copied to huge pages), prefetch (the fastest scheme, or --prefetch), packing \
(hot rows together, ids renumbered beforehand), lookup (hot rows together, found by a map at each \
lookup). `auto` measures all sets but renumbered ids and takes the fastest; of sets within 3 % of it, \
the one with the fewest levers.

`touch` is a reference: it resolves the same ids and reads the same rows in the same places, but pools \
and writes nothing. `of touch` is its time over the variant's, 1 at most. Every timed pass follows an untimed pass \
of the same variant, so that all find the caches as they leave them themselves.

Examples:
  hither bench bags --preset micro24 --hotness high --batch 2048 --batches 1
  hither bench bags --rows 50000 --levers each --threads 1
  hither bench bags model --ids requests.safetensors --json")]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Sets of levers, joined by `+` and separated by commas; `auto` is the fastest, `each` is all
    #[arg(long, value_name = "SETS", default_value = "auto", value_parser = wanted)]
    levers: Levers,
    /// File of ids that choose the hot rows [default: the ids that are measured]
    #[arg(long, value_name = "FILE")]
    plan_ids: Option<PathBuf>,
    /// Prefetch scheme: off or HINT:BYTES:LINES, such as l2:32K:all [default: the fastest]
    #[arg(long, value_name = "SCHEME")]
    prefetch: Option<Prefetch>,
    /// Memory for all copies of hot rows, in MiB [default: half of the last-level cache]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    hot_mib: Option<u32>,
    #[command(flatten)]
    rounds: RoundArgs,
}

/// For each variant the sets of levers of which the best is taken.
#[derive(Clone, Debug)]
struct Levers(Vec<Vec<Setting>>);

fn wanted(text: &str) -> Result<Levers, String> {
    let auto = || Setting::all().into_iter().filter(|set| set.packing != Packing::Ids).collect();
    let one = |name| match name {
        "auto" => Ok(auto()),
        set => set.parse().map(|set| vec![set]),
    };
    let sets = match text {
        "each" => Setting::all().into_iter().map(|set| vec![set]).collect(),
        list => list.split(',').map(one).collect::<Result<_, _>>()?,
    };
    Ok(Levers(sets))
}

/// The size of the last-level cache where the system does not tell.
const L3_BYTES: usize = 32 << 20;
/// The share of the measuring time that goes into choosing schemes and sets.
const TRIAL_SHARE: f64 = 0.4;

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let tried: Vec<Setting> = args.levers.0.concat();
    let copies = layouts::copies(&tried) as f64;
    let needs = Needs { copies, half_on_disk: false, seconds: args.rounds.seconds };
    let opened = args.subject.open(&needs, common)?;
    let model = &opened.model;
    let asked = args.subject.requests(&opened, common)?;
    let lookups = &asked.lookups;
    let pool = common.pool()?;
    let l3 = Machine::read().l3_bytes.unwrap_or(L3_BYTES);
    let hot_bytes = args.hot_mib.map_or(l3 / 2, |mib| (mib as usize) << 20);
    let planned = match &args.plan_ids {
        Some(path) => &args.subject.lookups_of(&opened, path, common)?,
        None => lookups,
    };
    let layouts = super::laying_out(common, model, layouts::copies(&tried), |done| {
        pool.install(|| Layouts::new(model, lookups, planned, &tried, hot_bytes, done))
    })?;
    let bench = Bags { layouts: &layouts, pool: &pool, prefetch: args.prefetch };
    let seconds = args.rounds.seconds * TRIAL_SHARE;
    let (sets, touches) = bench.choose(&args.levers.0, seconds, common)?;

    let row_bytes: Vec<usize> = model.spec.tables.iter().map(|t| t.row_bytes()).collect();
    let work = Work {
        samples: (lookups.batch * lookups.len()) as u64,
        rows: lookups.ids() as u64,
        bytes: (row_bytes.iter().enumerate())
            .map(|(t, bytes)| (lookups.of_table(t).count() * bytes) as u64)
            .sum(),
        flops: 0,
    };
    let mut variants = Vec::new();
    for (set, prefetch) in &sets {
        let facts = facts(*prefetch, layouts.of(*set));
        let pass = bench.lookup(*set, *prefetch);
        let touch = touches.iter().position(|(place, _)| *place == place_of(*set));
        let touch = touch.map(|place| sets.len() + place);
        variants.push(Variant { name: set.to_string(), pass, work, touch, facts });
    }
    for (place, prefetch) in &touches {
        // The first keeps a plain name, for programs that compare.
        let name = match *place == place_of(sets[0].0) {
            true => "touch".into(),
            false => format!("touch ({place})"),
        };
        let facts = facts(*prefetch, layouts.of(*place));
        let pass = bench.touch(*place, *prefetch)?;
        variants.push(Variant { name, pass, work, touch: None, facts });
    }
    if let Some(path) = &args.rounds.write_output {
        bench.write_output(sets[0].0, path)?;
    }
    let subject = super::subject_facts(&opened, &asked, &args.subject, &pool);
    rounds::run("bags", subject, variants, &args.rounds, 1.0 - TRIAL_SHARE, common)
}

/// The setting without prefetch: what a touch depends on.
fn place_of(set: Setting) -> Setting {
    Setting { prefetch: false, ..set }
}

/// Lookups in all layouts.
struct Bags<'a> {
    layouts: &'a Layouts,
    pool: &'a ThreadPool,
    /// The scheme that was asked for.
    prefetch: Option<Prefetch>,
}

type Chosen = Vec<(Setting, Prefetch)>;

impl<'a> Bags<'a> {
    /// The best set and scheme of each group of sets, and the best scheme of the touch of each of
    /// their places: all timed in turns.
    fn choose(
        &self,
        wanted: &[Vec<Setting>],
        seconds: f64,
        common: &Common,
    ) -> anyhow::Result<(Chosen, Chosen)> {
        let mut cases: Chosen = Vec::new();
        for set in wanted.concat() {
            let all = self.schemes(set).into_iter().map(|prefetch| (set, prefetch));
            cases.extend(all.filter(|case| !cases.contains(case)).collect::<Vec<_>>());
        }
        let mut places: Vec<Setting> = Vec::new();
        for place in cases.iter().map(|(set, _)| place_of(*set)) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let schemes = Prefetch::CANDIDATES;
        let touches: Chosen =
            places.iter().flat_map(|place| schemes.map(|scheme| (*place, scheme))).collect();
        let mut passes: Vec<Pass> = cases.iter().map(|(set, p)| self.lookup(*set, *p)).collect();
        for (place, prefetch) in &touches {
            passes.push(self.touch(*place, *prefetch)?);
        }
        let times = rounds::trial(&mut passes, seconds, common)?;
        let (of_lookups, of_touches) = times.split_at(cases.len());

        let mut sets: Chosen = Vec::new();
        for group in wanted {
            let (cases, times): (Chosen, Vec<(Setting, f64)>) = (cases.iter().zip(of_lookups))
                .filter(|((set, _), _)| group.contains(set))
                .map(|((set, prefetch), ns)| ((*set, *prefetch), (*set, *ns)))
                .unzip();
            let best = levers::best(&times).map(|at| cases[at]);
            sets.extend(best.filter(|(set, _)| !sets.iter().any(|(other, _)| other == set)));
        }
        places.retain(|place| sets.iter().any(|(set, _)| place_of(*set) == *place));
        let fastest = |place: &Setting| {
            let own = touches.iter().zip(of_touches).filter(|((other, _), _)| other == place);
            let best = own.min_by(|a, b| a.1.total_cmp(b.1));
            (*place, best.map_or(Prefetch::Off, |((_, prefetch), _)| *prefetch))
        };
        let touches = places.iter().map(fastest).collect();
        Ok((sets, touches))
    }

    fn schemes(&self, set: Setting) -> Vec<Prefetch> {
        match (set.prefetch, self.prefetch) {
            (false, _) => vec![Prefetch::Off],
            (true, Some(prefetch)) => vec![prefetch],
            (true, None) => {
                Prefetch::CANDIDATES.into_iter().filter(|p| *p != Prefetch::Off).collect()
            }
        }
    }

    fn lookup(&self, set: Setting, prefetch: Prefetch) -> Pass<'a> {
        let (layouts, pool) = (self.layouts, self.pool);
        let layout = layouts.of(set);
        let tables = layouts.view(set, prefetch);
        let mut out = vec![0.0; layout.lookups.batch * layout.tables.width()];
        Box::new(move || {
            pool.install(|| {
                (0..layout.lookups.len()).try_for_each(|k| layout.pool(&tables, k, &mut out))
            })
        })
    }

    fn touch(&self, place: Setting, prefetch: Prefetch) -> anyhow::Result<Pass<'a>> {
        let (layouts, pool) = (self.layouts, self.pool);
        let layout = layouts.of(place);
        let tables = layouts.view(place, Prefetch::Off);
        let touches = (0..layout.lookups.len())
            .map(|k| Touch::new(&tables, layout.lookups.bags(k), detect::cpu().isa))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(move || {
            pool.install(|| touches.iter().try_for_each(|touch| touch.run(prefetch)))?;
            Ok(())
        }))
    }

    fn write_output(&self, set: Setting, path: &std::path::Path) -> anyhow::Result<()> {
        let layout = self.layouts.of(set);
        let width = layout.tables.width();
        let mut out = vec![0.0; layout.lookups.batch * layout.lookups.len() * width];
        let tables = self.layouts.view(set, Prefetch::default());
        for (k, out) in out.chunks_mut(layout.lookups.batch * width).enumerate() {
            self.pool.install(|| layout.pool(&tables, k, out))?;
        }
        write_tensors(path, &[("output", width, &out)])
    }
}

fn facts(prefetch: Prefetch, layout: &Layout) -> Map<String, Value> {
    let backing = layout.tables.backing();
    let share = |bytes: usize| {
        format!("{:.0} %", 100.0 * bytes.min(backing.bytes) as f64 / backing.bytes as f64)
    };
    let is_copied = layout.tables.is_copied();
    let huge = match is_copied {
        false => "mapped".into(),
        true => backing.huge_bytes.map_or("unknown".into(), share),
    };
    let mut facts = Map::new();
    facts.insert("prefetch".into(), json!(prefetch.to_string()));
    facts.insert("huge pages".into(), json!(huge));
    facts
}
