//! Tables that were checked once, and lookups in them.
//!
//! Checking tables, adding up widths and choosing kernels is done by [`Prepared::new`], not by every
//! call. A [`Lookup`] then takes the bags of any number of requests, one table and some samples at a
//! time, each where its sender laid it out: requests that share a batch are not copied together. It
//! runs on the thread that calls it, with a scratch that the caller keeps, and allocates nothing once
//! the scratch has grown to the largest lookup.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use super::kernel::{self, Target};
use super::resolve::{self, Place, Scratch};
use super::{Bags, Error, Ids, OutOfRange, Pooling, Table};
use crate::detect::Isa;

/// Tables that passed all checks, and what follows from them.
#[derive(Clone)]
pub struct Prepared<'a> {
    tables: Vec<Table<'a>>,
    /// Where each table's results begin in a sample's output.
    columns: Vec<usize>,
    /// One per table.
    out_of_range: Vec<OutOfRange>,
    width: usize,
    isa: Isa,
}

/// The bags of one table: bag `b` has the ids from `offsets[b]` to `offsets[b + 1]`.
#[derive(Clone, Copy, Debug)]
pub struct TableBags<'a> {
    pub ids: Ids<'a>,
    /// One more than there are bags. They never fall, and none is greater than the number of ids.
    pub offsets: &'a [i64],
    /// One per id; for sums and means.
    pub weights: Option<&'a [f32]>,
}

/// A lookup in progress. Bags that were added are pooled, at the latest, by [`Lookup::finish`].
pub struct Lookup<'l> {
    prepared: &'l Prepared<'l>,
    scratch: &'l mut Scratch,
    target: Target<'l>,
    /// Rows are only read, and the output is a sink as wide as the widest table.
    is_touch: bool,
}

/// Rows that are pooled in one go: their list of addresses stays in the second-level cache, and the
/// prefetches that a list begins and ends without are few among its own.
const ROWS_AT_ONCE: usize = 4096;

impl<'a> Prepared<'a> {
    /// Checks the tables. `out_of_range` has one reaction per table, or is empty: then an id that no
    /// row has is an error. More than the processor has is not used, whatever `isa` says.
    pub fn new(
        tables: Vec<Table<'a>>,
        mut out_of_range: Vec<OutOfRange>,
        isa: Isa,
    ) -> Result<Self, Error> {
        super::check_tables(&tables)?;
        out_of_range.resize(tables.len(), OutOfRange::Error);
        let mut width = 0;
        let column = |table: &Table| {
            let column = width;
            width += table.dim;
            column
        };
        let columns = tables.iter().map(column).collect();
        Ok(Self { tables, columns, out_of_range, width, isa: isa.lowered() })
    }

    pub fn tables(&self) -> &[Table<'a>] {
        &self.tables
    }

    /// Elements of a sample's pooled rows.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The instruction set that runs.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Begins a lookup whose results go to `out`, of [`Prepared::width`] elements per sample.
    pub fn lookup<'l>(&'l self, scratch: &'l mut Scratch, out: &'l mut [f32]) -> Lookup<'l> {
        self.lookup_into(scratch, Target::new(out))
    }

    fn lookup_into<'l>(&'l self, scratch: &'l mut Scratch, target: Target<'l>) -> Lookup<'l> {
        scratch.clear();
        Lookup { prepared: self, scratch, target, is_touch: false }
    }

    /// Begins a lookup that reads rows and keeps no results.
    pub(super) fn touch<'l>(&'l self, scratch: &'l mut Scratch, sink: Target<'l>) -> Lookup<'l> {
        Lookup { is_touch: true, ..self.lookup_into(scratch, sink) }
    }

    /// Pools all bags into `out` on this thread. Returns how many ids were clamped.
    ///
    /// The bags of the first error, in the order of tables and samples, are told.
    pub fn pool(&self, bags: &Bags, out: &mut [f32], scratch: &mut Scratch) -> Result<u64, Error> {
        bags.check(self.tables.len())?;
        if out.len() != bags.batch * self.width {
            return Err(Error::Output { expected: bags.batch * self.width, found: out.len() });
        }
        let mut lookup = self.lookup(scratch, out);
        let clamped = lookup.add_samples(bags, 0..bags.batch, 0)?;
        lookup.finish();
        Ok(clamped)
    }

    /// Whether every id of one table's bags is one of its rows, its padding or pruned, or is clamped;
    /// and whether offsets and weights are as [`Lookup::add`] wants them.
    pub fn check(&self, table: usize, bags: &TableBags) -> Result<(), Error> {
        let t = &self.tables[table];
        let samples = 0..bags.offsets.len().saturating_sub(1);
        bags.check(table, t, &samples)?;
        bags.check_order(table, &samples)?;
        if self.out_of_range[table] == OutOfRange::Clamp {
            return Ok(());
        }
        let (Some(first), Some(last)) = (bags.offsets.first(), bags.offsets.last()) else {
            return Ok(());
        };
        let range = *first as usize..*last as usize;
        match resolve::find_bad(t, bags.ids, range) {
            None => Ok(()),
            Some((position, id)) => Err(Error::OutOfRange { table, position, id, rows: t.rows }),
        }
    }
}

