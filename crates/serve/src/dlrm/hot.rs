//! Hot rows follow the requests: ids are sampled, and rows that have become clearly hotter are copied
//! together.

use std::collections::HashSet;

use hither_dlrm::model::Spec;
use hither_dlrm::plan::{Packing, Plan};
use hither_dlrm::run::Seen;

use super::Dlrm;
use crate::backend::HotRows;

/// Sampled ids below which nothing is concluded.
const SEEN_MIN: usize = 1000;

impl Dlrm {
    pub(super) fn refreshed(&self) -> Result<Option<[f64; 2]>, String> {
        let seen = self.engine.seen();
        if seen.len() < SEEN_MIN {
            return Ok(None);
        }
        let now = self.engine.tables().hot_share(&seen);
        self.layout().hot_rows.now = now;
        let plan = self.layout().plan.clone();
        let hot_bytes = self.hotness.hot_bytes.unwrap_or_else(|| packed_bytes(&self.spec, &plan));
        // Rows are chosen by one half of the sample and judged by the other: on its own sample any
        // choice looks good.
        let halves = |odd: usize| seen.iter().skip(odd).step_by(2).copied().collect::<Vec<_>>();
        let (chosen_by, judged_by) = (halves(0), halves(1));
        let next = plan.refreshed(&self.spec, &chosen_by, hot_bytes);
        let before = self.engine.tables().hot_share(&judged_by).unwrap_or(0.0);
        if expected_share(&next, &judged_by) < before + self.hotness.gain_min {
            return Ok(None);
        }
        self.engine.replan(&next, &|_| ()).map_err(|error| error.to_string())?;
        let after = self.engine.tables().hot_share(&judged_by);
        let mut layout = self.layout();
        layout.plan = next;
        let refreshes = layout.hot_rows.refreshes + 1;
        layout.hot_rows = HotRows { now: after, before: Some(before), after, refreshes };
        Ok(Some([before, after.unwrap_or(0.0)]))
    }
}

/// Bytes of the rows that a plan packs.
fn packed_bytes(spec: &Spec, plan: &Plan) -> usize {
    let tables = spec.tables.iter().zip(&plan.tables);
    let packed = tables.filter(|(_, plan)| plan.packing == Packing::Lookup);
    packed.map(|(table, plan)| plan.hot_rows * table.row_bytes().next_multiple_of(64)).sum()
}

/// The share of lookups in packed tables that a plan's hot rows would take.
fn expected_share(plan: &Plan, seen: &[Seen]) -> f64 {
    let hot: Vec<Option<HashSet<u32>>> = (plan.tables.iter().zip(&plan.hot))
        .map(|(table, hot)| {
            (table.packing == Packing::Lookup).then(|| hot.iter().copied().collect())
        })
        .collect();
    let (mut all, mut found) = (0u64, 0u64);
    for one in seen {
        if let Some(Some(hot)) = hot.get(one.table as usize) {
            all += 1;
            found += u64::from(hot.contains(&one.row));
        }
    }
    if all == 0 { 0.0 } else { found as f64 / all as f64 }
}
