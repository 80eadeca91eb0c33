//! The reference that a lookup is measured against: the same ids are turned into addresses, and
//! every row is read in full, once, in the order of the bags. Nothing is scaled or written, and
//! no scale is read. It walks the same items by the same code as a lookup, so that a lookup does
//! everything that it does and more: only noise makes it slower than the lookup.

use super::kernel::{Mode, Target, pool};
use super::prefetch::Prefetch;
use super::resolve::{Scratch, resolve};
use super::{Bags, Dtype, Error, OutOfRange, Settings, Table, check_bags, check_tables, run_items};
use crate::detect::Isa;

/// The rows of one call, ready to be touched.
pub struct Touch<'a> {
    /// The same tables, their rows taken as plain bytes.
    raw: Vec<Table<'a>>,
    bags: Bags<'a>,
    isa: Isa,
}

impl<'a> Touch<'a> {
    pub fn new(tables: &[Table<'a>], bags: Bags<'a>, isa: Isa) -> Result<Self, Error> {
        let raw: Vec<Table> = tables.iter().map(as_bytes).collect();
        let bags = Bags { weights: None, ..bags };
        check_tables(&raw)?;
        check_bags(&raw, &bags)?;
        Ok(Self { raw, bags, isa: isa.lowered() })
    }

    /// Reads all rows, on the threads of the rayon pool that this is called in.
    pub fn run(&self, prefetch: Prefetch) -> Result<(), Error> {
        let raw: Vec<Table> = self.raw.iter().map(|t| Table { prefetch, ..*t }).collect();
        let modes = vec![Mode::Sum; raw.len()];
        let width = raw.iter().map(|t| t.dim).max().unwrap_or(0);
        let settings = Settings { isa: self.isa, out_of_range: OutOfRange::Error };
        run_items(&raw, &self.bags, |item, scratch| {
            resolve(&raw, &self.bags, &item, &settings, scratch)?;
            merge(scratch);
            let mut sink = vec![0.0f32; width];
            let target = Target::new(&mut sink);
            // SAFETY: `resolve` wrote only addresses of whole rows of `raw`; all bags are written
            // over each other at the start of the sink, which is as wide as the widest table.
            unsafe { pool(&raw, &modes, scratch, &target, self.isa) };
            std::hint::black_box(sink);
            Ok(0)
        })?;
        Ok(())
    }
}

/// The same rows as floating-point numbers that fill them exactly: all sizes of rows are even.
fn as_bytes<'a>(table: &Table<'a>) -> Table<'a> {
    let bytes = table.dtype.row_bytes(table.dim);
    let dtype = if bytes.is_multiple_of(4) { Dtype::F32 } else { Dtype::F16 };
    let dim = bytes / dtype.row_bytes(1);
    Table { dtype, dim, params: &[], ..*table }
}

/// One bag for all that follow each other in a table: nothing is written but at its end.
fn merge(scratch: &mut Scratch) {
    scratch.bags.dedup_by(|next, kept| {
        let same = next.table == kept.table;
        kept.rows += if same { next.rows } else { 0 };
        same
    });
    scratch.bags.iter_mut().for_each(|bag| (bag.out, bag.scale) = (0, 1.0));
}
