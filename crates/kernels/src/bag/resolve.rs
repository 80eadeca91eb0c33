//! Ids to the addresses of their rows.

use std::cell::RefCell;
use std::ops::Range;

use super::hot::Hot;
use super::prefetch::DISTANCE_MAX;
use super::quant::Params;
use super::{Bags, Error, Ids, OutOfRange, Pooling, Settings, Table};

/// What one thread does in one go.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// Bags in the order in which the call has them: table after table.
    Bags(Range<usize>),
    /// All tables' bags of some samples, sample after sample.
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

/// Lists that live as long as their thread, so that a call allocates nothing.
#[derive(Default)]
pub(super) struct Scratch {
    /// The rows of all bags, in order; behind them the last one [`DISTANCE_MAX`] times more, so that
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
    scratch.clear();
    let mut clamped = 0;
    let width: usize = tables.iter().map(|t| t.dim).sum();
    match item {
        Item::Bags(range) => {
            let mut first = range.start;
            while first < range.end {
                let t = first / bags.batch;
                let end = range.end.min((t + 1) * bags.batch);
                let column = tables[..t].iter().map(|t| t.dim).sum();
                let place = Place { t, samples: first - t * bags.batch..end - t * bags.batch };
                clamped += table(&tables[t], bags, place, column, width, settings, scratch)?;
                first = end;
            }
        }
        Item::Samples(range) => {
            for sample in range.clone() {
                let mut column = 0;
                for (t, this) in tables.iter().enumerate() {
                    let place = Place { t, samples: sample..sample + 1 };
                    clamped += table(this, bags, place, column, width, settings, scratch)?;
                    column += this.dim;
                }
            }
        }
    }
    let last = scratch.rows.last().copied().unwrap_or(std::ptr::null());
    scratch.rows.extend(std::iter::repeat_n(last, DISTANCE_MAX));
    Ok(clamped)
}

/// Some samples' bags of one table.
struct Place {
    t: usize,
    samples: Range<usize>,
}

fn table(
    table: &Table,
    bags: &Bags,
    place: Place,
    column: usize,
    width: usize,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<u64, Error> {
    let offset = |sample: usize| bags.offsets[place.t * bags.batch + sample] as usize;
    let ids = offset(place.samples.start)..offset(place.samples.end);
    let begin = scratch.rows.len();
    let begin_params = scratch.params.len();
    let in_range = table.padding.is_none()
        && match bags.ids {
            Ids::U32(all) => all_in_range(table, &all[ids.clone()], scratch),
            Ids::I64(all) => all_in_range(table, &all[ids.clone()], scratch),
        };
    if in_range {
        let mut start = ids.start;
        for sample in place.samples.clone() {
            let end = offset(sample + 1);
            let count = end - start;
            scratch.bags.push(Bag {
                table: place.t as u32,
                rows: count as u32,
                out: sample * width + column,
                scale: scale(table.pooling, count),
            });
            start = end;
        }
        if let Some(weights) = bags.weights {
            scratch.weights.extend_from_slice(&weights[ids]);
        }
        return Ok(0);
    }
    scratch.rows.truncate(begin);
    scratch.params.truncate(begin_params);
    one_by_one(table, bags, place, column, width, settings, scratch)
}

/// A bag of no ids gives zero, not zero by zero.
fn scale(pooling: Pooling, count: usize) -> f32 {
    if pooling == Pooling::Mean && count > 0 { 1.0 / count as f32 } else { 1.0 }
}

trait Id: Copy {
    /// As a row number; one that no table has for an id below zero.
    fn row(self) -> u64;
    /// As the caller wrote it; −1 for the largest of 32 bits.
    fn value(self) -> i64;
}

impl Id for u32 {
    #[inline(always)]
    fn row(self) -> u64 {
        u64::from(self)
    }
    #[inline(always)]
    fn value(self) -> i64 {
        if self == u32::MAX { -1 } else { i64::from(self) }
    }
}

impl Id for i64 {
    #[inline(always)]
    fn row(self) -> u64 {
        self as u64
    }
    #[inline(always)]
    fn value(self) -> i64 {
        self
    }
}

/// The common case: no padding, and all ids in range, which is found out on the way. False if it
/// turned out otherwise; what was pushed is then worthless.
fn all_in_range<I: Id>(table: &Table, ids: &[I], scratch: &mut Scratch) -> bool {
    let count = table.rows as u64;
    if !ids.iter().fold(true, |good, id| good & (id.row() < count)) {
        return false;
    }
    let Some(hot) = table.hot else {
        let (base, stride) = (table.data.as_ptr(), table.stride as u64);
        // Row and stride fit 32 bits each: one short multiplication.
        let address = |id: &I| base.wrapping_add((u64::from(id.row() as u32) * stride) as usize);
        scratch.rows.extend(ids.iter().map(address));
        if table.dtype.is_quantised() {
            scratch.params.extend(ids.iter().map(|id| table.params[id.row() as usize]));
        }
        return true;
    };
    scratch.rows.extend(ids.iter().map(|id| Source::of(table, &hot, id.row() as usize).address()));
    if table.dtype.is_quantised() {
        let params = |id: &I| {
            let source = Source::of(table, &hot, id.row() as usize);
            source.params[source.row]
        };
        scratch.params.extend(ids.iter().map(params));
    }
    true
}

/// Where a row is read: in its table, or among the copies.
struct Source<'a> {
    data: *const u8,
    stride: usize,
    params: &'a [Params],
    row: usize,
}

