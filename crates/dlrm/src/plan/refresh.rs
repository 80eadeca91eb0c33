//! New hot rows for an old plan, from ids that an engine sampled while it served.

use super::{Packing, Plan};
use crate::hotness::{Histogram, fitting};
use crate::model::Spec;
use crate::run::Seen;

impl Plan {
    /// The same plan with the rows that `seen` asks for most, for tables that find hot rows by lookup
    /// (`packing = "lookup"`). All copies together take `hot_bytes` at most. Tables that `seen` does
    /// not ask keep their rows.
    pub fn refreshed(&self, spec: &Spec, seen: &[Seen], hot_bytes: usize) -> Self {
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.tables.len()];
        for seen in seen {
            if let Some(rows) = rows.get_mut(seen.table as usize) {
                rows.push(seen.row);
            }
        }
        let is_packed =
            |t: &usize| self.tables[*t].packing == Packing::Lookup && !rows[*t].is_empty();
        let packed: Vec<usize> = (0..self.tables.len()).filter(is_packed).collect();
        let histograms: Vec<Histogram> =
            packed.iter().map(|t| Histogram::new(std::mem::take(&mut rows[*t]))).collect();
        let sizes: Vec<usize> =
            packed.iter().map(|t| spec.tables[*t].row_bytes().next_multiple_of(64)).collect();
        let counts = fitting(&histograms.iter().collect::<Vec<_>>(), &sizes, hot_bytes);
        let mut plan = self.clone();
        for ((t, histogram), count) in packed.into_iter().zip(&histograms).zip(counts) {
            plan.hot[t] = histogram.hottest(count).to_vec();
            plan.tables[t].hot_rows = plan.hot[t].len();
        }
        plan
    }
}
