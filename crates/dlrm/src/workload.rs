//! What a trace of ids asks of a model: requests, batch by batch, and how hot each table's rows are.

use std::collections::BTreeMap;
use std::sync::Arc;

use hither_data::IdTrace;

use crate::Error;
use crate::hotness::Histogram;
use crate::model::{Spec, TableSpec};

/// How a trace is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Samples of a batch.
    pub batch: usize,
    /// Ids of a bag, where the trace itself has no bags.
    pub pooling: usize,
    /// Take ids modulo a table's rows, not as errors.
    pub wrap: bool,
}

/// The bags of some tables: those of a batch's first table come first, as the kernels take them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub ids: Vec<i64>,
    pub offsets: Vec<i64>,
}

pub struct Workload<'a> {
    trace: &'a IdTrace,
    spec: &'a Spec,
    reading: Reading,
}

impl<'a> Workload<'a> {
    /// A trace with bags has for each batch the bags of all tables, table by table. One without is
    /// read circularly: over the tables of a batch, then on in the next batch.
    pub fn new(trace: &'a IdTrace, spec: &'a Spec, reading: Reading) -> Result<Self, Error> {
        let bags = spec.tables.len().saturating_mul(reading.batch);
        if let Some(offsets) = &trace.offsets
            && (offsets.len() < 2 || !(offsets.len() - 1).is_multiple_of(bags.max(1)))
        {
            let (tables, batch) = (spec.tables.len(), reading.batch);
            return Err(Error::TraceBags { found: offsets.len() - 1, tables, batch });
        }
        Ok(Self { trace, spec, reading })
    }

    pub fn batch(&self) -> usize {
        self.reading.batch
    }

    /// Batches that are not repetitions.
    fn batches(&self) -> usize {
        let bags = self.spec.tables.len() * self.reading.batch;
        match &self.trace.offsets {
            Some(offsets) => (offsets.len() - 1) / bags,
            None => self.trace.ids.len().div_ceil(bags * self.reading.pooling),
        }
    }

    /// Lookups of one batch in one table, on average.
    pub fn lookups_a_batch(&self) -> f64 {
        match &self.trace.offsets {
            Some(_) => {
                let tables = (self.batches() * self.spec.tables.len()) as f64;
                self.trace.ids.len() as f64 / tables
            }
            None => (self.reading.batch * self.reading.pooling) as f64,
        }
    }

    /// How hot each table's rows are. All tables of equal form share one where the trace has no
    /// bags: each of them will be asked for all of it.
    pub fn histograms(&self) -> Result<Vec<Arc<Histogram>>, Error> {
        if self.trace.offsets.is_none() {
            let mut known = BTreeMap::new();
            let shared = |table: &TableSpec| {
                let form = (table.rows, table.padding);
                if let Some(histogram) = known.get(&form) {
                    return Ok(Arc::clone(histogram));
                }
                let histogram = Arc::new(self.histogram(table, 0, &self.trace.ids)?);
                known.insert(form, Arc::clone(&histogram));
                Ok(histogram)
            };
            return self.spec.tables.iter().map(shared).collect();
        }
        let each = self.spec.tables.iter().enumerate();
        each.map(|(t, table)| {
            let mut rows = Vec::new();
            for batch in 0..self.batches() {
                let range = self.range(batch, t);
                self.rows_of(table, range.start, &self.trace.ids[range], &mut rows)?;
            }
            Ok(Arc::new(Histogram::new(rows)))
        })
        .collect()
    }

    fn histogram(&self, table: &TableSpec, start: usize, ids: &[i64]) -> Result<Histogram, Error> {
        let mut rows = Vec::with_capacity(ids.len());
        self.rows_of(table, start, ids, &mut rows)?;
        Ok(Histogram::new(rows))
    }

    /// Rows that are really read: neither padding nor pruned ones.
    fn rows_of(
        &self,
        table: &TableSpec,
        start: usize,
        ids: &[i64],
        rows: &mut Vec<u32>,
    ) -> Result<(), Error> {
        for (i, id) in ids.iter().enumerate() {
            if *id == -1 || table.padding == Some(*id) {
                continue;
            }
            match usize::try_from(self.wrapped(table, *id)) {
                Ok(row) if row < table.rows => rows.push(row as u32),
                _ => {
                    let (table, rows) = (table.name.clone(), table.rows);
                    return Err(Error::TraceId { id: *id, position: start + i, table, rows });
                }
            }
        }
        Ok(())
    }

    fn wrapped(&self, table: &TableSpec, id: i64) -> i64 {
        let keep = !self.reading.wrap || id == -1 || table.padding == Some(id);
        if keep { id } else { id.rem_euclid(table.rows as i64) }
    }

    /// Where the ids of a table's bags of a batch stand in a trace with bags.
    fn range(&self, batch: usize, table: usize) -> std::ops::Range<usize> {
        let offsets = self.trace.offsets.as_deref().unwrap_or_default();
        let first = (batch * self.spec.tables.len() + table) * self.reading.batch;
        offsets[first] as usize..offsets[first + self.reading.batch] as usize
    }

    /// The requests of some tables, of as many batches as it takes to have `lookups`.
    pub fn requests(&self, tables: &[usize], lookups: usize) -> Vec<Requests> {
        let mut batches = Vec::new();
        let mut found = 0;
        let wanted = match self.trace.offsets {
            Some(_) => self.batches(),
            None => usize::MAX,
        };
        while batches.len() < wanted && (found < lookups || batches.is_empty()) {
            let requests = self.requests_of(batches.len(), tables);
            // Bags may all be empty.
            found += requests.ids.len().max(1);
            batches.push(requests);
        }
        batches
    }

    /// The requests of all tables: every batch of a trace with bags, of one without as many as asked.
    pub fn first(&self, batches: usize) -> Vec<Requests> {
        let tables: Vec<usize> = (0..self.spec.tables.len()).collect();
        let count = if self.trace.offsets.is_some() { self.batches() } else { batches };
        (0..count).map(|batch| self.requests_of(batch, &tables)).collect()
    }

    fn requests_of(&self, batch: usize, tables: &[usize]) -> Requests {
        let mut requests = Requests { ids: Vec::new(), offsets: vec![0] };
        let Reading { batch: samples, pooling, .. } = self.reading;
        for &t in tables {
            let table = &self.spec.tables[t];
            let start = requests.ids.len() as i64;
            match &self.trace.offsets {
                Some(offsets) => {
                    let range = self.range(batch, t);
                    let first = (batch * self.spec.tables.len() + t) * samples;
                    let ends = &offsets[first + 1..=first + samples];
                    let moved = start - range.start as i64;
                    requests.offsets.extend(ends.iter().map(|end| end + moved));
                    let ids = self.trace.ids[range].iter();
                    requests.ids.extend(ids.map(|id| self.wrapped(table, *id)));
                }
                None => {
                    let ids = &self.trace.ids;
                    let place = batch as u128 * self.spec.tables.len() as u128 + t as u128;
                    let first = (place * (samples * pooling) as u128 % ids.len() as u128) as usize;
                    let circle = ids[first..].iter().chain(ids.iter().cycle());
                    let taken = circle.take(samples * pooling);
                    requests.ids.extend(taken.map(|id| self.wrapped(table, *id)));
                    let bags = 1..=samples as i64;
                    requests.offsets.extend(bags.map(|bag| start + bag * pooling as i64));
                }
            }
        }
        requests
    }
}
