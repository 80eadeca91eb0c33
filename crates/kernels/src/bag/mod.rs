//! Embedding bags: all tables in one call.
//!
//! A call goes in two steps. [`resolve`] turns the ids of some bags into the addresses of their
//! rows, in the order in which they will be read: it checks bounds, drops padding and pruned rows,
//! and sends hot ids to their packed copies. The pooling kernel then walks that list. As the list
//! is flat, prefetching "64 rows ahead" is one index, whatever bags or tables lie between.

mod addresses;
#[cfg(target_arch = "x86_64")]
mod ahead;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod hot;
mod integer;
mod kernel;
#[cfg(target_arch = "x86_64")]
mod pooling;
pub mod prefetch;
pub mod quant;
mod reference;
mod resolve;
pub mod touch;

use crate::detect::Isa;
use hot::Hot;
use kernel::{Mode, Target};
use prefetch::Prefetch;
use quant::Params;
use resolve::{Item, Scratch};

/// How a table's elements are stored. Sums are fp32 always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    Int8,
    Int4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    Sum,
    Mean,
    Max,
}

/// One table as it lies in memory.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    pub dtype: Dtype,
    pub rows: usize,
    pub dim: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
    pub data: &'a [u8],
    /// One a row where the table is quantised, else none.
    pub params: &'a [Params],
    pub pooling: Pooling,
    /// An id that counts for nothing, not even in a mean.
    pub padding: Option<i64>,
    /// Copies of the hottest rows, close together.
    pub hot: Option<Hot<'a>>,
    /// What is fetched ahead of its use.
    pub prefetch: Prefetch,
}

/// Ids of any width. A pruned row is −1, or `u32::MAX`: it adds nothing, but a mean counts it.
#[derive(Clone, Copy, Debug)]
pub enum Ids<'a> {
    U32(&'a [u32]),
    I64(&'a [i64]),
}

/// The bags of one call, table after table: bag `b` of table `t` has the ids from
/// `offsets[t·batch + b]` to the next offset.
#[derive(Clone, Copy, Debug)]
pub struct Bags<'a> {
    pub batch: usize,
    pub ids: Ids<'a>,
    /// tables · batch + 1 of them.
    pub offsets: &'a [i64],
    /// One an id; for sums and means.
    pub weights: Option<&'a [f32]>,
}

/// What becomes of an id that no row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OutOfRange {
    /// The call fails, and says where.
    #[default]
    Error,
    /// The nearest row is taken, and the call counts how often.
    Clamp,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// More than the processor has is not used.
    pub isa: Isa,
    pub out_of_range: OutOfRange,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("table {table}: id {id} at position {position} is not below its {rows} rows")]
    OutOfRange { table: usize, position: usize, id: i64, rows: usize },
    #[error(
        "offset {position} is {offset}: offsets begin at 0, never fall, and end at the number of ids, {ids}"
    )]
    Offset { position: usize, offset: i64, ids: usize },
    #[error("{tables} tables and a batch of {batch} need {expected} offsets, not {found}")]
    Offsets { tables: usize, batch: usize, expected: usize, found: usize },
    #[error("{found} weights for {ids} ids")]
    Weights { ids: usize, found: usize },
    #[error("table {table} takes maxima: weights are for sums and means")]
    WeightedMax { table: usize },
    #[error("the output has {found} elements, not {expected}")]
    Output { expected: usize, found: usize },
    #[error(
        "table {table}: {rows} rows of {dim} elements do not fit its {bytes} bytes of data, {params} scales, or the limit of 2^32 rows"
    )]
    Table { table: usize, rows: usize, dim: usize, bytes: usize, params: usize },
}

impl Dtype {
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::Int8, Self::Int4];

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "fp32",
            Self::F16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Bytes of a row in the form that the kernels read.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            Self::F32 => dim * 4,
            Self::F16 | Self::Bf16 => dim * 2,
            Self::Int8 => quant::int8_row_bytes(dim),
            Self::Int4 => quant::int4_row_bytes(dim),
        }
    }

    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4)
    }
}

impl Ids<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::U32(ids) => ids.len(),
            Self::I64(ids) => ids.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Rows that one item may hold: its list of addresses stays in the second-level cache, and the
/// prefetches that an item begins and ends without are few among its own.
const ITEM_ROWS_MAX: usize = 4096;
/// Below this, handing work to another thread costs more than doing it.
const ITEM_ROWS_MIN: usize = 256;
/// Items a thread, so that none waits long for the last.
const ITEMS_PER_THREAD: usize = 8;
/// Up to so many ids a bag, what is written counts as much as what is read: the bags are taken
/// sample by sample, and the output is written front to back.
const BAG_MAJOR_POOLING_MAX: usize = 4;

