//! Measures how much each lever gains on this machine: a model's own tables, read with a trace's ids.
//!
//! Tables of one type, one dim and similar hotness are a group and share a measurement. All
//! settings of a group are timed in turns, round after round, and the smallest time of each counts:
//! other work on the machine only ever makes a round slower.

use std::sync::Arc;

use hither_kernels::bag::Dtype;
use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::detect::Isa;

use super::Packing;
pub use super::effects::Effect;
use super::effects::Meter;
use super::layouts::{HotRows, Layouts};
use super::levers::Setting;
use super::timer::ROUNDS_MIN;
use crate::Error;
use crate::hotness::{Histogram, fitting};
use crate::lookups::Lookups;
use crate::model::Model;
use crate::workload::Workload;

/// Limits of the measurement, and the facts of the machine that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub l2_bytes: usize,
    pub l3_bytes: usize,
    /// Memory for copies of tables.
    pub copy_bytes: u64,
    /// About how long all groups together are measured.
    pub seconds: f64,
    /// The largest number of threads that is tried.
    pub threads: usize,
    pub isa: Isa,
}

/// Tables that are alike, and the measurements of some of them.
#[derive(Clone, Debug)]
pub struct Group {
    pub tables: Vec<usize>,
    pub sampled: Vec<usize>,
    /// Whether copies fitted into memory; if not, only the mapped file was read.
    pub copied: bool,
    /// The share of the copies that lies on huge pages; `None` where the system does not tell.
    pub huge_share: Option<f64>,
    /// One thread first, then all.
    pub timings: Vec<Timing>,
}

/// What was measured with one number of threads.
#[derive(Clone, Debug)]
pub struct Timing {
    pub threads: usize,
    pub effects: Vec<Effect>,
    /// Nanoseconds per row if the tables were of this type: their own, and smaller ones.
    pub types: Vec<(Dtype, f64)>,
}

/// Copies of the sampled tables in memory at once: one with packed copies, two in another order.
const LAYOUTS: u64 = 3;
/// A sample this many times as large as the third-level cache is large enough.
const CACHES_MAX: usize = 16;
/// Upper bounds of the tables of a sample, and of their lookups per batch.
const TABLES_MAX: usize = 32;
const LOOKUPS_MAX: f64 = 4e6;
/// Rough guesses of the timed runs per round and of the cost of a row, to plan the lookups.
const RUNS: f64 = 75.0;
const ROW_NS: f64 = 50.0;

/// Groups tables by type, dim, and whether few, some or most of their lookups stay in the caches.
pub fn groups(model: &Model, hot: &[Arc<Histogram>], bounds: &Bounds) -> Vec<Vec<usize>> {
    let mut groups: Vec<((Dtype, usize, usize), Vec<usize>)> = Vec::new();
    for (t, (table, histogram)) in model.spec.tables.iter().zip(hot).enumerate() {
        let near = histogram.share(bounds.l3_bytes / 2 / table.row_bytes().max(1));
        let form = (table.dtype, table.dim, (near * 3.0) as usize);
        match groups.iter_mut().find(|(other, _)| *other == form) {
            Some((_, tables)) => tables.push(t),
            None => groups.push((form, vec![t])),
        }
    }
    groups.into_iter().map(|(_, tables)| tables).collect()
}

/// How many hot rows each table may pack: together, they fill half of the third-level cache.
pub fn hot_rows(model: &Model, hot: &[Arc<Histogram>], l3_bytes: usize) -> Vec<usize> {
    let tables: Vec<&Histogram> = hot.iter().map(Arc::as_ref).collect();
    let sizes: Vec<usize> =
        model.spec.tables.iter().map(|t| t.row_bytes().next_multiple_of(64)).collect();
    fitting(&tables, &sizes, l3_bytes / 2)
}

/// Measures all groups. `packed` has the number of hot rows of each table.
pub fn measure(
    model: &Model,
    workload: &Workload,
    hot: &[Arc<Histogram>],
    packed: &[usize],
    bounds: &Bounds,
    done: &dyn Fn(usize, usize),
) -> Result<Vec<Group>, Error> {
    let groups = groups(model, hot, bounds);
    let count = groups.len();
    let seconds = bounds.seconds / count.max(1) as f64;
    let each = groups.into_iter().enumerate();
    each.map(|(i, tables)| {
        done(i, count);
        Bench { model, workload, hot, packed, bounds, seconds }.group(tables)
    })
    .collect()
}

