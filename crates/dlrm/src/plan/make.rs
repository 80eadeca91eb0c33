//! From what was measured to a plan.

use std::sync::Arc;

use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::gemm::Precision;

use super::levers::Setting;
use super::measure::{Effect, Group, Timing};
use super::{Packing, PageChoice, Plan};
use crate::hotness::Histogram;
use crate::model::Spec;

/// Below this, a gain may be noise.
pub const GAIN_MIN: f64 = 1.03;
/// What one thread must gain over all.
const ALONE_GAIN_MIN: f64 = 1.1;
/// Rows that are listed for each that is packed, if so many were asked for more than once.
const SPARE: usize = 4;
/// Less of the copies on huge pages, and the system does not give any to speak of.
const HUGE_SHARE_MIN: f64 = 0.1;

/// Choices that are not left to the measurements, for all tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    pub pages: Option<PageChoice>,
    pub prefetch: Option<Prefetch>,
    pub packing: Option<Packing>,
    pub hot_rows: Option<usize>,
    pub threads: Option<usize>,
    pub mlp: Option<Precision>,
}

/// `hot_rows` has one number a table; `room_bytes` is the memory that tables may take.
pub fn make(
    spec: &Spec,
    hot: &[Arc<Histogram>],
    hot_rows: &[usize],
    groups: &[Group],
    room_bytes: u64,
    overrides: &Overrides,
) -> Plan {
    let mut plan = Plan::standard(spec);
    plan.threads = overrides.threads.unwrap_or_else(|| threads(groups));
    plan.mlp = overrides.mlp.unwrap_or(Precision::F32);
    let bytes: u64 = spec.tables.iter().map(|table| table.bytes()).sum();
    for group in groups {
        let Some(timing) = group.timing(plan.threads) else { continue };
        let pages = overrides.pages.unwrap_or_else(|| pages(group, bytes <= room_bytes));
        let packing = overrides.packing.unwrap_or_else(|| packing(timing, pages));
        for &t in &group.tables {
            let table = &mut plan.tables[t];
            table.pages = pages;
            table.prefetch = overrides.prefetch.unwrap_or(timing.best);
            // No row that was never asked for is hot.
            let rows = hot_rows[t].min(hot[t].unique());
            table.packing = if rows == 0 { Packing::Off } else { packing };
            table.hot_rows = if table.packing == Packing::Off { 0 } else { rows };
            if table.packing == Packing::Ids && overrides.hot_rows.is_none() {
                table.hot_rows = hot[t].unique();
            }
            plan.hot[t] = may_be_packed(&hot[t], rows.max(table.hot_rows));
        }
    }
    plan
}

/// The rows that are packed, and more: whoever raises `hot_rows` by hand finds them listed.
fn may_be_packed(hot: &Histogram, rows: usize) -> Vec<u32> {
    let repeated = hot.counts().partition_point(|count| *count > 1);
    hot.hottest(rows.max(repeated.min(rows.saturating_mul(SPARE)))).to_vec()
}

/// All threads, unless one alone was clearly faster: a busy machine must not decide this.
fn threads(groups: &[Group]) -> usize {
    let time = |pick: fn(&Group) -> Option<&Timing>| -> f64 {
        groups.iter().filter_map(|g| Some(g.tables.len() as f64 * pick(g)?.full()?.ns)).sum()
    };
    let (one, all) = (time(|g| g.timings.first()), time(|g| g.timings.last()));
    let several = groups.iter().any(|g| g.timings.len() > 1);
    if several && one * ALONE_GAIN_MIN < all { 1 } else { 0 }
}

fn pages(group: &Group, has_room: bool) -> PageChoice {
    let gives_huge = group.copied && group.huge_share.is_none_or(|share| share > HUGE_SHARE_MIN);
    if has_room && gives_huge { PageChoice::Huge } else { PageChoice::Mapped }
}

/// Copies of hot rows, where they were seen to help on the same pages. The order of the rows
/// themselves is never changed unasked: whoever sends ids would have to know.
fn packing(timing: &Timing, pages: PageChoice) -> Packing {
    let with = |packing| {
        let setting = Setting { pages: pages == PageChoice::Huge, prefetch: true, packing };
        timing.effect(setting).map(|effect| effect.ns)
    };
    match with(Packing::Off).zip(with(Packing::Lookup)) {
        Some((off, lookup)) if off >= lookup * GAIN_MIN => Packing::Lookup,
        _ => Packing::Off,
    }
}

impl Group {
    /// The timing that a plan with so many threads goes by; 0 is all.
    pub fn timing(&self, threads: usize) -> Option<&Timing> {
        if threads == 1 { self.timings.first() } else { self.timings.last() }
    }
}

impl Timing {
    pub fn effect(&self, setting: Setting) -> Option<&Effect> {
        self.effects.iter().find(|effect| effect.setting == setting)
    }

    /// Pages and prefetch, as far as they were tried.
    fn full(&self) -> Option<&Effect> {
        let setting = |pages| Setting { pages, prefetch: true, packing: Packing::Off };
        self.effect(setting(true)).or_else(|| self.effect(setting(false)))
    }
}
