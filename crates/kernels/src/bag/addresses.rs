//! The addresses of rows and their params, for many ids at once.

use std::hint::select_unpredictable;

use super::Table;
use super::hot::Hot;
use super::quant::Params;
use super::resolve::Scratch;
use crate::detect::Isa;

/// How many ids ahead params are called into the second-level cache: they lie at random places, and
/// where rows themselves fill the caches they come from memory.
const PARAMS_AHEAD: usize = 512;

/// Appends the rows of the first `count` ids, and their params where the table is quantised; false,
/// and nothing done, if one is out of range. The other ids are those that will be asked for next.
/// Plain loops over slices: unlike iterators' own loops, they are compiled as a part of the function
/// that they stand in, for its instruction set.
#[inline(always)]
pub(super) fn push_rows<I: Id>(
    table: &Table,
    isa: Isa,
    ids: &[I],
    count: usize,
    scratch: &mut Scratch,
) -> bool {
    let (wanted, rows) = (&ids[..count], table.rows as u64);
    if let Some(hot) = table.hot.filter(|hot| !hot.map.is_empty()) {
        let good = wanted.iter().fold(true, |good, id| good & (id.row() < rows));
        if good {
            push_hot(table, &hot, isa, wanted, scratch);
        }
        return good;
    }
    let (base, stride) = (table.data.as_ptr(), table.stride as u64);
    let mut bad = false;
    append(&mut scratch.rows, wanted, |_, id| {
        let row = id.row();
        bad |= row >= rows;
        // Row and stride fit 32 bits each: one short multiplication.
        base.wrapping_add((u64::from(row as u32) * stride) as usize)
    });
    if bad {
        scratch.rows.truncate(scratch.rows.len() - count);
        return false;
    }
    if table.dtype.is_quantised() {
        let params = table.params.as_ptr();
        // Ids that have others so far behind them, and those that have not.
        let (first, rest) = wanted.split_at(ids.len().saturating_sub(PARAMS_AHEAD).min(count));
        append(&mut scratch.params, first, |i, id| {
            fetch(params.wrapping_add(ids[i + PARAMS_AHEAD].row() as usize));
            // SAFETY: the id is below the number of rows, and there are as many params.
            unsafe { *params.add(id.row() as usize) }
        });
        append(&mut scratch.params, rest, |_, id| {
            // SAFETY: as above.
            unsafe { *params.add(id.row() as usize) }
        });
    }
    true
}

/// Into the second-level cache.
#[inline(always)]
fn fetch(params: *const Params) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(params.cast()) };
    }
    let _ = params;
}

/// Appends an element for each id, which is given with its place.
#[inline(always)]
fn append<I: Id, T: Copy>(list: &mut Vec<T>, ids: &[I], mut element: impl FnMut(usize, I) -> T) {
    list.reserve(ids.len());
    for (i, (place, id)) in list.spare_capacity_mut().iter_mut().zip(ids).enumerate() {
        place.write(element(i, *id));
    }
    // SAFETY: there was room for all, and the loop wrote each.
    unsafe { list.set_len(list.len() + ids.len()) };
}

/// Without a branch between row and copy, because no processor could guess which way it goes.
#[inline(always)]
fn push_hot<I: Id>(table: &Table, hot: &Hot, isa: Isa, ids: &[I], scratch: &mut Scratch) {
    let Scratch { rows, params, .. } = scratch;
    let quantised = table.dtype.is_quantised();
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::Avx512 {
        rows.reserve(ids.len());
        params.reserve(if quantised { ids.len() } else { 0 });
        let to_params = quantised.then(|| params.spare_capacity_mut().as_mut_ptr().cast());
        let to_rows = rows.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: every id is one of the table's rows; there is room for a result per id, and after
        // the call each is written. The processor has the instruction set.
        unsafe {
            eight::locate(table, hot, ids, to_rows, to_params);
            rows.set_len(rows.len() + ids.len());
            if quantised {
                params.set_len(params.len() + ids.len());
            }
        }
        return;
    }
    let _ = isa;
    let (own, own_stride) = (table.data.as_ptr(), table.stride);
    let (copies, copy_stride) = (hot.data.as_ptr(), hot.stride);
    append(rows, ids, |_, id| {
        let row = id.row() as usize;
        let (is_hot, slot) = hot.map.slot(row as u32);
        let copy = copies.wrapping_add(slot.wrapping_mul(copy_stride));
        let address = select_unpredictable(is_hot, copy, own.wrapping_add(row * own_stride));
        if quantised {
            let copy = hot.params.as_ptr().wrapping_add(slot);
            let own = table.params.as_ptr().wrapping_add(row);
            // SAFETY: the row is one of the table's, and the slot of a hot one is one of the map's;
            // both lists were checked to be complete.
            params.push(unsafe { *select_unpredictable(is_hot, copy, own) });
        }
        address
    });
}

/// Eight ids at a time.
#[cfg(target_arch = "x86_64")]
mod eight {
    use std::arch::x86_64::*;

