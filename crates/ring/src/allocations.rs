//! Counts heap allocations of each thread, so that "no allocation per request" can be measured, and
//! the bytes that it holds.
//!
//! Counts are by thread, not by process: only the thread that submits requests matters.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with a count: for `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    // Constant and without a destructor: access neither allocates nor fails at a thread's end.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    COUNT.with(|count| count.set(count.get() + 1));
    hold(bytes as i64);
}

fn hold(bytes: i64) {
    HELD.with(|held| held.set(held.get().wrapping_add(bytes)));
}

/// Allocations of the calling thread so far, with reallocations.
#[must_use]
pub fn of_this_thread() -> u64 {
    COUNT.with(Cell::get)
}

/// Bytes that the calling thread has allocated and not freed, as they were asked for. What it frees
/// for another thread counts less.
#[must_use]
pub fn held_by_this_thread() -> i64 {
    HELD.with(Cell::get)
}

/// Takes allocations after `count` out again: reporting a count must not change it.
pub fn forget_since(count: u64) {
    COUNT.with(|cell| cell.set(count));
}

// SAFETY: each method hands its arguments unchanged to the system's allocator, which keeps the
// contract of `GlobalAlloc`; the counts touch no memory but a thread's own cells.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        hold(-(layout.size() as i64));
        // SAFETY: `memory` came from the methods here, that is from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        hold(-(layout.size() as i64));
        // SAFETY: as above, and the caller's promise about `size` is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    #[test]
    fn only_this_threads_allocations_are_counted() {
        let before = of_this_thread();
        let kept = std::hint::black_box(vec![1u8; 100]);
        assert_eq!(of_this_thread() - before, 1);
        drop(kept);
        assert_eq!(of_this_thread() - before, 1, "freeing is not counted");
    }

    #[test]
    fn bytes_are_held_until_they_are_freed() {
        let before = held_by_this_thread();
        let mut kept = std::hint::black_box(vec![1u8; 100]);
        assert_eq!(held_by_this_thread() - before, 100);
        kept.reserve_exact(200);
        assert_eq!(held_by_this_thread() - before, 300);
        drop(kept);
        assert_eq!(held_by_this_thread(), before);
    }
}
