//! Chooses a plan by what was measured.

use std::sync::Arc;

use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::gemm::Precision;

use super::levers::{self, Setting};
use super::measure::{Effect, Group, Timing};
use super::{Packing, PageChoice, Plan};
use crate::hotness::Histogram;
use crate::model::Spec;

/// The gain of one thread over all threads that is needed to choose one thread.
const ALONE_GAIN_MIN: f64 = 1.1;
/// Rows listed per packed row, if so many were asked for more than once.
const SPARE: usize = 4;
/// Below this share of huge pages the kernel effectively granted none.
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

/// `hot_rows` has one number per table; `room_bytes` is the memory that tables may take.
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
        let may_copy = bytes <= room_bytes && gives_huge(group);
        let (setting, measured) = choose(timing, may_copy, overrides);
        let pages = if setting.pages { PageChoice::Huge } else { PageChoice::Mapped };
        for &t in &group.tables {
            let table = &mut plan.tables[t];
            table.pages = overrides.pages.unwrap_or(pages);
            table.prefetch = overrides.prefetch.unwrap_or(measured);
            // No row that was never asked for is hot.
            let rows = hot_rows[t].min(hot[t].unique());
            table.packing = if rows == 0 { Packing::Off } else { setting.packing };
            table.hot_rows = if table.packing == Packing::Off { 0 } else { rows };
            plan.hot[t] = may_be_packed(&hot[t], rows);
        }
    }
    plan
}

/// The rows that are packed, and more, so that `hot_rows` can be raised by hand.
fn may_be_packed(hot: &Histogram, rows: usize) -> Vec<u32> {
    let repeated = hot.counts().partition_point(|count| *count > 1);
    hot.hottest(rows.max(repeated.min(rows.saturating_mul(SPARE)))).to_vec()
}

/// All threads, unless one alone was clearly faster: a busy machine must not decide this.
fn threads(groups: &[Group]) -> usize {
    let time = |pick: fn(&Group) -> Option<&Timing>| -> f64 {
        groups.iter().filter_map(|g| Some(g.tables.len() as f64 * pick(g)?.fastest()?.ns)).sum()
    };
    let (one, all) = (time(|g| g.timings.first()), time(|g| g.timings.last()));
    let several = groups.iter().any(|g| g.timings.len() > 1);
    if several && one * ALONE_GAIN_MIN < all { 1 } else { 0 }
}

fn gives_huge(group: &Group) -> bool {
    group.copied && group.huge_share.is_none_or(|share| share > HUGE_SHARE_MIN)
}

/// The setting that measured best among those that are allowed.
fn choose(timing: &Timing, may_copy: bool, overrides: &Overrides) -> (Setting, Prefetch) {
    let pages = overrides.pages.map(|pages| pages == PageChoice::Huge);
    let prefetch = overrides.prefetch.map(|prefetch| prefetch != Prefetch::Off);
    let allowed = |setting: Setting| {
        pages.map_or(may_copy || !setting.pages, |pages| setting.pages == pages)
            && prefetch.is_none_or(|prefetch| setting.prefetch == prefetch)
            && overrides.packing.is_none_or(|packing| setting.packing == packing)
    };
    let effects: Vec<&Effect> =
        timing.effects.iter().filter(|effect| allowed(effect.setting)).collect();
    let times: Vec<(Setting, f64)> =
        effects.iter().map(|effect| (effect.setting, effect.ns)).collect();
    if let Some(best) = levers::best(&times) {
        return (effects[best].setting, effects[best].prefetch);
    }
    // Where copies found no room to be measured, what was asked for is done all the same.
    let asked = Setting {
        pages: pages == Some(true),
        prefetch: prefetch != Some(false),
        packing: overrides.packing.unwrap_or(Packing::Off),
    };
    let scheme = if asked.prefetch { Prefetch::default() } else { Prefetch::Off };
    (asked, scheme)
}

impl Group {
    /// The timing that a plan with this number of threads goes by; 0 means all threads.
    pub fn timing(&self, threads: usize) -> Option<&Timing> {
        if threads == 1 { self.timings.first() } else { self.timings.last() }
    }
}

impl Timing {
    pub fn effect(&self, setting: Setting) -> Option<&Effect> {
        self.effects.iter().find(|effect| effect.setting == setting)
    }

    /// The fastest setting.
    fn fastest(&self) -> Option<&Effect> {
        self.effects.iter().min_by(|a, b| a.ns.total_cmp(&b.ns))
    }
}
