//! The ring and its two system calls, with counts.
//!
//! The crate's own `submit` forgets a registered ring descriptor as soon as its `Submitter` is
//! dropped, and does not say how often it entered the kernel. The driver needs both, so this file
//! makes the calls, on the crate's queues.

use std::os::fd::AsRawFd;
use std::sync::atomic::{Ordering, fence};
use std::{io, ptr};

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, squeue};
use piped_core::units::Nanos;

use super::UringError;
use super::counters::UringCounters;
use super::restrict::{self, Bounds, Registers};

/// `IORING_REGISTER_RING_FDS` and its reverse, from `linux/io_uring.h`.
const REGISTER_RING_FDS: libc::c_uint = 20;
pub(super) const UNREGISTER_RING_FDS: libc::c_uint = 21;

/// Layout of `struct io_uring_rsrc_update`.
#[repr(C)]
struct RingFdUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// Longest wait of [`Ring::enter`] for a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Submit, and collect completions only if the kernel says that there are some.
    None,
    /// Submit and wait for one completion, at most this long.
    AtMost(Nanos),
    /// Submit and wait for one completion.
    Forever,
}

/// Outcome of one `io_uring_enter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entered {
    /// The call went through, or the wait ended by time or signal.
    Done,
    /// The kernel lacks something; take completions first, then try again.
    Busy,
}

/// An io_uring instance bound to the thread that made it.
pub(super) struct Ring {
    ring: IoUring,
    /// Index of the ring in this thread's table of registered rings.
    registered: Option<u32>,
    sqpoll: bool,
    no_iowait: bool,
    /// On another thread the index means another ring, and `SINGLE_ISSUER` rings refuse others.
    _thread_bound: std::marker::PhantomData<*mut ()>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("params", self.ring.params())
            .field("registered", &self.registered)
            .finish_non_exhaustive()
    }
}

impl Ring {
    pub(super) fn new(ring: IoUring) -> Self {
        let sqpoll = ring.params().is_setup_sqpoll();
        let no_iowait = ring.params().is_feature_no_iowait();
        Self { ring, registered: None, sqpoll, no_iowait, _thread_bound: std::marker::PhantomData }
    }

