//! The reference that a lookup is measured against: the same ids are turned into addresses, and
//! every row is read in full, once, in the order of the bags. Nothing is scaled or written, and
//! no scale is read. It walks the same lists by the same code as a lookup, so that a lookup does
//! everything that it does and more: only noise makes it slower than the lookup.

use std::ops::Range;

use super::kernel::Target;
use super::prefetch::Prefetch;
use super::resolve::Scratch;
use super::{Bags, Dtype, Error, Pooling, Prepared, Table};
use crate::detect::Isa;

/// Tables whose rows are only read.
pub struct Touch<'a> {
    /// The same tables, their rows taken as plain numbers.
    raw: Prepared<'a>,
}

impl<'a> Touch<'a> {
    pub fn new(tables: &[Table<'a>], prefetch: Prefetch, isa: Isa) -> Result<Self, Error> {
        let raw = tables.iter().map(|table| Table { prefetch, ..as_numbers(table) }).collect();
        Ok(Self { raw: Prepared::new(raw, Vec::new(), isa)? })
    }

    /// Reads all rows of some samples, on this thread.
    pub fn run(
        &self,
        bags: &Bags,
        samples: Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let bags = Bags { weights: None, ..*bags };
        bags.check(self.raw.tables().len())?;
        let widest = self.raw.tables().iter().map(|t| t.dim).max().unwrap_or(0);
        let mut sink = std::mem::take(&mut scratch.sink);
        sink.resize(sink.len().max(widest), 0.0);
        let mut lookup = self.raw.touch(scratch, Target::new(&mut sink));
        let result = lookup.add_samples(&bags, samples, 0);
        lookup.finish();
        std::hint::black_box(&mut sink);
        scratch.sink = sink;
        result.map(|_| ())
    }
}

/// The same rows as floating-point numbers that fill them exactly: all sizes of rows are even.
fn as_numbers<'a>(table: &Table<'a>) -> Table<'a> {
    let bytes = table.dtype.row_bytes(table.dim);
    let dtype = if bytes.is_multiple_of(4) { Dtype::F32 } else { Dtype::F16 };
    let dim = bytes / dtype.row_bytes(1);
    Table { dtype, dim, params: &[], pooling: Pooling::Sum, ..*table }
}

/// Joins all bags that follow each other in a table, and sends their result to the start of the sink.
pub(super) fn merge(scratch: &mut Scratch) {
    scratch.bags.dedup_by(|next, kept| {
        let same = next.table == kept.table;
        kept.rows += if same { next.rows } else { 0 };
        same
    });
    scratch.bags.iter_mut().for_each(|bag| (bag.out, bag.scale) = (0, 1.0));
}
