//! Ids to the addresses of their rows.

use std::cell::RefCell;
use std::ops::Range;

use super::addresses::{Id, push_rows};
use super::prefetch::ROWS_MAX;
use super::quant::Params;
use super::{Bags, Error, Ids, OutOfRange, Pooling, Settings, Table};
use crate::detect::Isa;

/// What one thread does in one go.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// Bags in the order in which the call has them: table after table.
    Bags(Range<usize>),
    /// All tables' bags of some samples.
    Samples(Range<usize>),
}

/// One bag, ready to be pooled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bag {
    pub table: u32,
    /// Rows to pool: padding and pruned ids are gone.
    pub rows: u32,
    /// Where the result goes, in elements.
    pub out: usize,
    /// What the sum is multiplied by.
    pub scale: f32,
}

/// Rows of the list behind its last: as far as a prefetch looks ahead, from each of the four rows that
/// are summed at once.
pub(super) const AHEAD_MAX: usize = ROWS_MAX + 4;

/// Lists that live as long as their thread, so that a call allocates nothing.
#[derive(Default)]
pub(super) struct Scratch {
    /// The rows of all bags, in order; behind them the last one [`AHEAD_MAX`] times more, so that
    /// looking ahead needs no bound.
    pub rows: Vec<*const u8>,
    /// One a row where its table is quantised. Copied here, where nothing waits for them: the
    /// processor fetches dozens at once, and none is missing when its row is pooled.
    pub params: Vec<Params>,
    /// One a row, where ids have weights.
    pub weights: Vec<f32>,
    pub bags: Vec<Bag>,
}

impl Scratch {
    pub fn with<R>(work: impl FnOnce(&mut Self) -> R) -> R {
        thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::default());
        SCRATCH.with(|scratch| work(&mut scratch.borrow_mut()))
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.params.clear();
        self.weights.clear();
        self.bags.clear();
    }
}

/// Fills the scratch with the item's bags. Returns how many ids were clamped.
pub(super) fn resolve(
    tables: &[Table],
    bags: &Bags,
    item: &Item,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<u64, Error> {
    let call = Call { tables, bags, settings, width: tables.iter().map(|t| t.dim).sum() };
    match settings.isa {
        // SAFETY: as the settings promise of the processor.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni => unsafe { resolve_avx512(&call, item, scratch) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { resolve_avx2(&call, item, scratch) },
        _ => call.resolve(item, scratch),
    }
}

/// The same code: the compiler makes vectors of it, and counts bits by one instruction.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,popcnt,bmi1,bmi2")]
fn resolve_avx512(call: &Call, item: &Item, scratch: &mut Scratch) -> Result<u64, Error> {
    call.resolve(item, scratch)
}

/// As above.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
fn resolve_avx2(call: &Call, item: &Item, scratch: &mut Scratch) -> Result<u64, Error> {
    call.resolve(item, scratch)
}

struct Call<'a> {
    tables: &'a [Table<'a>],
    bags: &'a Bags<'a>,
    settings: &'a Settings,
    /// Elements of a sample's output.
    width: usize,
}

/// Some samples' bags of one table.
struct Place {
    table: usize,
    samples: Range<usize>,
    /// Where the table's results begin in a sample's output.
    column: usize,
}

impl Call<'_> {
    #[inline(always)]
    fn resolve(&self, item: &Item, scratch: &mut Scratch) -> Result<u64, Error> {
        scratch.clear();
        let batch = self.bags.batch;
        let mut clamped = 0;
        let mut column = 0;
        for (table, t) in self.tables.iter().enumerate() {
            let samples = match item {
                Item::Samples(samples) => samples.clone(),
                Item::Bags(bags) => {
                    let first = bags.start.max(table * batch) - table * batch;
                    first..bags.end.clamp(table * batch, (table + 1) * batch) - table * batch
                }
            };
            if samples.start < samples.end {
                let place = Place { table, samples, column };
                clamped += match self.bags.ids {
                    Ids::U32(ids) => self.some_bags(ids, &place, scratch)?,
                    Ids::I64(ids) => self.some_bags(ids, &place, scratch)?,
                };
            }
            column += t.dim;
        }
        let last = scratch.rows.last().copied().unwrap_or(std::ptr::null());
        scratch.rows.extend(std::iter::repeat_n(last, AHEAD_MAX));
        Ok(clamped)
    }

    #[inline(always)]
    fn some_bags<I: Id>(
        &self,
        ids: &[I],
        place: &Place,
        scratch: &mut Scratch,
    ) -> Result<u64, Error> {
        let table = &self.tables[place.table];
        let offsets = self.offsets(place);
        let range = offsets[0] as usize..offsets[offsets.len() - 1] as usize;
        // The common case: nothing to leave out, nothing to complain of.
        let (isa, count) = (self.settings.isa, range.len());
        if table.padding.is_some() || !push_rows(table, isa, &ids[range.start..], count, scratch) {
            return self.one_by_one(ids, place, scratch);
        }
        if let Some(weights) = self.bags.weights {
            scratch.weights.extend_from_slice(&weights[range]);
        }
        let mut out = place.samples.start * self.width + place.column;
        scratch.bags.extend(offsets.windows(2).map(|ends| {
            let rows = (ends[1] - ends[0]) as usize;
            let scale = scale(table.pooling, rows);
            let bag = Bag { table: place.table as u32, rows: rows as u32, out, scale };
            out += self.width;
            bag
        }));
        Ok(0)
    }

    /// The bounds of the place's bags.
    fn offsets(&self, place: &Place) -> &[i64] {
        let first = place.table * self.bags.batch;
        &self.bags.offsets[first + place.samples.start..=first + place.samples.end]
    }

    /// With padding, pruned rows, or ids out of range.
    fn one_by_one<I: Id>(
        &self,
        ids: &[I],
        place: &Place,
        scratch: &mut Scratch,
    ) -> Result<u64, Error> {
        let table = &self.tables[place.table];
        let mut clamped = 0;
        for (sample, ends) in place.samples.clone().zip(self.offsets(place).windows(2)) {
            let begin = scratch.rows.len();
            let mut counted = 0;
            for position in ends[0] as usize..ends[1] as usize {
                let id = ids[position].value();
                if table.padding == Some(id) {
                    continue;
                }
                counted += 1;
                if id == -1 {
                    continue;
                }
                let row = match usize::try_from(id) {
                    Ok(row) if row < table.rows => row,
                    _ if self.settings.out_of_range == OutOfRange::Clamp && table.rows > 0 => {
                        clamped += 1;
                        if id < 0 { 0 } else { table.rows - 1 }
                    }
                    _ => {
                        let (table, rows) = (place.table, table.rows);
                        return Err(Error::OutOfRange { table, position, id, rows });
                    }
                };
                push_rows(table, self.settings.isa, &[row as u32], 1, scratch);
                if let Some(weights) = self.bags.weights {
                    scratch.weights.push(weights[position]);
                }
            }
            scratch.bags.push(Bag {
                table: place.table as u32,
                rows: (scratch.rows.len() - begin) as u32,
                out: sample * self.width + place.column,
                scale: scale(table.pooling, counted),
            });
        }
        Ok(clamped)
    }
}

/// A bag of no ids gives zero, not zero by zero.
#[inline(always)]
fn scale(pooling: Pooling, count: usize) -> f32 {
    if pooling == Pooling::Mean && count > 0 { 1.0 / count as f32 } else { 1.0 }
}
