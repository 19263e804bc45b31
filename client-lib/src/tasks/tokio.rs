//! The runtime over tokio.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::runtime::{Ready, Runtime, Watch};

/// A tokio runtime, of either flavour, with its IO enabled: a task for each descriptor.
///
/// ```
/// use piped_client::TokioRuntime;
/// assert!(TokioRuntime::current().is_err(), "not inside of a runtime");
/// ```
#[derive(Debug, Clone)]
pub struct TokioRuntime {
    runtime: Handle,
}

impl TokioRuntime {
    /// The runtime that the caller is in.
    ///
    /// # Errors
    /// The caller is in none.
    pub fn current() -> io::Result<Self> {
        Ok(Self::new(Handle::try_current().map_err(io::Error::other)?))
    }

    /// A runtime by its handle.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

impl Runtime for TokioRuntime {
    fn watch(&self, fd: OwnedFd, mut ready: Ready) -> io::Result<Watch> {
        let _inside = self.runtime.enter();
        #[expect(deprecated, reason = "an `OwnedFd` is what its unsafe successor asks for")]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        let task = self.runtime.spawn(async move {
            while let Ok(mut guard) = fd.readable().await {
                // Before the work: what comes during it is an edge of its own.
                guard.clear_ready();
                if !ready.call() {
                    return;
                }
            }
        });
        Ok(Watch::new(Abort(task.abort_handle())))
    }

    fn unblock(&self, work: Box<dyn FnOnce() + Send>) {
        self.runtime.spawn_blocking(work);
    }
}

/// Ends a task when it is dropped.
struct Abort(AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}