impl<'a> Source<'a> {
    #[inline(always)]
    fn of(table: &Table<'a>, hot: &Hot<'a>, row: usize) -> Self {
        match hot.map.slot(row) {
            Some(slot) => {
                Self { data: hot.data.as_ptr(), stride: hot.stride, params: hot.params, row: slot }
            }
            None => Self::in_table(table, row),
        }
    }

    #[inline(always)]
    fn in_table(table: &Table<'a>, row: usize) -> Self {
        Self { data: table.data.as_ptr(), stride: table.stride, params: table.params, row }
    }

    #[inline(always)]
    fn address(&self) -> *const u8 {
        self.data.wrapping_add(self.row * self.stride)
    }
}

/// Every other case, id by id.
fn one_by_one(
    table: &Table,
    bags: &Bags,
    place: Place,
    column: usize,
    width: usize,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<u64, Error> {
    let Place { t, samples } = place;
    let mut clamped = 0;
    for sample in samples {
        let at = t * bags.batch + sample;
        let ids = bags.offsets[at] as usize..bags.offsets[at + 1] as usize;
        let begin = scratch.rows.len();
        let mut counted = 0;
        for position in ids {
            let id = match bags.ids {
                Ids::U32(ids) => ids[position].value(),
                Ids::I64(ids) => ids[position].value(),
            };
            if table.padding == Some(id) {
                continue;
            }
            counted += 1;
            if id == -1 {
                continue;
            }
            let row = match usize::try_from(id) {
                Ok(row) if row < table.rows => row,
                _ if settings.out_of_range == OutOfRange::Clamp && table.rows > 0 => {
                    clamped += 1;
                    if id < 0 { 0 } else { table.rows - 1 }
                }
                _ => {
                    return Err(Error::OutOfRange { table: t, position, id, rows: table.rows });
                }
            };
            let source = match &table.hot {
                Some(hot) => Source::of(table, hot, row),
                None => Source::in_table(table, row),
            };
            scratch.rows.push(source.address());
            if table.dtype.is_quantised() {
                scratch.params.push(source.params[source.row]);
            }
            if let Some(weights) = bags.weights {
                scratch.weights.push(weights[position]);
            }
        }
        scratch.bags.push(Bag {
            table: t as u32,
            rows: (scratch.rows.len() - begin) as u32,
            out: sample * width + column,
            scale: scale(table.pooling, counted),
        });
    }
    Ok(clamped)
}