impl Lookup<'_> {
    /// Adds all tables' bags of some samples of a call, whose results begin with sample `place`.
    pub fn add_samples(
        &mut self,
        bags: &Bags,
        samples: Range<usize>,
        place: usize,
    ) -> Result<u64, Error> {
        let mut clamped = 0;
        for table in 0..self.prepared.tables.len() {
            clamped += self.add(table, &bags.table(table), samples.clone(), place)?;
        }
        Ok(clamped)
    }

    /// Adds the bags of some samples of one table; the results of the first go to sample `place` of
    /// the output. Returns how many ids were clamped. After an error the results of these samples in
    /// this table are undefined; what was added before, and what is added later, is not affected.
    ///
    /// # Panics
    /// If there is no such table, or the output does not have these samples or this table.
    pub fn add(
        &mut self,
        table: usize,
        bags: &TableBags,
        samples: Range<usize>,
        place: usize,
    ) -> Result<u64, Error> {
        let Prepared { tables, columns, out_of_range, width, isa } = self.prepared;
        let t = &tables[table];
        bags.check(table, t, &samples)?;
        let begin = columns[table];
        let end = match self.is_touch {
            true => Some(t.dim),
            // The last sample's results of this table.
            false => (place + samples.len().max(1) - 1)
                .checked_mul(*width)
                .and_then(|last| last.checked_add(begin + t.dim)),
        };
        let is_inside = samples.is_empty() || end.is_some_and(|end| end <= self.target.len());
        assert!(is_inside, "results beyond the output");
        if self.scratch.is_weighted != bags.weights.is_some() {
            self.pool(&[]);
            self.scratch.is_weighted = bags.weights.is_some();
        }
        let mut clamped = 0;
        let mut first = samples.start;
        while first < samples.end {
            let last = self.fitting(bags.offsets, first..samples.end);
            let place = Place {
                table: table as u32,
                samples: first..last,
                out: (place + first - samples.start) * width + begin,
                out_step: *width,
                out_of_range: out_of_range[table],
            };
            clamped += resolve::resolve(t, bags, &place, *isa, self.scratch)?;
            if self.scratch.rows.len() >= ROWS_AT_ONCE || last < samples.end {
                self.pool(bags.ids.bytes_from(bags.offsets[last] as usize));
            }
            first = last;
        }
        Ok(clamped)
    }

    /// Pools all bags that are still waiting.
    pub fn finish(mut self) {
        self.pool(&[]);
    }

    /// The end of those samples whose rows still fit into the scratch; one at least.
    fn fitting(&self, offsets: &[i64], samples: Range<usize>) -> usize {
        let room = ROWS_AT_ONCE.saturating_sub(self.scratch.rows.len()) as i64;
        let until = offsets[samples.start].saturating_add(room);
        if offsets[samples.end] <= until {
            return samples.end;
        }
        let within = &offsets[samples.start..=samples.end];
        let bound = samples.start + within.partition_point(|offset| *offset <= until);
        (bound - 1).clamp(samples.start + 1, samples.end)
    }

    /// Pools all bags that are waiting. `later` holds the ids that will be resolved next.
    fn pool(&mut self, later: &[u8]) {
        if self.scratch.bags.is_empty() {
            return;
        }
        self.scratch.pad();
        if self.is_touch {
            super::touch::merge(self.scratch);
        }
        let Prepared { tables, isa, .. } = self.prepared;
        // SAFETY: `resolve` wrote only addresses of whole rows of `tables`; `add` saw that the bags
        // lie inside of the output, which is borrowed mutably for as long as this lookup. A touch
        // writes all bags over each other at the start of its sink, which is as wide as any table.
        unsafe { kernel::pool(tables, self.scratch, &self.target, later, *isa) };
        self.scratch.clear();
    }
}

