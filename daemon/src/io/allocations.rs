//! Counts heap allocations by thread, so that "none per request" is a number and not a hope.
//!
//! Only with the feature `count-allocations`: a program that is not measured should not pay, however
//! little, for being measurable.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Constant and without a destructor: touching it neither allocates nor fails at a thread's end.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's allocator with a count.
struct Counting;

fn count() {
    COUNT.with(|count| count.set(count.get() + 1));
}

/// Allocations of the calling thread so far, reallocations included.
pub(crate) fn of_this_thread() -> u64 {
    COUNT.with(Cell::get)
}

/// Takes what came after `count` out: what it costs to tell a count is not what is counted.
pub(crate) fn forget_since(count: u64) {
    COUNT.with(|cell| cell.set(count));
}

// SAFETY: each method hands its arguments unchanged to the system's allocator, which keeps the contract
// of `GlobalAlloc`; the count touches no memory but a thread's own cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from the methods here, that is from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above, and the caller's promise about `size` is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}
