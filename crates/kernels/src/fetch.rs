//! Calls for memory ahead of its use.

/// Asks for the lines of some elements, into the second-level cache: a core can wait for more of
/// them there than in the first level (see `bag::prefetch`).
#[inline(always)]
pub(crate) fn far(values: &[f32]) {
    let (start, bytes): (*const u8, _) = (values.as_ptr().cast(), size_of_val(values));
    let mut at = 0;
    while at < bytes {
        line(start.wrapping_add(at));
        at += 64;
    }
    if bytes > 0 {
        // Where rows do not begin with a line, the last may be one more.
        line(start.wrapping_add(bytes - 1));
    }
}

/// Asks for one line, into the second-level cache. It may lie anywhere.
#[inline(always)]
pub(crate) fn line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
    let _ = at;
}
