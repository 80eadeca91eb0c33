//! Lookups alone, on several threads: what plans and benches measure.

use std::sync::{Mutex, PoisonError};

use hither_kernels::bag::touch::Touch;
use hither_kernels::bag::{Bags, Error as BagError, Prepared, Scratch};
use hither_kernels::threads::{Pinning, Threads};

use crate::Error;

/// The calling thread, and others that help it.
pub struct Crew {
    own: Scratch,
    helpers: Threads<Scratch>,
}

/// Parts per thread, so that none waits long for the last.
const PARTS_PER_THREAD: usize = 8;
/// Up to this many ids per bag a part has few samples: results are written front to back.
const SHORT_BAG_IDS: usize = 4;
/// Samples of such a part have about so many rows.
const SHORT_PART_ROWS: usize = 1024;

impl Crew {
    /// A crew of `count` threads, the caller's among them.
    pub fn new(count: usize) -> Result<Self, Error> {
        let helpers = Threads::new(count.saturating_sub(1), Pinning::Free);
        let problem = |error: std::io::Error| Error::Threads { problem: error.to_string() };
        Ok(Self { own: Scratch::default(), helpers: helpers.map_err(problem)? })
    }

    pub fn count(&self) -> usize {
        self.helpers.count() + 1
    }

    /// Pools all bags into `out`.
    pub fn pool(&mut self, tables: &Prepared, bags: &Bags, out: &mut [f32]) -> Result<(), Error> {
        bags.check(tables.tables().len())?;
        let width = tables.width();
        if out.len() != bags.batch * width {
            return Err(BagError::Output { expected: bags.batch * width, found: out.len() }.into());
        }
        let part = self.part_samples(tables, bags);
        let first_error = Mutex::new(Ok(()));
        let work = |index: usize, out: &mut [f32], scratch: &mut Scratch| {
            let samples = index * part..index * part + out.len() / width;
            let mut lookup = tables.lookup(scratch, out);
            let result = lookup.add_samples(bags, samples, 0);
            lookup.finish();
            keep_error(&first_error, result.map(|_| ()));
        };
        let (helpers, len) = (self.helpers.count(), (part * width).max(1));
        self.helpers.split_chunks(&mut self.own, out, len, helpers, &work);
        Ok(first_error.into_inner().unwrap_or_else(PoisonError::into_inner)?)
    }

    /// Reads all rows and does nothing else.
    pub fn touch(&mut self, touch: &Touch, tables: &Prepared, bags: &Bags) -> Result<(), Error> {
        let part = self.part_samples(tables, bags);
        let first_error = Mutex::new(Ok(()));
        let work = |index: usize, scratch: &mut Scratch| {
            let samples = index * part..(index * part + part).min(bags.batch);
            keep_error(&first_error, touch.run(bags, samples, scratch));
        };
        let (helpers, parts) = (self.helpers.count(), bags.batch.div_ceil(part));
        self.helpers.split(&mut self.own, parts, helpers, &work);
        Ok(first_error.into_inner().unwrap_or_else(PoisonError::into_inner)?)
    }

    fn part_samples(&self, tables: &Prepared, bags: &Bags) -> usize {
        let (ids, threads) = (bags.ids.len(), self.count());
        let is_short = ids <= SHORT_BAG_IDS * tables.tables().len() * bags.batch;
        let by_rows = (SHORT_PART_ROWS * bags.batch).checked_div(ids).unwrap_or(bags.batch);
        match (threads, is_short) {
            // One thread needs no parts: a lookup takes few samples at a time by itself.
            (1, _) => bags.batch,
            (_, true) => by_rows.min(bags.batch.div_ceil(threads)),
            (_, false) => bags.batch.div_ceil(threads * PARTS_PER_THREAD),
        }
        .max(1)
    }
}

fn keep_error(first: &Mutex<Result<(), BagError>>, result: Result<(), BagError>) {
    if result.is_err() {
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_ok() {
            *first = result;
        }
    }
}
