//! Access to the kernel and the clock: the `uring` driver of the engine's [`Io`] trait.
//!
//! ```text
//!   engine ── push ──► ops (slab) ──► submission queue ──┐ one io_uring_enter a turn
//!   engine ◄─ Done ─── ops (slab) ◄── completion queue ◄─┘
//!             release ► tables, memory: freed after the last operation's completion
//! ```
//!
//! The intuition is that of a cloakroom. The operation that lends a segment, a file or an address
//! list to the kernel counts it. The loan is given back only over the counter, when that
//! operation's completion has come in; a dead client, a dead peer or a cancelled request change
//! nothing about that. So memory safety does not depend on careful callers. Spans are checked
//! against their segment before an operation is built, and a segment is unmapped only when no
//! operation counts it.
//!
//! Why not an async runtime over io_uring: it would hide batching, registered tables, cancellation
//! and ownership, and the engine plans with exactly these. Why not callbacks or futures per
//! operation: a completion is one number that goes back into a pure state machine.
//!
//! `unsafe` lives in eight places here. They are the two system calls (`ring`), the address lists
//! (`ops`), the registration of buffers (`registration`), the line of `uring` that queues an entry,
//! the trials of what a kernel has (`probe`, `restrict`), the system calls on files that the ring
//! must not see (`aside`), questions about a file (`page_cache`, `fiemap`), and its locks
//! (`locks`).
//!
//! [`Io`]: piped_core::io::Io

use std::io;

mod answer;
mod aside;
mod bounce;
mod calls;
pub mod clock;
mod counters;
mod entries;
pub mod far_end;
mod fiemap;
mod hold;
pub(crate) mod inherited;
mod lent;
mod locks;
mod memory;
pub(crate) mod niceness;
mod ops;
mod page_cache;
mod port;
mod priority;
mod probe;
mod reap;
mod receives;
mod registration;
mod restrict;
mod ring;
pub(crate) mod slack;
mod slots;
pub mod socket;
mod tables;
#[cfg(test)]
mod tests;
mod uring;
mod wake;

#[cfg(test)]
pub(crate) use answer::KERNEL;
pub use counters::{OpKind, UringCounters};
pub use probe::FeatureMask;
pub use registration::REGISTRATION_BYTES_PER_TURN;
pub use uring::{UringConfig, UringIo};
pub use wake::WatchId;

#[cfg(feature = "count-allocations")]
#[global_allocator]
static ALLOCATOR: piped_ring::allocations::Counting = piped_ring::allocations::Counting;

/// Why the driver cannot do its work. Faults of single operations are not here: they end as a
/// negative [`Done::result`](piped_core::io::Done::result).
#[derive(Debug, thiserror::Error)]
pub enum UringError {
    /// io_uring is switched off for this process.
    #[error(
        "io_uring may not be used by this process ({error}): {cause}; piped cannot work without it"
    )]
    Refused {
        /// Error that the kernel reports.
        error: io::Error,
        /// Likely cause of the refusal, and how to allow io_uring.
        cause: &'static str,
    },
    /// The kernel's io_uring lacks something indispensable.
    #[error("this kernel's io_uring lacks {missing}; Linux 5.15 or newer has it")]
    TooOld {
        /// Feature that is missing.
        missing: &'static str,
    },
    /// The ring could not be made for lack of memory or descriptors.
    #[error(
        "io_uring could not be set up ({0}); check free memory and LimitNOFILE= of the unit, or \
         make [io] entries smaller"
    )]
    Setup(io::Error),
    /// The ring is pinned memory, and this user may have too little of it.
    #[error(
        "io_uring could not be set up ({error}): a ring counts as pinned memory, and \
         RLIMIT_MEMLOCK is {limit_kib} KiB for all processes of this user together; a shard's ring \
         takes up to 1 MiB at the default [io] entries. Raise the limit: LimitMEMLOCK= in the \
         unit, `ulimit -l` (in KiB) in the shell that starts piped, or `prlimit --memlock` for a \
         shell that runs"
    )]
    Memlock {
        /// Error that the kernel reports.
        error: io::Error,
        /// Limit of locked memory in KiB.
        limit_kib: u64,
    },
    /// A table of the driver is full.
    #[error("the shard's table of {what} is full ({capacity}); close some or raise its limit")]
    Full {
        /// Name of the table.
        what: &'static str,
        /// Capacity of the table.
        capacity: u32,
    },
    /// The kernel refused an entry in the ring's tables, to which the ring is bound.
    #[error(
        "the kernel refuses to register {what} ({error}); check free memory, or switch \
         restrictions off with [io] disable_features"
    )]
    Register {
        /// Kind of the entry.
        what: &'static str,
        /// Error that the kernel reports.
        error: io::Error,
    },
    /// `io_uring_enter` failed in a way that no later turn can mend.
    #[error("io_uring_enter failed ({0}); the shard cannot go on")]
    Enter(io::Error),
}

