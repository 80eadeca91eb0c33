//! What a pooling kernel is, and which one pools what.

use std::marker::PhantomData;

use super::prefetch::Prefetch;
use super::quant::Params;
use super::resolve::{Bag, Scratch};
use super::{Dtype, Pooling, Table, integer, reference};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::detect::Isa;

/// What happens to a row on its way into the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Sum,
    WeightedSum,
    Max,
}

impl Mode {
    pub fn of(pooling: Pooling, weighted: bool) -> Self {
        match (pooling, weighted) {
            (Pooling::Max, _) => Self::Max,
            (_, true) => Self::WeightedSum,
            (_, false) => Self::Sum,
        }
    }
}

/// The output, shared by threads that write to different bags of it.
pub(super) struct Target<'a> {
    start: *mut f32,
    len: usize,
    out: PhantomData<&'a mut [f32]>,
}

// SAFETY: the memory is borrowed for as long as the target lives, and whoever writes through it
// promises (see `pool`) that no two threads write the same element.
unsafe impl Send for Target<'_> {}
// SAFETY: as above.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    pub fn new(out: &'a mut [f32]) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), out: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// `element` is below the length.
    pub unsafe fn at(&self, element: usize) -> *mut f32 {
        debug_assert!(element < self.len);
        // SAFETY: inside of the borrowed slice, as the caller promises.
        unsafe { self.start.add(element) }
    }
}

/// Bags of tables of one form, and all that pooling them needs.
pub(super) struct Work<'a> {
    pub dtype: Dtype,
    pub mode: Mode,
    pub dim: usize,
    /// The rows of all bags, and [`AHEAD_MAX`](super::resolve::AHEAD_MAX) more that may be
    /// prefetched.
    pub rows: *const *const u8,
    /// One per row if quantised.
    pub params: *const Params,
    /// One per row if weighted.
    pub weights: *const f32,
    pub bags: &'a [Bag],
    pub out: &'a Target<'a>,
    pub prefetch: Prefetch,
    /// The ids that will be resolved next: they are fetched meanwhile, so that nobody waits for them.
    pub later: &'a [u8],
}

impl<'a> Work<'a> {
    /// One of the bags alone, with rows from `row` on.
    ///
    /// # Safety
    /// The bag is one of the work's, and `row` its first.
    pub unsafe fn bag(&self, bag: &'a Bag, row: usize) -> Self {
        Self {
            bags: std::slice::from_ref(bag),
            // SAFETY: within the list, as the caller promises.
            rows: unsafe { self.rows.add(row) },
            // One per row, or none at all.
            params: self.params.wrapping_add(row),
            weights: self.weights.wrapping_add(row),
            ..*self
        }
    }
}

/// Pools the scratch's bags, as many at a time as have tables of one form.
///
/// # Safety
/// Every address of the scratch is that of a whole row of the form that its bag's table has; params
/// and weights are complete; the processor has the instruction set; the bags lie inside of `out`, and nobody else reads or writes them.
pub(super) unsafe fn pool(
    tables: &[Table],
    scratch: &Scratch,
    out: &Target,
    later: &[u8],
    isa: Isa,
) {
    let form = |bag: &Bag| {
        let table = &tables[bag.table as usize];
        let mode = Mode::of(table.pooling, scratch.is_weighted);
        (table.dtype, mode, table.dim, table.prefetch)
    };
    let (mut row, mut param) = (0, 0);
    for bags in scratch.bags.chunk_by(|a, b| a.table == b.table || form(a) == form(b)) {
        let (dtype, mode, dim, prefetch) = form(&bags[0]);
        let work = Work {
            dtype,
            mode,
            dim,
            rows: scratch.rows[row..].as_ptr(),
            params: scratch.params[param..].as_ptr(),
            weights: scratch.weights[row.min(scratch.weights.len())..].as_ptr(),
            bags,
            out,
            prefetch,
            later,
        };
        // SAFETY: as the caller promises, of the processor too.
        unsafe { pool_alike(&work, isa) };
        let rows: usize = bags.iter().map(|bag| bag.rows as usize).sum();
        row += rows;
        param += if dtype.is_quantised() { rows } else { 0 };
    }
}

/// Sums of quantised rows in integers where a bag is [long enough](integer::is_long), all else in
/// fp32.
///
/// # Safety
/// As for [`pool`].
unsafe fn pool_alike(work: &Work, isa: Isa) {
    if !work.dtype.is_quantised() || work.mode != Mode::Sum {
        // SAFETY: as the caller promises.
        return unsafe { pool_floats(work, isa) };
    }
    let mut row = 0;
    for bags in work.bags.chunk_by(|a, b| integer::is_long(a) == integer::is_long(b)) {
        // SAFETY: a part of the work, as the caller promises of it.
        unsafe {
            let part = Work { bags, ..work.bag(&bags[0], row) };
            match (integer::is_long(&bags[0]), isa) {
                (false, _) => pool_floats(&part, isa),
                #[cfg(target_arch = "x86_64")]
                (true, Isa::Avx2 | Isa::Avx512 | Isa::Avx512Vnni) => integer::pool(&part, isa),
                (true, _) => reference::pool_integers(&part),
            }
        }
        row += bags.iter().map(|bag| bag.rows as usize).sum::<usize>();
    }
}

/// # Safety
/// As for [`pool`].
pub(super) unsafe fn pool_floats(work: &Work, isa: Isa) {
    match isa {
        // SAFETY: as the caller promises, of the processor too.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::pool(work) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni => unsafe { avx512::pool(work) },
        // SAFETY: as the caller promises.
        _ => unsafe { reference::pool(work) },
    }
}
