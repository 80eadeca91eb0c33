//! `hither bench bags`: lookups alone, against the time that touching the same rows takes.

use std::path::PathBuf;
use std::time::Instant;

use hither_dlrm::plan::Packing;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::touch::Touch;
use hither_kernels::detect;
use rayon::ThreadPool;
use serde_json::{Map, Value, json};

use super::layouts::{Layout, Layouts, Levers};
use super::rounds::{self, RoundArgs, Variant, Work};
use super::{Subject, write_tensors};
use crate::Common;
use crate::machine::Machine;

/// Measure embedding bags with each lever on or off
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Levers: pages (huge pages), prefetch (the fastest scheme, or --prefetch), packing (hot rows together,
ids renumbered beforehand), lookup (hot rows together, found by a map at each lookup). `auto` is
pages+prefetch, and lookup too where that is faster on the first batches.
`touch` reads the same rows from known addresses and computes nothing: the limit of the memory
system on the pages of the first variant.

Examples:
  hither bench bags --preset micro24 --hotness high --batch 2048 --pooling 150 --batches 1
  hither bench bags --levers each --threads 1
  hither bench bags MODEL --ids trace.txt --json")]
pub struct Args {
    #[command(flatten)]
    subject: Subject,
    /// Sets of levers, joined by `+`, separated by commas; `auto` is what a plan would choose, `each`
    /// stands for all sets
    #[arg(long, value_name = "SETS", default_value = "auto")]
    levers: String,
    /// Ids by which hot rows are chosen, if not by those that are measured
    #[arg(long, value_name = "FILE")]
    plan_ids: Option<PathBuf>,
    /// off, far:ROWS or near:ROWS:LINES [default: the fastest]
    #[arg(long, value_name = "SCHEME")]
    prefetch: Option<Prefetch>,
    /// What all copies of hot rows may take, MiB [default: half of the last-level cache]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    hot_mib: Option<u32>,
    #[command(flatten)]
    rounds: RoundArgs,
}

/// Levers as they were asked for.
enum Wanted {
    Auto,
    Set(Levers),
}

impl Wanted {
    /// The sets of which the fastest is taken.
    fn tried(&self) -> Vec<Levers> {
        match self {
            Self::Auto => vec![Levers::AUTO, Levers { packing: Packing::Lookup, ..Levers::AUTO }],
            Self::Set(set) => vec![*set],
        }
    }
}

fn wanted(text: &str) -> Result<Vec<Wanted>, String> {
    let one = |name| match name {
        "auto" => Ok(Wanted::Auto),
        set => set.parse().map(Wanted::Set),
    };
    match text {
        "each" => Ok(Levers::each().into_iter().map(Wanted::Set).collect()),
        list => list.split(',').map(one).collect(),
    }
}

/// Where the system does not tell.
const L3_BYTES: usize = 32 << 20;

pub fn run(args: &Args, common: &Common) -> anyhow::Result<()> {
    let wanted = wanted(&args.levers).map_err(anyhow::Error::msg)?;
    let opened = args.subject.open(common)?;
    let model = &opened.model;
    let lookups = args.subject.lookups(model)?;
    let pool = common.pool()?;
    let l3 = Machine::read().l3_bytes.unwrap_or(L3_BYTES);
    let hot_bytes = args.hot_mib.map_or(l3 / 2, |mib| (mib as usize) << 20);
    common.say("laying out the tables");
    let planned = match &args.plan_ids {
        Some(path) => &args.subject.lookups_of(model, path)?,
        None => &lookups,
    };
    let tried: Vec<Levers> = wanted.iter().flat_map(Wanted::tried).collect();
    let layouts = pool.install(|| Layouts::new(model, &lookups, planned, &tried, hot_bytes))?;
    let mut sets = Vec::new();
    for wanted in &wanted {
        let set = pool.install(|| layouts.fastest(&wanted.tried(), args.prefetch))?;
        if !sets.contains(&set) {
            sets.push(set);
        }
    }

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
    for set in &sets {
        let layout = layouts.of(*set);
        let prefetch = match (set.prefetch, args.prefetch) {
            (false, _) => Prefetch::Off,
            (true, Some(prefetch)) => prefetch,
            (true, None) => pool.install(|| layout.fastest())?.0,
        };
        variants.push(lookup(*set, layout, prefetch, &pool, work));
    }
    let limit = variants.len();
    variants.push(touch(layouts.of(sets[0]), &pool, work)?);
    // The limit is that of the first set's pages.
    let same_pages = |set: &Levers| set.pages == sets[0].pages && set.packing != Packing::Ids;
    for (variant, set) in variants.iter_mut().zip(&sets) {
        variant.limit = (*set == sets[0] || same_pages(set)).then_some(limit);
    }
    if let Some(path) = &args.rounds.write_output {
        let layout = layouts.of(sets[0]);
        let width = layout.tables.width();
        let mut out = vec![0.0; lookups.batch * lookups.len() * width];
        let tables = layout.view(Prefetch::default());
        for (k, out) in out.chunks_mut(lookups.batch * width).enumerate() {
            pool.install(|| layout.pool(&tables, k, out))?;
        }
        write_tensors(path, &[("output", width, &out)])?;
    }
    let subject = super::subject_facts(model, &lookups, &args.subject, &pool);
    rounds::run("bags", subject, variants, &args.rounds, common)
}

fn lookup<'a>(
    set: Levers,
    layout: &'a Layout,
    prefetch: Prefetch,
    pool: &'a ThreadPool,
    work: Work,
) -> Variant<'a> {
    let tables = layout.view(prefetch);
    let mut out = vec![0.0; layout.lookups.batch * layout.tables.width()];
    let pass = move || {
        pool.install(|| {
            (0..layout.lookups.len()).try_for_each(|k| layout.pool(&tables, k, &mut out))
        })
    };
    let facts = facts(&prefetch.to_string(), layout);
    Variant { name: set.name(), pass: Box::new(pass), work, limit: None, facts }
}

/// The limit, with the scheme under which it is reached.
fn touch<'a>(layout: &'a Layout, pool: &'a ThreadPool, work: Work) -> anyhow::Result<Variant<'a>> {
    let tables = layout.tables.view();
    let touches = (0..layout.lookups.len())
        .map(|k| pool.install(|| Touch::new(&tables, &layout.lookups.bags(k), detect::cpu().isa)))
        .collect::<Result<Vec<_>, _>>()?;
    let run = move |prefetch| pool.install(|| touches.iter().for_each(|t| t.run(prefetch)));
    let timed = |prefetch| {
        let start = Instant::now();
        run(prefetch);
        start.elapsed()
    };
    let shortest = |prefetch: &Prefetch| (0..3).map(|_| timed(*prefetch)).min();
    let best = Prefetch::CANDIDATES.into_iter().min_by_key(shortest).unwrap_or_default();
    let pass = move || {
        run(best);
        Ok(())
    };
    let facts = facts(&best.to_string(), layout);
    Ok(Variant { name: "touch".into(), pass: Box::new(pass), work, limit: None, facts })
}

fn facts(prefetch: &str, layout: &Layout) -> Map<String, Value> {
    let backing = layout.tables.backing();
    let share = |bytes: usize| {
        format!("{:.0} %", 100.0 * bytes.min(backing.bytes) as f64 / backing.bytes as f64)
    };
    let huge = match backing {
        _ if backing.bytes == 0 => "mapped".into(),
        _ => backing.huge_bytes.map_or("unknown".into(), share),
    };
    let mut facts = Map::new();
    facts.insert("prefetch".into(), json!(prefetch));
    facts.insert("huge pages".into(), json!(huge));
    facts
}