    use super::{Hot, Id, Params, Table};
    use crate::bag::hot::{MIX, WAYS};

    /// Writes for each id the address of its copy, if it has one, or else of its row; and its params.
    ///
    /// # Safety
    /// Every id is one of the table's rows, and there is room for a result per id. The copies fit
    /// the table, as `Hot::fits` sees, and the map is not empty.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
    pub unsafe fn locate<I: Id>(
        table: &Table,
        hot: &Hot,
        ids: &[I],
        to_rows: *mut i64,
        to_params: Option<*mut i32>,
    ) {
        const { assert!(WAYS == 4) };
        let splat = |number: usize| _mm512_set1_epi64(number as i64);
        let buckets = hot.map.buckets();
        let (own, copies) = (table.data.as_ptr().addr(), hot.data.as_ptr().addr());
        let (own_params, hot_params) = (table.params.as_ptr().addr(), hot.params.as_ptr().addr());
        // In each pair of slots, what is added where one holds the id: its way, counted from 1.
        let first_two = _mm512_set1_epi64(2 << 32 | 1);
        let last_two = _mm512_set1_epi64(4 << 32 | 3);
        let mut i = 0;
        while i < ids.len() {
            let mask = if ids.len() - i < 8 { (1u8 << (ids.len() - i)) - 1 } else { !0 };
            // SAFETY: lanes behind the last id are not read; they are those of row 0, which exists.
            // Buckets, rows, copies and params are inside of their lists, as the caller promises.
            unsafe {
                let id = I::eight(ids.as_ptr().add(i), mask);
                let mixed = _mm512_mul_epu32(id, splat(MIX as usize));
                let bucket = _mm512_srli_epi64::<32>(_mm512_mul_epu32(mixed, splat(buckets.len())));
                let pair = _mm512_slli_epi64::<1>(bucket);
                let first = _mm512_i64gather_epi64::<8>(pair, buckets.as_ptr().cast());
                let pair = _mm512_add_epi64(pair, splat(1));
                let last = _mm512_i64gather_epi64::<8>(pair, buckets.as_ptr().cast());
                let both = _mm512_shuffle_epi32::<0xa0>(id);
                let way = _mm512_or_si512(
                    _mm512_maskz_mov_epi32(_mm512_cmpeq_epi32_mask(first, both), first_two),
                    _mm512_maskz_mov_epi32(_mm512_cmpeq_epi32_mask(last, both), last_two),
                );
                let is_hot = _mm512_test_epi64_mask(way, way);
                // The low half if it is one of the first of a pair, else the high half.
                let way = _mm512_add_epi64(
                    _mm512_and_si512(way, splat(0xffff_ffff)),
                    _mm512_srli_epi64::<32>(way),
                );
                let slot = _mm512_sub_epi64(
                    _mm512_add_epi64(_mm512_slli_epi64::<2>(bucket), way),
                    splat(1),
                );
                let row = _mm512_add_epi64(_mm512_mul_epu32(id, splat(table.stride)), splat(own));
                let copy = _mm512_mul_epu32(slot, splat(hot.stride));
                let address = _mm512_mask_add_epi64(row, is_hot, copy, splat(copies));
                _mm512_mask_storeu_epi64(to_rows.add(i), mask, address);
                if let Some(to_params) = to_params {
                    let own = _mm512_add_epi64(_mm512_slli_epi64::<2>(id), splat(own_params));
                    let copy = _mm512_slli_epi64::<2>(slot);
                    let at = _mm512_mask_add_epi64(own, is_hot, copy, splat(hot_params));
                    let params = _mm512_i64gather_epi32::<1>(at, std::ptr::null());
                    _mm256_mask_storeu_epi32(to_params.add(i), mask, params);
                }
            }
            i += 8;
        }
        const { assert!(size_of::<Params>() == 4) };
    }
}

pub(super) trait Id: Copy {
    /// As a row number; one that no table has for an id below zero.
    fn row(self) -> u64;
    /// As the caller wrote it; −1 for the largest of 32 bits.
    fn value(self) -> i64;
    /// Up to eight ids as numbers of 64 bits; zero where the mask has no bit.
    ///
    /// # Safety
    /// The ids of the mask can be read, and the processor has AVX-512.
    #[cfg(target_arch = "x86_64")]
    unsafe fn eight(ids: *const Self, mask: u8) -> std::arch::x86_64::__m512i;
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

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(ids: *const u32, mask: u8) -> std::arch::x86_64::__m512i {
        use std::arch::x86_64::*;
        // SAFETY: masked ids are not read.
        unsafe { _mm512_cvtepu32_epi64(_mm256_maskz_loadu_epi32(mask, ids.cast())) }
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

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(ids: *const i64, mask: u8) -> std::arch::x86_64::__m512i {
        // SAFETY: masked ids are not read.
        unsafe { std::arch::x86_64::_mm512_maskz_loadu_epi64(mask, ids) }
    }
}
