//! The addresses of rows and their params, for many ids at once.

use std::hint::select_unpredictable;

use super::Table;
use super::hot::Hot;
use super::prefetch::Prefetch;
use super::quant::Params;
use super::resolve::Scratch;
use crate::detect::Isa;
use crate::fetch;

/// How many ids ahead params are fetched into the second-level cache: they lie at random places, and
/// where rows themselves fill the caches they come from memory.
const PARAMS_AHEAD: usize = 512;
/// Params that are copied per turn of the loop.
const PARAMS_AT_ONCE: usize = 4;

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
    // Row and stride fit 32 bits each: one short multiplication.
    let (base, stride) = (table.data.as_ptr(), u64::from(table.stride as u32));
    let mut bad = false;
    append(&mut scratch.rows, wanted, |id| {
        let row = id.row();
        bad |= row >= rows;
        base.wrapping_add((u64::from(row as u32) * stride) as usize)
    });
    if bad {
        scratch.rows.truncate(scratch.rows.len() - count);
        return false;
    }
    if table.dtype.is_quantised() {
        // Without prefetch, rows were found to be near by, and then their params are.
        match table.prefetch {
            Prefetch::Off => push_params::<I, false>(table.params, ids, count, &mut scratch.params),
            _ => push_params::<I, true>(table.params, ids, count, &mut scratch.params),
        }
    }
    true
}

/// Appends the params of the first `count` ids, which are rows; with `AHEAD`, later ones are fetched.
#[inline(always)]
fn push_params<I: Id, const AHEAD: bool>(
    params: &[Params],
    ids: &[I],
    count: usize,
    list: &mut Vec<Params>,
) {
    list.reserve(count);
    let to = list.spare_capacity_mut().as_mut_ptr().cast::<Params>();
    // Ids that have others so far behind them.
    let fetching = if AHEAD { ids.len().saturating_sub(PARAMS_AHEAD).min(count) } else { count };
    let whole = fetching - fetching % PARAMS_AT_ONCE;
    // SAFETY: there is room for `count`; each of these ids is below the number of rows, and there are
    // as many params. Ids `PARAMS_AHEAD` behind those below `whole` exist, and a prefetch may go anywhere.
    unsafe {
        for first in (0..whole).step_by(PARAMS_AT_ONCE) {
            for i in first..first + PARAMS_AT_ONCE {
                if AHEAD {
                    let later = ids.get_unchecked(i + PARAMS_AHEAD).row();
                    fetch::line(params.as_ptr().wrapping_add(later as usize));
                }
                to.add(i).write(*params.get_unchecked(ids.get_unchecked(i).row() as usize));
            }
        }
        for i in whole..count {
            to.add(i).write(*params.get_unchecked(ids.get_unchecked(i).row() as usize));
        }
        list.set_len(list.len() + count);
    }
}

/// Appends an element for each id.
#[inline(always)]
fn append<I: Id, T: Copy>(list: &mut Vec<T>, ids: &[I], mut element: impl FnMut(I) -> T) {
    list.reserve(ids.len());
    for (place, id) in list.spare_capacity_mut().iter_mut().zip(ids) {
        place.write(element(*id));
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
    append(rows, ids, |id| {
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
                let [first, last] = pairs(buckets, bucket);
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
                    let at: [*const i32; 8] = std::mem::transmute(at);
                    for (k, at) in at.into_iter().take(ids.len() - i).enumerate() {
                        to_params.add(i + k).write(*at);
                    }
                }
            }
            i += 8;
        }
        const { assert!(size_of::<Params>() == 4) };
    }

    /// The first two and the last two slots of eight buckets. By plain loads: with instructions that gather
    /// a lookup took 4 ns per id on an Ice Lake Xeon, whose firmware slows them down to close a leak, as
    /// against 1.4.
    ///
    /// # Safety
    /// There are as many buckets.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
    unsafe fn pairs(buckets: &[[u32; WAYS]], numbers: __m512i) -> [__m512i; 2] {
        // SAFETY: eight numbers of buckets, as the caller promises; a bucket has 16 bytes.
        unsafe {
            let numbers: [u64; 8] = std::mem::transmute(numbers);
            let bucket =
                |k: usize| _mm_loadu_si128(buckets.as_ptr().add(numbers[k] as usize).cast());
            let four = |k: usize| {
                let x = _mm512_castsi128_si512(bucket(k));
                let x = _mm512_inserti32x4::<1>(x, bucket(k + 1));
                let x = _mm512_inserti32x4::<2>(x, bucket(k + 2));
                _mm512_inserti32x4::<3>(x, bucket(k + 3))
            };
            let (a, b) = (four(0), four(4));
            let evens = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
            let odds = _mm512_set_epi64(15, 13, 11, 9, 7, 5, 3, 1);
            [_mm512_permutex2var_epi64(a, evens, b), _mm512_permutex2var_epi64(a, odds, b)]
        }
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
