//! Embedding bags: all tables in one call.
//!
//! A call goes in two steps. [`resolve`] turns the ids of some bags into the addresses of their
//! rows, in the order in which they will be read: it checks bounds, drops padding and pruned rows,
//! and sends hot ids to their packed copies. The pooling kernel then walks that list. As the list
//! is flat, prefetching "64 rows ahead" is one index, whatever bags or tables lie between. No thread
//! is started here: whoever has several gives each of them some samples.

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
mod prepared;
pub mod quant;
mod reference;
mod resolve;
pub mod touch;

use crate::detect::Isa;
use hot::Hot;
use prefetch::Prefetch;
use quant::Params;

pub use prepared::{Lookup, Prepared, Resident, Source, TableBags};
pub use resolve::Scratch;

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
    /// One per row where the table is quantised, else none.
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
    /// One per id; for sums and means.
    pub weights: Option<&'a [f32]>,
}

/// What to do with an id outside the table.
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
        "table {table}: offset {position} is {offset}: offsets begin at 0, never fall, and end at the number of ids, {ids}"
    )]
    Offset { table: usize, position: usize, offset: i64, ids: usize },
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

    /// The ids from a place on, as they lie in memory.
    fn bytes_from(&self, place: usize) -> &[u8] {
        match self {
            Self::U32(ids) => bytemuck::cast_slice(&ids[place..]),
            Self::I64(ids) => bytemuck::cast_slice(&ids[place..]),
        }
    }
}

/// Pools all bags of all tables into `out`, [batch, all tables' dims side by side], on this thread.
/// Returns how many ids were clamped.
///
/// Checks the tables and allocates at each call: whoever calls often has [`Prepared`] tables.
pub fn embed(
    tables: &[Table],
    bags: &Bags,
    out: &mut [f32],
    settings: &Settings,
) -> Result<u64, Error> {
    let out_of_range = vec![settings.out_of_range; tables.len()];
    let prepared = Prepared::new(tables.to_vec(), out_of_range, settings.isa)?;
    prepared.pool(bags, out, &mut Scratch::default())
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
