//! What a pooling kernel is, and which one pools what.

use std::marker::PhantomData;

use half::bf16;

use super::prefetch::Prefetch;
use super::quant::Params;
use super::resolve::{Bag, Scratch};
use super::{Dtype, Pooling, Table, reference};
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
    start: *mut u8,
    len: usize,
    pub is_bf16: bool,
    out: PhantomData<&'a mut [u8]>,
}

// SAFETY: the memory is borrowed for as long as the target lives, and whoever writes through it
// promises (see `pool`) that no two threads write the same element.
unsafe impl Send for Target<'_> {}
// SAFETY: as above.
unsafe impl Sync for Target<'_> {}

impl<'a> Target<'a> {
    pub fn f32(out: &'a mut [f32]) -> Self {
        let len = out.len();
        Self { start: out.as_mut_ptr().cast(), len, is_bf16: false, out: PhantomData }
    }

    pub fn bf16(out: &'a mut [bf16]) -> Self {
        let len = out.len();
        Self { start: out.as_mut_ptr().cast(), len, is_bf16: true, out: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// `element` is below the length.
    pub unsafe fn at(&self, element: usize) -> *mut u8 {
        debug_assert!(element < self.len);
        // SAFETY: inside of the borrowed slice, as the caller promises.
        unsafe { self.start.add(element * if self.is_bf16 { 2 } else { 4 }) }
    }
}

/// Bags of tables of one form, and all that pooling them needs.
pub(super) struct Work<'a> {
    pub dtype: Dtype,
    pub mode: Mode,
    pub dim: usize,
    /// The rows of all bags, and [`DISTANCE_MAX`](super::prefetch::DISTANCE_MAX) more that may be
    /// prefetched.
    pub rows: *const *const u8,
    /// One a row if quantised.
    pub params: *const Params,
    /// One a row if weighted.
    pub weights: *const f32,
    pub bags: &'a [Bag],
    pub out: &'a Target<'a>,
    pub prefetch: Prefetch,
}

/// Pools the scratch's bags, as many at a time as have tables of one form.
///
/// # Safety
/// Every address of the scratch is that of a whole row of the form that its bag's table has; params
/// and weights are complete; the processor has the instruction set; the bags lie inside of `out`, and nobody else reads or writes them.
pub(super) unsafe fn pool(tables: &[Table], scratch: &Scratch, out: &Target, isa: Isa) {
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
        };
        match isa {
            // SAFETY: as the caller promises, of the processor too.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2::pool(&work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512::pool(&work) },
            // SAFETY: as the caller promises.
            _ => unsafe { reference::pool(&work) },
        }
        let rows: usize = bags.iter().map(|bag| bag.rows as usize).sum();
        row += rows;
        param += if dtype.is_quantised() { rows } else { 0 };
    }
}
