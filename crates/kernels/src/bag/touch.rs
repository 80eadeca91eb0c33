//! The limit that a lookup is measured against: every row read in full, once, in the order of the
//! bags, from addresses that are known beforehand; nothing is written.

use rayon::prelude::*;

use super::kernel::{Mode, Target, pool};
use super::prefetch::Prefetch;
use super::resolve::{Bag, Scratch, resolve};
use super::{Bags, Dtype, Error, OutOfRange, Settings, Table, check_bags, check_tables, items};
use crate::detect::Isa;

/// The rows of one call, ready to be touched.
pub struct Touch<'a> {
    /// The same tables, their rows taken as plain bytes.
    raw: Vec<Table<'a>>,
    items: Vec<Scratch>,
    isa: Isa,
}

// SAFETY: the addresses in the lists point into tables that are borrowed for as long as this lives,
// and are only read.
unsafe impl Sync for Touch<'_> {}
// SAFETY: as above.
unsafe impl Send for Touch<'_> {}

impl<'a> Touch<'a> {
    pub fn new(tables: &[Table<'a>], bags: &Bags, isa: Isa) -> Result<Self, Error> {
        check_tables(tables)?;
        check_bags(tables, bags)?;
        let isa = isa.lowered();
        let out_of_range = OutOfRange::Error;
        let settings = Settings { isa, out_of_range };
        let mut lists = Vec::new();
        for item in items(tables.len(), bags, rayon::current_num_threads()) {
            let mut list = Scratch::default();
            resolve(tables, bags, &item, &settings, &mut list)?;
            list.bags = merged(&list.bags);
            lists.push(list);
        }
        let as_bytes = |t: &Table<'a>| {
            let dim = (t.dtype.row_bytes(t.dim) / 4).max(1);
            Table { dtype: Dtype::F32, dim, params: &[], hot: None, ..*t }
        };
        Ok(Self { raw: tables.iter().map(as_bytes).collect(), items: lists, isa })
    }

    /// Reads all rows, on the threads of the rayon pool that this is called in.
    pub fn run(&self, prefetch: Prefetch) {
        let fetched = |t: &Table<'a>| Table { prefetch, ..*t };
        let raw: Vec<Table> = self.raw.iter().map(fetched).collect();
        (0..self.items.len()).into_par_iter().for_each(|item| self.read(&raw, item));
    }

    fn read(&self, raw: &[Table], item: usize) {
        let modes = vec![Mode::Sum; raw.len()];
        let mut sink = vec![0.0f32; raw.iter().map(|t| t.dim).max().unwrap_or(0)];
        let target = Target::f32(&mut sink);
        // SAFETY: the addresses are those of whole rows, which `raw` says the bytes of; all bags
        // are written over each other, inside of the sink.
        unsafe { pool(raw, &modes, &self.items[item], &target, self.isa) };
        std::hint::black_box(sink);
    }
}

/// One bag for all that follow each other in a table: nothing is written but at its end.
fn merged(bags: &[Bag]) -> Vec<Bag> {
    let runs = bags.chunk_by(|a, b| a.table == b.table);
    let rows = |run: &[Bag]| run.iter().map(|bag| bag.rows).sum();
    runs.map(|run| Bag { rows: rows(run), out: 0, scale: 1.0, ..run[0] }).collect()
}
