//! What the library wants of a runtime.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

/// A runtime, or an event loop, as far as the library needs one: it calls a function when a
/// descriptor is readable. `TokioRuntime` (feature `tokio`) is one.
///
/// ```
/// use std::io;
/// use std::os::fd::OwnedFd;
/// use piped_client::{Runtime, Ready, Watch};
///
/// /// A thread for each descriptor: for programs without a runtime.
/// struct Threads;
///
/// impl Runtime for Threads {
///     fn watch(&self, fd: OwnedFd, mut ready: Ready) -> io::Result<Watch> {
///         let (stop, stopped) = io::pipe()?;
///         std::thread::spawn(move || {
///             use rustix::event::{PollFd, PollFlags, poll};
///             loop {
///                 let mut polled =
///                     [PollFd::new(&fd, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
///                 let waited = poll(&mut polled, None).is_ok();
///                 let ends = !polled[1].revents().is_empty();
///                 if ends || (waited && !polled[0].revents().is_empty() && !ready.call()) {
///                     return;
///                 }
///             }
///         });
///         // Dropped, it hangs up.
///         Ok(Watch::new(stopped))
///     }
/// }
/// ```
pub trait Runtime: Send + Sync + 'static {
    /// Calls `ready` whenever `fd` is readable or has hung up, until that says `false` or the
    /// [`Watch`] is dropped; not from within this function. A call reads all that is there. So
    /// edges are enough, and a runtime that forgets an edge does so before the call.
    ///
    /// # Errors
    /// The descriptor cannot be watched.
    fn watch(&self, fd: OwnedFd, ready: Ready) -> io::Result<Watch>;

    /// Runs work that the kernel may take long for, where that holds up nobody. As it is, on a
    /// thread of its own.
    fn unblock(&self, work: Box<dyn FnOnce() + Send>) {
        std::thread::spawn(work);
    }
}

/// The work that a readable descriptor is for.
pub struct Ready(Box<dyn FnMut() -> bool + Send>);

impl Ready {
    pub(super) fn new(work: impl FnMut() -> bool + Send + 'static) -> Self {
        Self(Box::new(work))
    }

    /// Does the work. `false`: there will be no more of it, and the watch is over.
    #[must_use]
    pub fn call(&mut self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ready")
    }
}

/// A descriptor that is watched, until this is dropped.
pub struct Watch(#[expect(dead_code, reason = "its drop is all")] Box<dyn Any + Send + Sync>);

impl Watch {
    /// A watch that ends when `until` is dropped.
    #[must_use]
    pub fn new(until: impl Send + Sync + 'static) -> Self {
        Self(Box::new(until))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
