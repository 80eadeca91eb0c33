//! Lookups alone, in the parts that the engine takes: what plans and benches measure.

use std::sync::{Mutex, PoisonError};

use hither_kernels::bag::touch::Touch;
use hither_kernels::bag::{Bags, Error as BagError, Prepared, Scratch};
use hither_kernels::threads::{Pinning, Threads};

use crate::Error;
use crate::run::part_samples;

/// The calling thread, and others that help it.
pub struct Crew {
    own: Scratch,
    helpers: Threads<Scratch>,
}

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
        let part = part_samples(bags.batch, bags.ids.len(), self.count());
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
    pub fn touch(&mut self, touch: &Touch, bags: &Bags) -> Result<(), Error> {
        let part = part_samples(bags.batch, bags.ids.len(), self.count());
        let first_error = Mutex::new(Ok(()));
        let work = |index: usize, scratch: &mut Scratch| {
            let samples = index * part..(index * part + part).min(bags.batch);
            keep_error(&first_error, touch.run(bags, samples, scratch));
        };
        let (helpers, parts) = (self.helpers.count(), bags.batch.div_ceil(part));
        self.helpers.split(&mut self.own, parts, helpers, &work);
        Ok(first_error.into_inner().unwrap_or_else(PoisonError::into_inner)?)
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
