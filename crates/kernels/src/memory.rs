//! Room for large matrices.
//!
//! Huge pages are asked for where a vector is large. A sum over random rows of 128 elements takes two
//! thirds of the time that it takes with small pages (32 against 50 ns per edge on Zen 4), and memory
//! that is new is ready after one fault instead of 512.
//!
//! Steps of training need matrices of the same sizes again and again. The system clears the pages of new memory,
//! which took a quarter of a full-batch step. So a [`Buffer`] keeps its vector for others when it is dropped, and
//! [`stale`] and [`zeros`] take it again.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// The size of a huge page on the processors that these kernels are for.
const HUGE_BYTES: usize = 1 << 21;

/// Vectors with fewer elements are not kept: the allocator does that as well.
const KEPT_MIN: usize = 1 << 16;

/// Vectors that are to be used again, the last one given back at the end.
static KEPT: Mutex<Vec<Vec<f32>>> = Mutex::new(vec![]);

/// Numbers in memory that is used again once this is dropped.
#[derive(Debug, Default)]
pub struct Buffer(Vec<f32>);

impl Buffer {
    /// The numbers as a vector like any other, whose memory goes back to the system.
    pub fn into_vec(mut self) -> Vec<f32> {
        mem::take(&mut self.0)
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.0.capacity() >= KEPT_MIN {
            kept().push(mem::take(&mut self.0));
        }
    }
}

/// So many zeros.
pub fn zeros(len: usize) -> Buffer {
    match take(len) {
        Some(mut kept) => {
            kept.fill(0.0);
            Buffer(kept)
        }
        None => Buffer(new_zeros(len)),
    }
}

/// So many numbers of any value, for callers that write all of them.
pub fn stale(len: usize) -> Buffer {
    Buffer(take(len).unwrap_or_else(|| new_zeros(len)))
}

/// A copy of some numbers.
pub fn copy(numbers: &[f32]) -> Buffer {
    let mut copy = stale(numbers.len());
    copy.copy_from_slice(numbers);
    copy
}

fn kept() -> std::sync::MutexGuard<'static, Vec<Vec<f32>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A vector that was kept, of this length. If none fits, as much as is about to be allocated is released
/// first: what is in use and what is kept are together never more than what was once in use.
fn take(len: usize) -> Option<Vec<f32>> {
    if len < KEPT_MIN {
        return None;
    }
    let mut kept = kept();
    // Much larger ones are left for those who need them.
    let fits = |vector: &&(usize, usize)| (len..=len.saturating_mul(2)).contains(&vector.1);
    let sizes: Vec<(usize, usize)> = kept.iter().map(Vec::capacity).enumerate().collect();
    if let Some((at, _)) = sizes.iter().filter(fits).min_by_key(|(_, capacity)| *capacity) {
        let mut vector = kept.swap_remove(*at);
        drop(kept);
        vector.resize(len, 0.0);
        return Some(vector);
    }
    let mut released = vec![];
    let mut left = len;
    while left > 0 && !kept.is_empty() {
        let oldest = kept.remove(0);
        left = left.saturating_sub(oldest.capacity());
        released.push(oldest);
    }
    // The system takes its time to unmap: not while others wait.
    drop(kept);
    drop(released);
    None
}

fn new_zeros(len: usize) -> Vec<f32> {
    let zeros = vec![0.0; len];
    advise(zeros.as_ptr(), len);
    zeros
}

/// An empty vector with room for so many elements.
pub fn room<T>(len: usize) -> Vec<T> {
    let room = Vec::with_capacity(len);
    advise(room.as_ptr(), len);
    room
}

/// Large vectors come fresh from the system, without pages until they are written; other memory
/// keeps those that it has.
fn advise<T>(start: *const T, len: usize) {
    #[cfg(target_os = "linux")]
    {
        let end = (start as usize + len * size_of::<T>()) / HUGE_BYTES * HUGE_BYTES;
        let first = (start as usize).next_multiple_of(HUGE_BYTES);
        if first < end {
            // SAFETY: whole pages inside of an allocation; advice changes none of their bytes. A
            // system that does not take it loses nothing but time.
            unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    let _ = (start, len);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test: the kept vectors are the process's, and tests of one process would see each other's.
    #[test]
    fn vectors_are_used_again_where_they_fit() {
        let len = 3 * KEPT_MIN;
        let mut vector = stale(len);
        vector.fill(7.0);
        let address = vector.as_ptr();
        drop(vector);
        // Too small and too large for the one that is kept.
        let small = stale(KEPT_MIN - 1);
        assert_ne!(small.as_ptr(), address);
        let vector = stale(2 * KEPT_MIN);
        assert_eq!((vector.as_ptr(), vector.len()), (address, 2 * KEPT_MIN));
        drop(vector);
        let vector = zeros(len);
        assert_eq!(vector.as_ptr(), address);
        assert!(vector.len() == len && vector.iter().all(|value| *value == 0.0));
        drop(vector);
        // Nothing that fits: what is kept makes room.
        let larger = zeros(100 * KEPT_MIN);
        assert!(kept().is_empty() && larger.len() == 100 * KEPT_MIN);
    }
}