/// Pools all bags of all tables into `out`, [batch, all tables' dims side by side], on the threads of
/// the rayon pool that this is called in. Returns how many ids were clamped.
///
/// The result does not depend on the number of threads: a bag is summed by one thread, in order.
pub fn embed(
    tables: &[Table],
    bags: &Bags,
    out: &mut [f32],
    settings: &Settings,
) -> Result<u64, Error> {
    check_tables(tables)?;
    check_bags(tables, bags)?;
    let width: usize = tables.iter().map(|t| t.dim).sum();
    if out.len() != bags.batch * width {
        return Err(Error::Output { expected: bags.batch * width, found: out.len() });
    }
    let target = Target::new(out);
    let settings = &Settings { isa: settings.isa.lowered(), ..*settings };
    let weighted = bags.weights.is_some();
    let modes: Vec<Mode> = tables.iter().map(|t| Mode::of(t.pooling, weighted)).collect();
    run_items(tables, bags, |item, scratch| {
        let clamped = resolve::resolve(tables, bags, &item, settings, scratch)?;
        // SAFETY: `resolve` wrote only addresses of whole rows of `tables`; an item's bags lie
        // inside of the output, whose size was checked, and no two items share a bag.
        unsafe { kernel::pool(tables, &modes, scratch, &target, settings.isa) };
        Ok(clamped)
    })
}

/// Splits the call into items and gives each to a thread with a scratch of its own.
fn run_items(
    tables: &[Table],
    bags: &Bags,
    work: impl Fn(Item, &mut Scratch) -> Result<u64, Error> + Sync,
) -> Result<u64, Error> {
    use rayon::prelude::*;
    let items = items(tables.len(), bags, rayon::current_num_threads());
    let run = |item: Item| Scratch::with(|scratch| work(item, scratch));
    if items.len() <= 1 {
        return items.into_iter().map(run).sum();
    }
    // Collected in order, so that of several bad ids the first is told, whichever thread met one.
    let done: Vec<Result<u64, Error>> = items.into_par_iter().map(run).collect();
    done.into_iter().sum()
}

fn items(tables: usize, bags: &Bags, threads: usize) -> Vec<Item> {
    let all = tables * bags.batch;
    let rows = bags.ids.len();
    let per_item = rows.div_ceil(threads * ITEMS_PER_THREAD);
    let per_item = per_item.clamp(ITEM_ROWS_MIN, ITEM_ROWS_MAX);
    if rows <= BAG_MAJOR_POOLING_MAX * all {
        let step = (per_item * bags.batch).checked_div(rows).unwrap_or(bags.batch).max(1);
        let ends = |first| Item::Samples(first..(first + step).min(bags.batch));
        return (0..bags.batch).step_by(step).map(ends).collect();
    }
    let mut items = Vec::with_capacity(rows / per_item + 1);
    let mut first = 0;
    while first < all {
        let until = bags.offsets[first] + per_item as i64;
        let bound = first + bags.offsets[first..=all].partition_point(|offset| *offset <= until);
        // The last bag that still fits, but one bag at least.
        let end = (bound - 1).clamp(first + 1, all);
        items.push(Item::Bags(first..end));
        first = end;
    }
    items
}

fn check_tables(tables: &[Table]) -> Result<(), Error> {
    for (table, t) in tables.iter().enumerate() {
        let row_bytes = t.dtype.row_bytes(t.dim);
        let needed = t.rows.checked_sub(1).map_or(Some(0), |last| {
            last.checked_mul(t.stride).and_then(|bytes| bytes.checked_add(row_bytes))
        });
        let fits = needed.is_some_and(|needed| needed <= t.data.len())
            && t.stride >= row_bytes
            && u32::try_from(t.stride).is_ok()
            && u32::try_from(t.rows).is_ok()
            && (!t.dtype.is_quantised() || t.params.len() == t.rows)
            && t.hot.as_ref().is_none_or(|hot| hot.fits(t));
        if !fits {
            let (bytes, params) = (t.data.len(), t.params.len());
            return Err(Error::Table { table, rows: t.rows, dim: t.dim, bytes, params });
        }
    }
    Ok(())
}

fn check_bags(tables: &[Table], bags: &Bags) -> Result<(), Error> {
    let (ids, offsets) = (bags.ids.len(), bags.offsets);
    let expected = tables.len() * bags.batch + 1;
    if offsets.len() != expected {
        let (batch, found) = (bags.batch, offsets.len());
        return Err(Error::Offsets { tables: tables.len(), batch, expected, found });
    }
    let offset = |position: usize| Error::Offset { position, offset: offsets[position], ids };
    if offsets[0] != 0 {
        return Err(offset(0));
    }
    // All at once, as one comparison of vectors; who fell is asked only when one did.
    if offsets.iter().zip(&offsets[1..]).fold(false, |fell, (a, b)| fell | (b < a)) {
        return Err(offset(1 + offsets.windows(2).position(|w| w[1] < w[0]).unwrap_or(0)));
    }
    if usize::try_from(offsets[expected - 1]) != Ok(ids) {
        return Err(offset(expected - 1));
    }
    if let Some(weights) = bags.weights {
        if weights.len() != ids {
            return Err(Error::Weights { ids, found: weights.len() });
        }
        if let Some(table) = tables.iter().position(|t| t.pooling == Pooling::Max) {
            return Err(Error::WeightedMax { table });
        }
    }
    Ok(())
}