struct Bench<'a> {
    model: &'a Model,
    workload: &'a Workload<'a>,
    hot: &'a [Arc<Histogram>],
    packed: &'a [usize],
    bounds: &'a Bounds,
    seconds: f64,
}

impl Bench<'_> {
    fn group(&self, tables: Vec<usize>) -> Result<Group, Error> {
        let (sampled, copied) = self.sample(&tables);
        let layouts = self.layouts(&sampled, copied)?;
        let threads = match self.bounds.threads {
            0 | 1 => vec![1],
            all => vec![1, all],
        };
        let each_s = self.seconds / threads.len() as f64;
        let lookups = each_s * 1e9 / (ROUNDS_MIN as f64 * RUNS * ROW_NS);
        // At least a cache's worth of rows, or the caches would flatter all settings.
        let spec = &self.model.spec.tables[sampled[0]];
        let rows: usize = sampled.iter().map(|t| self.model.spec.tables[*t].rows).sum();
        let least = rows.min(self.bounds.l3_bytes / spec.row_bytes().max(1));
        let lookups = (lookups as usize).max(least).clamp(1 << 12, 1 << 20);
        let batch = self.workload.batch();
        let plain = Lookups::new(batch, self.workload.requests(&sampled, lookups));
        let timings = threads.iter().map(|&threads| {
            let meter = Meter::new(threads, self.bounds.isa)?;
            let all = Setting::all();
            let schemes = meter.schemes(&layouts, &plain, each_s * 0.1)?;
            let effects = meter.effects(&layouts, &plain, &all, &schemes, each_s * 0.8)?;
            let types = meter.types(&layouts, &plain, best_scheme(&effects), each_s * 0.1)?;
            Ok(Timing { threads, effects, types })
        });
        let timings = timings.collect::<Result<_, Error>>()?;
        let huge = Setting { pages: true, ..Setting::NONE };
        let huge_share = layouts.tables(huge).and_then(|tables| {
            let backing = tables.backing();
            Some(backing.huge_bytes? as f64 / (backing.resident_bytes?.max(1)) as f64)
        });
        Ok(Group { tables, sampled, copied, huge_share, timings })
    }

    /// As many of the tables as are needed and fit into memory, and whether any did.
    fn sample(&self, tables: &[usize]) -> (Vec<usize>, bool) {
        let bytes = |t: usize| self.model.spec.tables[t].bytes();
        let enough = (self.bounds.l3_bytes * CACHES_MAX) as u64;
        let lookups = (LOOKUPS_MAX / self.workload.lookups_per_batch().max(1.0)) as usize;
        let (mut sampled, mut all) = (Vec::new(), 0);
        for &t in tables {
            if sampled.len() >= lookups.clamp(1, TABLES_MAX) {
                break;
            }
            let fits = (all + bytes(t)).saturating_mul(LAYOUTS) <= self.bounds.copy_bytes;
            if all < enough && fits {
                all += bytes(t);
                sampled.push(t);
            }
        }
        if sampled.is_empty() { (tables[..1].to_vec(), false) } else { (sampled, true) }
    }

    fn layouts(&self, sampled: &[usize], copied: bool) -> Result<Layouts, Error> {
        let hot = HotRows { histograms: self.hot, packed: self.packed };
        let mut settings = Setting::all();
        settings.retain(|setting| copied || !setting.needs_copy());
        Layouts::new(self.model, sampled, &hot, &settings, &|_| {})
    }
}

/// The fastest scheme where no row is packed: huge pages stand for the others.
fn best_scheme(effects: &[Effect]) -> Prefetch {
    let plain = |pages| Setting { pages, prefetch: true, packing: Packing::Off };
    let of = |pages| effects.iter().find(|effect| effect.setting == plain(pages));
    of(true).or(of(false)).map_or(Prefetch::Off, |effect| effect.prefetch)
}
