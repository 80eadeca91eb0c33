//! A short test for models that are loaded without a plan: which prefetch suits this machine.

use std::sync::Arc;

use hither_kernels::bag::prefetch::Prefetch;
use hither_kernels::bag::{Dtype, Table};
use hither_kernels::detect::Isa;

use super::Plan;
use super::effects::Meter;
use crate::Error;
use crate::lookups::{Hotness, Lookups, Shape};
use crate::tables::Tables;

/// Tables of one form that are read together.
const TABLES_MAX: usize = 8;
/// Ids of a pass, in bags of one table each: a millisecond or less, so that a short test has many rounds.
const LOOKUPS: usize = 1 << 14;
const SAMPLES: usize = 64;

impl Plan {
    /// The same plan with the prefetch that is fastest for random rows of the loaded tables, on one
    /// thread. Takes about `seconds`, shared by all forms of tables: the most bytes first, at most four.
    pub fn self_tested(&self, tables: &Arc<Tables>, isa: Isa, seconds: f64) -> Result<Self, Error> {
        let view = tables.view();
        let form = |table: &Table| (table.dtype, table.dim);
        let mut forms: Vec<(Dtype, usize)> = Vec::new();
        for table in view.iter().filter(|table| table.rows > 0) {
            if !forms.contains(&form(table)) {
                forms.push(form(table));
            }
        }
        let bytes = |of: &(Dtype, usize)| -> usize {
            view.iter().filter(|table| form(table) == *of).map(|table| table.data.len()).sum()
        };
        forms.sort_by_key(|form| std::cmp::Reverse(bytes(form)));
        forms.truncate(4);
        let meter = Meter::new(1, isa)?;
        let mut plan = self.clone();
        for own in &forms {
            let some: Vec<Table> = (view.iter().filter(|table| form(table) == *own))
                .take(TABLES_MAX)
                .map(|table| Table { padding: None, hot: None, ..*table })
                .collect();
            let pooling = LOOKUPS / SAMPLES / some.len();
            let shape = Shape { batches: 1, batch: SAMPLES, pooling };
            let rows: Vec<usize> = some.iter().map(|table| table.rows).collect();
            let lookups = Lookups::draw(Hotness::Random, &rows, shape, 0);
            let fetched = |prefetch: Prefetch| -> Vec<Table> {
                some.iter().map(|table| Table { prefetch, ..*table }).collect()
            };
            let best = meter.search(fetched, &lookups, seconds / forms.len() as f64)?;
            for (planned, table) in plan.tables.iter_mut().zip(&view) {
                if form(table) == *own {
                    planned.prefetch = best;
                }
            }
        }
        Ok(plan)
    }
}
