//! Ids to the addresses of their rows.

use std::ops::Range;

use super::addresses::{Id, push_rows};
use super::prefetch::ROWS_MAX;
use super::quant::Params;
use super::{Error, Ids, OutOfRange, Pooling, Table, TableBags};
use crate::detect::Isa;

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

/// Memory of a lookup. Whoever keeps it from call to call has calls that allocate nothing.
#[derive(Default)]
pub struct Scratch {
    /// The rows of all bags, in order; behind them the last one [`AHEAD_MAX`] times more, so that
    /// looking ahead needs no bound.
    pub(super) rows: Vec<*const u8>,
    /// One per row where its table is quantised. Copied here, where nothing waits for them: the
    /// processor fetches dozens at once, and none is missing when its row is pooled.
    pub(super) params: Vec<Params>,
    /// One per row, where ids have weights.
    pub(super) weights: Vec<f32>,
    pub(super) bags: Vec<Bag>,
    /// Whether there is a weight for each row.
    pub(super) is_weighted: bool,
    /// What a touch writes to.
    pub(super) sink: Vec<f32>,
}

// SAFETY: the addresses are used only inside of the lookup that wrote them.
unsafe impl Send for Scratch {}

impl Scratch {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.params.clear();
        self.weights.clear();
        self.bags.clear();
    }

    fn lengths(&self) -> [usize; 4] {
        [self.rows.len(), self.params.len(), self.weights.len(), self.bags.len()]
    }

    fn shorten(&mut self, [rows, params, weights, bags]: [usize; 4]) {
        self.rows.truncate(rows);
        self.params.truncate(params);
        self.weights.truncate(weights);
        self.bags.truncate(bags);
    }

    /// Repeats the last row, so that looking ahead needs no bound.
    pub(super) fn pad(&mut self) {
        let last = self.rows.last().copied().unwrap_or(std::ptr::null());
        self.rows.extend(std::iter::repeat_n(last, AHEAD_MAX));
    }
}

/// Some samples' bags of one table, and where their results go.
pub(super) struct Place {
    pub table: u32,
    pub samples: Range<usize>,
    /// The element at which the first sample's results begin.
    pub out: usize,
    /// Elements from one sample's results to the next one's.
    pub out_step: usize,
    pub out_of_range: OutOfRange,
}

/// Appends the place's bags to the scratch. Returns how many ids were clamped; after an error the
/// scratch is as it was before. Offsets are checked here, where they are in the cache: the place's samples
/// must have some.
pub(super) fn resolve(
    table: &Table,
    bags: &TableBags,
    place: &Place,
    isa: Isa,
    scratch: &mut Scratch,
) -> Result<u64, Error> {
    bags.check_order(place.table as usize, &place.samples)?;
    let call = Call { table, bags, place, isa };
    match isa {
        // SAFETY: `Prepared::new` lowered the set to what the processor has.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni => unsafe { resolve_avx512(&call, scratch) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { resolve_avx2(&call, scratch) },
        _ => call.resolve(scratch),
    }
}

/// The same code: the compiler makes vectors of it, and counts bits by one instruction.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,popcnt,bmi1,bmi2")]
fn resolve_avx512(call: &Call, scratch: &mut Scratch) -> Result<u64, Error> {
    call.resolve(scratch)
}

/// As above.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,popcnt,bmi1,bmi2")]
fn resolve_avx2(call: &Call, scratch: &mut Scratch) -> Result<u64, Error> {
    call.resolve(scratch)
}

struct Call<'a> {
    table: &'a Table<'a>,
    bags: &'a TableBags<'a>,
    place: &'a Place,
    isa: Isa,
}

impl Call<'_> {
    #[inline(always)]
    fn resolve(&self, scratch: &mut Scratch) -> Result<u64, Error> {
        match self.bags.ids {
            Ids::U32(ids) => self.some_bags(ids, scratch),
            Ids::I64(ids) => self.some_bags(ids, scratch),
        }
    }

    #[inline(always)]
    fn some_bags<I: Id>(&self, ids: &[I], scratch: &mut Scratch) -> Result<u64, Error> {
        let Place { table, ref samples, mut out, out_step, .. } = *self.place;
        let offsets = &self.bags.offsets[samples.start..=samples.end];
        let range = offsets[0] as usize..offsets[offsets.len() - 1] as usize;
        // The common case: nothing to leave out, nothing to complain of.
        let (isa, from) = (self.isa, &ids[range.start..]);
        if self.table.padding.is_some() || !push_rows(self.table, isa, from, range.len(), scratch) {
            let lengths = scratch.lengths();
            let result = self.one_by_one(ids, scratch);
            if result.is_err() {
                scratch.shorten(lengths);
            }
            return result;
        }
        if let Some(weights) = self.bags.weights {
            scratch.weights.extend_from_slice(&weights[range]);
        }
        scratch.bags.extend(offsets.windows(2).map(|ends| {
            let rows = (ends[1] - ends[0]) as usize;
            let scale = scale(self.table.pooling, rows);
            let bag = Bag { table, rows: rows as u32, out, scale };
            out += out_step;
            bag
        }));
        Ok(0)
    }

    /// With padding, pruned rows, or ids out of range.
    fn one_by_one<I: Id>(&self, ids: &[I], scratch: &mut Scratch) -> Result<u64, Error> {
        let Place { ref samples, mut out, out_step, out_of_range, .. } = *self.place;
        let table = self.table;
        let mut clamped = 0;
        for ends in self.bags.offsets[samples.start..=samples.end].windows(2) {
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
                    _ if out_of_range == OutOfRange::Clamp && table.rows > 0 => {
                        clamped += 1;
                        if id < 0 { 0 } else { table.rows - 1 }
                    }
                    _ => {
                        let (table, rows) = (self.place.table as usize, table.rows);
                        return Err(Error::OutOfRange { table, position, id, rows });
                    }
                };
                push_rows(table, self.isa, &[row as u32], 1, scratch);
                if let Some(weights) = self.bags.weights {
                    scratch.weights.push(weights[position]);
                }
            }
            scratch.bags.push(Bag {
                table: self.place.table,
                rows: (scratch.rows.len() - begin) as u32,
                out,
                scale: scale(table.pooling, counted),
            });
            out += out_step;
        }
        Ok(clamped)
    }
}

/// The first id that is no row, no padding and not pruned, with its place.
pub(super) fn find_bad(table: &Table, ids: Ids, range: Range<usize>) -> Option<(usize, i64)> {
    fn find<I: Id>(table: &Table, ids: &[I], range: Range<usize>) -> Option<(usize, i64)> {
        let count = table.rows as u64;
        let ids = &ids[range.clone()];
        if ids.iter().fold(true, |good, id| good & (id.row() < count)) {
            return None;
        }
        let is_bad = |id: i64| {
            let is_row = usize::try_from(id).is_ok_and(|row| row < table.rows);
            !is_row && id != -1 && table.padding != Some(id)
        };
        let place = ids.iter().position(|id| is_bad(id.value()))?;
        Some((range.start + place, ids[place].value()))
    }
    match ids {
        Ids::U32(ids) => find(table, ids, range),
        Ids::I64(ids) => find(table, ids, range),
    }
}

/// A bag of no ids gives zero, not zero by zero.
#[inline(always)]
fn scale(pooling: Pooling, count: usize) -> f32 {
    if pooling == Pooling::Mean && count > 0 { 1.0 / count as f32 } else { 1.0 }
}
