//! A counting allocator, for tests that show that a path allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which counts the requests of each thread. Install it with
/// `#[global_allocator]`.
pub struct Counting;

thread_local!(static REQUESTS: Cell<u64> = const { Cell::new(0) });

impl Counting {
    /// Allocations and reallocations that this thread has asked for so far.
    pub fn requests() -> u64 {
        REQUESTS.get()
    }
}

fn count() {
    // A thread that ends has no counter any more; nobody asks for its number.
    let _ = REQUESTS.try_with(|requests| requests.set(requests.get() + 1));
}

// SAFETY: every call is passed on to the system's allocator as it came; the counter is a cell without
// a destructor, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the layout is that of this call, for which the caller has kept the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above; all memory comes from the system's allocator.
        unsafe { System.realloc(start, layout, bytes) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}
