//! The native half of `piped_io`: client-lib as Python classes.
//!
//! ```text
//!  Client ── allocate, lend, open ──► Buffer, Lent, Handle, Region
//!    └─ Queue ── submit_* ──► Request ── wait, result ──► int, tuple, Stat, or an exception
//! ```
//!
//! A [`Buffer`](buffer::Buffer) is Python's for as long as no request has it, and the daemon's
//! meanwhile: Python's references are counted, so what Rust says by ownership is said here at run
//! time, by `BufferError`. Every wait and every long copy lets other Python threads run, and no
//! lock is held by a thread that waits for the interpreter.
#![deny(clippy::undocumented_unsafe_blocks)]

mod buffer;
mod calls;
mod client;
mod clock;
mod dlpack;
mod fault;
mod fork;
mod handle;
mod hearing;
mod lent;
mod outcome;
mod page;
mod queue;
mod span;
mod strips;

use std::sync::{Mutex, MutexGuard};

/// Locks what a panic of another thread may have left locked: what it guards is whole at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The module that Python imports as `piped_io._native`.
#[pyo3::pymodule(gil_used = false)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        Ok(crate::fork::watch()?)
    }

    #[pymodule_export]
    use super::buffer::Buffer;
    #[pymodule_export]
    use super::calls::{
        call_advise, call_allocate, call_copy_names, call_digest, call_extents, call_link,
        call_list, call_lock, call_make_directory, call_remove, call_rename, call_space, call_stat,
        call_sync_range, call_trim, call_truncate, call_zero,
    };
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::handle::{Handle, Region};
    #[pymodule_export]
    use super::lent::Lent;
    #[pymodule_export]
    use super::queue::Queue;
    #[pymodule_export]
    use super::queue::Request;
    #[pymodule_export]
    use super::span::Span;
    #[pymodule_export]
    use super::strips::StripReader;
}