    /// Access to the registration calls.
    pub(super) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.ring.submitter()
    }

    /// Bounds a ring that was made disabled to certain operations, and makes it serve.
    pub(super) fn serve(&self, bounds: Bounds, registers: Registers) -> io::Result<()> {
        let registers = Registers { ring_fd: self.registered.is_some(), ..registers };
        restrict::bound(&self.ring, bounds, registers)
    }

    /// Descriptor of the ring, as /proc names it.
    #[cfg(test)]
    pub(super) fn number(&self) -> i32 {
        self.ring.as_raw_fd()
    }

    pub(super) fn cq_entries(&self) -> u32 {
        self.ring.params().cq_entries()
    }

    /// Puts the ring into this thread's table, which saves a look-up of the descriptor per call.
    pub(super) fn register_fd(&mut self) -> io::Result<()> {
        let mut update = RingFdUpdate {
            offset: u32::MAX, // the kernel chooses
            reserved: 0,
            data: self.ring.as_raw_fd() as u64,
        };
        // SAFETY: the call reads and writes one `io_uring_rsrc_update`, which `update` is by its
        // `repr(C)` layout, and keeps no pointer.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.ring.as_raw_fd(),
                REGISTER_RING_FDS,
                ptr::from_mut(&mut update),
                1,
            )
        };
        match result {
            1 => {
                self.registered = Some(update.offset);
                Ok(())
            }
            0 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether a kernel thread takes entries from the queue by itself.
    pub(super) fn is_polled(&self) -> bool {
        self.sqpoll
    }

    pub(super) fn sq_len(&mut self) -> u32 {
        self.ring.submission().len() as u32
    }

    /// Whether another entry fits.
    pub(super) fn sq_has_room(&mut self) -> bool {
        !self.ring.submission().is_full()
    }

    /// Queues an entry; `false` if the queue is full.
    ///
    /// # Safety
    /// Everything the entry points to must stay valid until its completion has been taken.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller gives the same promise.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Takes the next completion.
    pub(super) fn pop(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    pub(super) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Number of completions that wait to be taken.
    pub(super) fn completions(&mut self) -> usize {
        self.ring.completion().len()
    }

    /// Whether completions wait in the kernel for a call that collects them.
    pub(super) fn wants_collecting(&mut self, counters: &mut UringCounters) -> bool {
        let queue = self.ring.submission();
        let overflown = queue.cq_overflow();
        counters.overflows += u64::from(overflown);
        overflown || queue.taskrun()
    }

    /// Submits queued entries, and waits with the given patience. `quiet` means that the wait is
    /// for people, not for a device, and must not count as I/O wait.
    pub(super) fn enter(
        &mut self,
        patience: Patience,
        quiet: bool,
        counters: &mut UringCounters,
    ) -> Result<Entered, UringError> {
        let queued = self.sq_len();
        let mut flags = EnterFlags::empty();
        let timespec;
        let mut args = SubmitArgs::new();
        let mut want = 0;
        match patience {
            Patience::None => {
                if self.wants_collecting(counters) {
                    flags |= EnterFlags::GETEVENTS;
                }
            }
            Patience::AtMost(Nanos(nanos)) => {
                timespec =
                    Timespec::new().sec(nanos / 1_000_000_000).nsec((nanos % 1_000_000_000) as u32);
                args = args.timespec(&timespec);
                want = 1;
            }
            Patience::Forever => want = 1,
        }
        if want > 0 {
            flags |= EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
            if quiet && self.no_iowait {
                flags |= EnterFlags::NO_IOWAIT;
            }
            counters.waits += 1;
        }
        if self.sqpoll {
            // Pairs with the kernel thread's full barrier between raising NEED_WAKEUP and its last
            // look at the queue's tail: without it we could miss the flag while it misses the tail,
            // and the entries would wait for the next call.
            fence(Ordering::SeqCst);
            if self.ring.submission().need_wakeup() {
                flags |= EnterFlags::SQ_WAKEUP;
            }
        }
        if flags.is_empty() && (queued == 0 || self.sqpoll) {
            return Ok(Entered::Done);
        }
        counters.enters += 1;
        self.enter_raw(queued, want, flags, &args)
    }

    fn enter_raw(
        &self,
        queued: u32,
        want: u32,
        mut flags: EnterFlags,
        args: &SubmitArgs<'_, '_>,
    ) -> Result<Entered, UringError> {
        let fd = match self.registered {
            Some(index) => {
                flags |= EnterFlags::REGISTERED_RING;
                index as i32
            }
            None => self.ring.as_raw_fd(),
        };
        let (arg, size) = if flags.contains(EnterFlags::EXT_ARG) {
            (ptr::from_ref(args).cast::<libc::c_void>(), size_of::<SubmitArgs<'_, '_>>())
        } else {
            (ptr::null(), 0)
        };
        // SAFETY: `arg` is null or points to `args`, a transparent `io_uring_getevents_arg` with a
        // timespec that is borrowed for `args`' lifetime; the kernel keeps neither. `push` promises
        // that the queued entries' pointers are valid.
        let result = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, fd, queued, want, flags.bits(), arg, size)
        };
        if result >= 0 {
            return Ok(Entered::Done);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // The time is up, or a signal came: the turn looks around either way. Either nothing
            // was submitted then, or all of it; the queue's head tells.
            Some(libc::ETIME | libc::EINTR) => Ok(Entered::Done),
            // Out of request memory, or overflown: taking completions helps.
            Some(libc::EAGAIN | libc::EBUSY) => Ok(Entered::Busy),
            _ => Err(UringError::Enter(error)),
        }
    }
}

impl Drop for Ring {
    /// The thread's table keeps the ring alive, with all that it pins, until the thread ends.
    fn drop(&mut self) {
        let Some(offset) = self.registered else { return };
        let update = RingFdUpdate { offset, reserved: 0, data: 0 };
        // SAFETY: the call reads one `io_uring_rsrc_update` and keeps no pointer.
        unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.ring.as_raw_fd(),
                UNREGISTER_RING_FDS,
                ptr::from_ref(&update),
                1,
            );
        }
    }
}
