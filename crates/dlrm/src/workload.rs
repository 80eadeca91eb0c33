//! What a file of requests asks of a model: bags of ids batch by batch, and how hot each table's
//! rows are. A batch size that neither the file nor the caller tells is an error, not a guess:
//! bags that are cut wrongly look up the ids of one table in another.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use hither_data::{Columns, IdTrace};

use crate::Error;
use crate::hotness::Histogram;
use crate::model::{Spec, TableSpec};

/// Samples per batch where neither the file nor the caller cares.
pub const BATCH: usize = 64;

/// How a trace is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Samples per batch; must be that of the file, where the file has one.
    pub batch: Option<usize>,
    /// Ids per bag, if the trace itself has no bags.
    pub pooling: usize,
    /// Take ids modulo a table's rows instead of refusing them.
    pub wrap: bool,
}

/// The bags of some tables: those of a batch's first table come first, as the kernels take them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    pub ids: Vec<i64>,
    pub offsets: Vec<i64>,
    /// One per id, where the trace has weights.
    pub weights: Option<Vec<f32>>,
}

/// A trace of ids, seen as requests to a model.
pub struct Workload<'a> {
    trace: &'a IdTrace,
    spec: &'a Spec,
    reading: Reading,
    /// Samples per batch.
    batch: usize,
    /// Samples whose bags the file has together, table by table: a batch, or a single sample.
    stored: usize,
}

/// An id that its table does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadId {
    pub sample: usize,
    pub table: usize,
    pub id: i64,
    /// Its place in the trace.
    pub position: usize,
}

impl Spec {
    /// What a sample of this model consists of.
    pub fn columns(&self) -> Columns {
        let tables = self.tables.iter().map(|table| table.name.clone()).collect();
        Columns { dense: self.dense_features(), tables }
    }
}

impl<'a> Workload<'a> {
    /// A trace with bags has them sample by sample, or for each batch table by table. One without
    /// is read circularly: over the tables of a batch, then on in the next batch.
    pub fn new(trace: &'a IdTrace, spec: &'a Spec, reading: Reading) -> Result<Self, Error> {
        let tables = spec.tables.len();
        if let Some(found) = trace.tables.filter(|found| *found != tables) {
            return Err(Error::TraceTables { found, tables });
        }
        if let (Some(file), Some(asked)) = (trace.batch, reading.batch)
            && file != asked
        {
            return Err(Error::TraceBatch { file, asked });
        }
        let known = reading.batch.or(trace.batch);
        let mut workload = Self { trace, spec, reading, batch: known.unwrap_or(BATCH), stored: 1 };
        if let Some(offsets) = &trace.offsets {
            let bags = offsets.len().saturating_sub(1);
            if bags == 0 || !bags.is_multiple_of(tables.max(1)) {
                return Err(Error::TraceBags { found: bags, tables });
            }
            let samples = bags / tables;
            // Bags of one table come in the same order however they are cut.
            if !trace.by_sample && tables > 1 {
                let one_way = (samples == 1).then_some(1);
                let Some(batch) = known.or(one_way) else {
                    return Err(Error::BatchUnknown { bags, tables, samples });
                };
                if !samples.is_multiple_of(batch) {
                    return Err(Error::TraceCut { samples, tables, batch });
                }
                workload.stored = batch;
            }
            match known {
                Some(batch) if batch > samples => {
                    return Err(Error::TraceCut { samples, tables, batch });
                }
                _ => workload.batch = workload.batch.min(samples),
            }
        }
        workload.check_dense()?;
        Ok(workload)
    }

    fn check_dense(&self) -> Result<(), Error> {
        let Some(dense) = &self.trace.dense else { return Ok(()) };
        let (rows, width) = (dense.rows, dense.width);
        let inputs = self.spec.dense_features();
        match self.samples() {
            None => Err(Error::DenseWithoutBags { rows }),
            Some(samples) if samples != rows => Err(Error::DenseRows { rows, samples }),
            Some(_) if width != inputs => Err(Error::DenseWidth { width, inputs }),
            Some(_) => Ok(()),
        }
    }