impl UringError {
    /// Sorts a fault of `io_uring_setup` (or of a first registration) by its remedy.
    pub(crate) fn from_setup(error: io::Error) -> Self {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        let memlock = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        Self::from_setup_given(error, disabled.ok().as_deref().map(str::trim), memlock)
    }

    fn from_setup_given(error: io::Error, disabled: Option<&str>, memlock: Option<u64>) -> Self {
        if error.raw_os_error() == Some(libc::ENOMEM)
            && let Some(limit) = memlock
        {
            return Self::Memlock { error, limit_kib: limit >> 10 };
        }
        let cause = match (error.raw_os_error(), disabled) {
            (Some(libc::EPERM), Some("2")) => {
                "the sysctl kernel.io_uring_disabled is 2; set it to 0, or to 1 with piped's group \
                 in kernel.io_uring_group"
            }
            (Some(libc::EPERM), Some("1")) => {
                "the sysctl kernel.io_uring_disabled is 1; set it to 0, or put piped's group into \
                 kernel.io_uring_group"
            }
            (Some(libc::EPERM | libc::EACCES), _) => {
                "a seccomp filter or security module forbids it, as containers do by default; run \
                 the container with the profile /usr/share/piped/container/seccomp.json, or allow \
                 io_uring_setup, io_uring_enter and io_uring_register in its own"
            }
            (Some(libc::ENOSYS), _) => {
                "the kernel is built without CONFIG_IO_URING, or a seccomp filter hides it; run a \
                 container with the profile /usr/share/piped/container/seccomp.json, or allow \
                 io_uring_setup, io_uring_enter and io_uring_register in its own"
            }
            _ => return Self::Setup(error),
        };
        Self::Refused { error, cause }
    }
}

#[cfg(test)]
mod error_tests {
    use std::io;

    use super::UringError;

    fn said(errno: i32, disabled: Option<&str>) -> (UringError, String) {
        given(errno, disabled, Some(64 << 10))
    }

    fn given(errno: i32, disabled: Option<&str>, memlock: Option<u64>) -> (UringError, String) {
        let error = io::Error::from_raw_os_error(errno);
        let error = UringError::from_setup_given(error, disabled, memlock);
        let text = error.to_string();
        (error, text)
    }

    #[test]
    fn a_refusal_names_who_refuses_and_what_to_change() {
        for (errno, disabled, names) in [
            (libc::EPERM, Some("2"), "kernel.io_uring_disabled is 2"),
            (libc::EPERM, Some("1"), "kernel.io_uring_group"),
            (libc::EPERM, Some("0"), "seccomp"),
            (libc::EPERM, None, "seccomp"),
            (libc::EPERM, None, "/usr/share/piped/container/seccomp.json"),
            (libc::EACCES, Some("0"), "security module"),
            (libc::ENOSYS, None, "CONFIG_IO_URING"),
            (libc::ENOSYS, None, "/usr/share/piped/container/seccomp.json"),
        ] {
            let (error, text) = said(errno, disabled);
            assert!(matches!(error, UringError::Refused { .. }), "{errno}: {error:?}");
            assert!(text.contains(names), "{errno} {disabled:?}: {text}");
        }
    }

    #[test]
    fn want_of_memory_is_no_refusal() {
        let (error, text) = said(libc::ENOMEM, Some("0"));
        assert!(matches!(error, UringError::Memlock { .. }));
        for part in ["RLIMIT_MEMLOCK is 64 KiB", "LimitMEMLOCK=", "ulimit -l", "prlimit"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Without that limit it cannot be the cause.
        let (error, text) = given(libc::ENOMEM, Some("0"), None);
        assert!(matches!(error, UringError::Setup(_)));
        assert!(text.contains("free memory") && !text.contains("MEMLOCK"), "{text}");
    }
}
