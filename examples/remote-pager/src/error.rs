//! Errors of a pager. Each text names the cause and, if there is one, the fix.

use std::io;

use piped_client::{AllocateError, Cause, QueueError, SubmitFault};

/// A part that the kernel lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Need {
    /// The kernel has no userfaultfd.
    #[error("userfaultfd (CONFIG_USERFAULTFD)")]
    Userfaultfd,
    /// Faults of user code for those without privileges.
    #[error("userfaultfd for user mode only (Linux 5.11)")]
    UserModeOnly,
    /// The kernel cannot report writes.
    #[error("write protection by userfaultfd (Linux 5.7); map it for reading only")]
    WriteProtect,
}

/// Why there is no mapping.
///
/// ```
/// let error = remote_pager::MapError::Denied { user_mode_only: false };
/// assert!(error.to_string().contains("vm.unprivileged_userfaultfd"));
/// ```
#[derive(thiserror::Error)]
pub enum MapError {
    /// The kernel denies this process a userfaultfd.
    #[error("{}", denied(*.user_mode_only))]
    Denied {
        /// Whether only faults of user code were asked for.
        user_mode_only: bool,
    },
    /// The kernel lacks a part that this takes.
    #[error("this kernel has no {need}")]
    Kernel {
        /// The part that is missing.
        need: Need,
    },
    /// A limit that makes no sense, or nothing to map.
    #[error("{0}")]
    Options(&'static str),
    /// No queue for the pager.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// No buffers for the pager.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The kernel refused the mapping.
    #[error("mapping memory failed: {0}")]
    System(#[from] io::Error),
}

/// `Debug` prints the error's text, as piped's own errors do, for `main` and `unwrap`.
macro_rules! debug_is_text {
    ($($error:ty),*) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

debug_is_text!(MapError, PageError, SyncError);

fn denied(user_mode_only: bool) -> &'static str {
    if user_mode_only {
        "userfaultfd is not permitted, not even for user mode only: a seccomp filter (of a \
         container, say) refuses the system call; allow it there"
    } else {
        "this user may not serve page faults of system calls: let it read and write \
         /dev/userfaultfd (Linux 6.1), or set the sysctl vm.unprivileged_userfaultfd to 1, or give \
         the program CAP_SYS_PTRACE; or, if no system call is to touch the mapping, ask for user \
         mode only (--user-mode-only), which needs no right"
    }
}

/// A page that could not be had, or could not be written back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page {page} could not be {what}: {cause}")]
pub struct PageError {
    /// By its number in the mapping.
    pub page: u32,
    /// The direction that was tried.
    pub what: Moved,
    /// Why it was given up.
    pub cause: Cause,
}

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// From the other node.
    Fetched,
    /// To the other node.
    Saved,
}

impl std::fmt::Display for Moved {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(match self {
            Self::Fetched => "fetched",
            Self::Saved => "written back",
        })
    }
}

/// Why a sync did not save everything.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// Some pages were not saved: they stay in the mapping, and another sync tries again.
    #[error(transparent)]
    Page(#[from] PageError),
    /// All is written, and not known to be on stable storage.
    #[error("what was written back is not known to be durable: {0}")]
    Durable(Cause),
    /// The pager ended; see [`crate::Pager::failure`].
    #[error("the pager ended, and with it what was not yet written back")]
    Ended,
}

/// Whether it may be otherwise the next time.
pub(crate) fn is_passing(cause: Cause) -> bool {
    use piped_client::Status;
    match cause {
        Cause::Status(status) => matches!(
            status,
            Status::PeerLost | Status::DeadlineExceeded | Status::WouldBlock | Status::Corrupt
        ),
        Cause::NotSubmitted(SubmitFault::Full | SubmitFault::NoRoom) => true,
        _ => false,
    }
}
