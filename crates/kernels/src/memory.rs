//! Room for large matrices.
//!
//! Huge pages are asked for where a vector is large. A sum over random rows of 128 elements takes two
//! thirds of the time that it takes with small pages (32 against 50 ns per edge on Zen 4), and memory
//! that is new is ready after one fault instead of 512.

/// The size of a huge page on the processors that these kernels are for.
const HUGE_BYTES: usize = 1 << 21;

/// A vector of so many zeros.
pub fn zeros(len: usize) -> Vec<f32> {
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
