//! The one place atomics come from: the machine's, or loom's when its scheduler plays the machine.
//!
//! Everything that orders memory in this crate goes through here, so that `--cfg loom` checks the
//! code that ships and not a copy of it.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