    /// Samples per batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Samples of the trace; `None` for a plain list of ids.
    pub fn samples(&self) -> Option<usize> {
        let bags = self.trace.offsets.as_ref()?.len() - 1;
        Some(bags / self.spec.tables.len().max(1))
    }

    /// Samples behind the last whole batch, which only files that go sample by sample can have.
    pub fn left_over(&self) -> usize {
        self.samples().map_or(0, |samples| samples % self.batch)
    }

    /// Dense features of some samples.
    pub fn dense(&self, samples: Range<usize>) -> Option<&'a [f32]> {
        let dense = self.trace.dense.as_ref()?;
        dense.values.get(samples.start * dense.width..samples.end * dense.width)
    }

    /// Batches that are not repetitions.
    fn batches(&self) -> usize {
        match self.samples() {
            Some(samples) => samples / self.batch,
            None => {
                let per_batch = self.spec.tables.len() * self.batch * self.reading.pooling;
                self.trace.ids.len().div_ceil(per_batch.max(1))
            }
        }
    }

    /// Lookups per batch in one table, on average.
    pub fn lookups_per_batch(&self) -> f64 {
        match self.samples() {
            Some(samples) => {
                let bags = (samples * self.spec.tables.len()).max(1) as f64;
                self.trace.ids.len() as f64 / bags * self.batch as f64
            }
            None => (self.batch * self.reading.pooling) as f64,
        }
    }

    /// How hot each table's rows are. All tables of equal form share one where the trace has no
    /// bags: each of them will be asked for all of it.
    pub fn histograms(&self) -> Result<Vec<Arc<Histogram>>, Error> {
        self.check_ids()?;
        let each = self.spec.tables.iter().enumerate();
        let Some(samples) = self.samples() else {
            let mut known = BTreeMap::new();
            let shared = |(_, table): (usize, &TableSpec)| {
                let made =
                    || Arc::new(Histogram::new(self.rows_of(table, &self.trace.ids).collect()));
                Arc::clone(known.entry((table.rows, table.padding)).or_insert_with(made))
            };
            return Ok(each.map(shared).collect());
        };
        let own = |(t, table): (usize, &TableSpec)| {
            let bags = (0..samples).map(|sample| self.bag(sample, t));
            let rows = bags.flat_map(|bag| self.rows_of(table, &self.trace.ids[bag]));
            Arc::new(Histogram::new(rows.collect()))
        };
        Ok(each.map(own).collect())
    }

    /// Refuses ids that their tables do not have, unless ids are wrapped.
    pub fn check_ids(&self) -> Result<(), Error> {
        let Some(BadId { table, id, position, .. }) = self.bad_id() else { return Ok(()) };
        let TableSpec { name, rows, .. } = &self.spec.tables[table];
        // Otherwise the batch cannot be the reason.
        let by_batch = self.trace.offsets.is_some() && !self.trace.by_sample;
        let batch = (by_batch && self.spec.tables.len() > 1).then_some(self.batch);
        Err(Error::TraceId { id, position, table: name.clone(), rows: *rows, batch })
    }

    /// The first id, table by table, that its table does not have.
    pub fn bad_id(&self) -> Option<BadId> {
        let is_bad = |table: &TableSpec, id: i64| {
            let counts = id != -1 && table.padding != Some(id) && !self.reading.wrap;
            counts && usize::try_from(id).map_or(true, |row| row >= table.rows)
        };
        for (t, table) in self.spec.tables.iter().enumerate() {
            let first_bad = |range: Range<usize>| {
                let at = self.trace.ids[range.clone()].iter().position(|id| is_bad(table, *id))?;
                Some(range.start + at)
            };
            let found = match self.samples() {
                Some(samples) => {
                    (0..samples).find_map(|sample| Some((sample, first_bad(self.bag(sample, t))?)))
                }
                None => first_bad(0..self.trace.ids.len()).map(|position| (0, position)),
            };
            if let Some((sample, position)) = found {
                return Some(BadId { sample, table: t, id: self.trace.ids[position], position });
            }
        }
        None
    }

    /// Rows that are really read: neither padding nor pruned ones.
    fn rows_of<'b>(&self, table: &'b TableSpec, ids: &'b [i64]) -> impl Iterator<Item = u32> + 'b {
        let wrap = self.reading.wrap;
        let read = |id: &&i64| **id != -1 && table.padding != Some(**id);
        ids.iter().filter(read).map(move |id| wrapped(wrap, table, *id) as u32)
    }

    /// Where the ids of a bag stand in a trace with bags.
    fn bag(&self, sample: usize, table: usize) -> Range<usize> {
        let offsets = self.trace.offsets.as_deref().unwrap_or_default();
        let (block, within) = (sample / self.stored, sample % self.stored);
        let bag = (block * self.spec.tables.len() + table) * self.stored + within;
        offsets[bag] as usize..offsets[bag + 1] as usize
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

    /// The requests of all tables: every batch of a trace with bags, `batches` of one without.
    pub fn first(&self, batches: usize) -> Vec<Requests> {
        let tables: Vec<usize> = (0..self.spec.tables.len()).collect();
        let count = if self.trace.offsets.is_some() { self.batches() } else { batches };
        (0..count).map(|batch| self.requests_of(batch, &tables)).collect()
    }

    /// The bags of all tables of some samples of a trace with bags.
    pub fn of_samples(&self, samples: Range<usize>) -> Requests {
        let tables: Vec<usize> = (0..self.spec.tables.len()).collect();
        self.bags_of(samples, &tables)
    }

    fn bags_of(&self, samples: Range<usize>, tables: &[usize]) -> Requests {
        let weights = self.trace.weights.as_deref();
        let mut requests =
            Requests { ids: Vec::new(), offsets: vec![0], weights: weights.map(|_| Vec::new()) };
        for &t in tables {
            let table = &self.spec.tables[t];
            for sample in samples.clone() {
                let bag = self.bag(sample, t);
                if let Some((to, from)) = requests.weights.as_mut().zip(weights) {
                    to.extend_from_slice(&from[bag.clone()]);
                }
                let ids = self.trace.ids[bag].iter();
                requests.ids.extend(ids.map(|id| wrapped(self.reading.wrap, table, *id)));
                requests.offsets.push(requests.ids.len() as i64);
            }
        }
        requests
    }

    fn requests_of(&self, batch: usize, tables: &[usize]) -> Requests {
        if self.trace.offsets.is_some() {
            return self.bags_of(batch * self.batch..(batch + 1) * self.batch, tables);
        }
        let (mut requests, pooling) = (Requests::default(), self.reading.pooling);
        requests.offsets.push(0);
        let ids = &self.trace.ids;
        for &t in tables {
            let table = &self.spec.tables[t];
            let place = batch as u128 * self.spec.tables.len() as u128 + t as u128;
            let first = (place * (self.batch * pooling) as u128 % ids.len() as u128) as usize;
            let circle = ids[first..].iter().chain(ids.iter().cycle());
            let taken = circle.take(self.batch * pooling);
            let start = requests.ids.len() as i64;
            requests.ids.extend(taken.map(|id| wrapped(self.reading.wrap, table, *id)));
            let bags = 1..=self.batch as i64;
            requests.offsets.extend(bags.map(|bag| start + bag * pooling as i64));
        }
        requests
    }
}

fn wrapped(wrap: bool, table: &TableSpec, id: i64) -> i64 {
    let keep = !wrap || id == -1 || table.padding == Some(id);
    if keep { id } else { id.rem_euclid(table.rows as i64) }
}