impl<'a> Bags<'a> {
    /// The bags of one table. The call has offsets for it, as [`Bags::check`] has seen.
    pub fn table(&self, table: usize) -> TableBags<'a> {
        let offsets = &self.offsets[table * self.batch..=(table + 1) * self.batch];
        TableBags { ids: self.ids, offsets, weights: self.weights }
    }

    /// Whether offsets and weights are as a call of so many tables needs them. That offsets do not fall is
    /// checked where rows are looked up.
    pub fn check(&self, tables: usize) -> Result<(), Error> {
        let (ids, offsets, batch) = (self.ids.len(), self.offsets, self.batch);
        let expected = tables.saturating_mul(batch).saturating_add(1);
        if offsets.len() != expected {
            return Err(Error::Offsets { tables, batch, expected, found: offsets.len() });
        }
        if offsets[0] != 0 {
            return Err(Error::Offset { table: 0, position: 0, offset: offsets[0], ids });
        }
        let offset = offsets[expected - 1];
        if usize::try_from(offset) != Ok(ids) {
            return Err(Error::Offset {
                table: tables.saturating_sub(1),
                position: batch,
                offset,
                ids,
            });
        }
        check_weights(self.weights, ids)
    }
}

impl TableBags<'_> {
    /// Whether there are offsets and weights for some samples' bags, as a lookup in table number `table`
    /// wants them. Reads no array.
    pub fn check(&self, table: usize, t: &Table, samples: &Range<usize>) -> Result<(), Error> {
        let (ids, offsets) = (self.ids.len(), self.offsets);
        if samples.end >= offsets.len() || samples.start > samples.end {
            let (expected, found) = (samples.end.saturating_add(1), offsets.len());
            return Err(Error::Offsets { tables: 1, batch: samples.end, expected, found });
        }
        check_weights(self.weights, ids)?;
        match t.pooling {
            Pooling::Max if self.weights.is_some() => Err(Error::WeightedMax { table }),
            _ => Ok(()),
        }
    }

    /// Whether the offsets of some samples do not fall and lie within the ids.
    pub(super) fn check_order(&self, table: usize, samples: &Range<usize>) -> Result<(), Error> {
        let offsets = &self.offsets[samples.start..=samples.end];
        let is_inside = |offset: &i64| usize::try_from(*offset).is_ok_and(|o| o <= self.ids.len());
        let position = match first_fall(offsets) {
            _ if !is_inside(&offsets[0]) => 0,
            Some(position) => position,
            None if !is_inside(&offsets[offsets.len() - 1]) => offsets.len() - 1,
            None => return Ok(()),
        };
        let (position, offset) = (samples.start + position, offsets[position]);
        Err(Error::Offset { table, position, offset, ids: self.ids.len() })
    }
}

/// The place of the first offset that is less than the one before it.
#[inline(always)]
fn first_fall(offsets: &[i64]) -> Option<usize> {
    // All pairs in one vector loop; the place is searched only if some pair falls.
    let falls = offsets.iter().zip(&offsets[1..]).fold(false, |falls, (a, b)| falls | (b < a));
    let first = || offsets.windows(2).position(|pair| pair[1] < pair[0]).map(|place| place + 1);
    if falls { first() } else { None }
}

fn check_weights(weights: Option<&[f32]>, ids: usize) -> Result<(), Error> {
    match weights {
        Some(weights) if weights.len() != ids => Err(Error::Weights { ids, found: weights.len() }),
        _ => Ok(()),
    }
}

/// Something that holds tables in memory.
pub trait Source {
    fn tables(&self) -> Vec<Table<'_>>;
}

/// Prepared tables together with the owner of their memory.
pub struct Resident {
    /// Borrowed from the owner, whatever the lifetime says; given out only with that of `self`.
    prepared: Prepared<'static>,
    _owner: Arc<dyn Any + Send + Sync>,
}

impl Resident {
    /// Checks the owner's tables, as [`Prepared::new`] does, and keeps the owner alive.
    pub fn new<O: Source + Any + Send + Sync>(
        owner: Arc<O>,
        out_of_range: Vec<OutOfRange>,
        isa: Isa,
    ) -> Result<Self, Error> {
        // SAFETY: what the `Arc` points to neither moves nor dies, nor is borrowed mutably, while a
        // clone of the `Arc` lives, and this value keeps one for as long as it has the tables.
        let source: &'static O = unsafe { &*Arc::as_ptr(&owner) };
        let prepared = Prepared::new(source.tables(), out_of_range, isa)?;
        Ok(Self { prepared, _owner: owner })
    }

    pub fn get(&self) -> &Prepared<'_> {
        &self.prepared
    }
}
