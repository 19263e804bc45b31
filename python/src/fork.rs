//! Processes that were forked from the one that connected.
//!
//! A forked child shares the sockets and rings of its parent, and would take its answers.
//! Everything that asks the daemon keeps a [`Birth`], which is a load to compare; `getpid` would be
//! a system call for each request. What is dropped in a child is client-lib's affair: nothing is
//! told.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::fault::Fault;

/// Forks between the first process that loaded this module, and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count() {
    // Relaxed: the child has one thread.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Counts forks from now on, also those of other libraries.
pub(crate) fn watch() -> io::Result<()> {
    // SAFETY: `count` is there as long as the process, since Python unloads no module, and does
    // nothing but add to a number.
    match unsafe { libc::pthread_atfork(None, None, Some(count)) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// The process in which something was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Birth(u32);

impl Birth {
    /// The process that runs now.
    pub(crate) fn now() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Refuses what a forked process asks of its parent's.
    pub(crate) fn check(self) -> PyResult<()> {
        if self == Self::now() { Ok(()) } else { Err(Fault::forked().into()) }
    }
}
