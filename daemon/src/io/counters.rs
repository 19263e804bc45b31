//! Counters of the driver, so that "system calls per request" can be measured.

use piped_core::io::Op;

/// Kinds of operations, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum OpKind {
    /// Read from a file.
    Read,
    /// Write to a file.
    Write,
    /// Flush a file to disk.
    Sync,
    /// Allocate blocks to a file.
    Allocate,
    /// Carry out a call.
    Call,
    /// Send on a socket.
    Send,
    /// Send on a socket, lending the memory.
    SendZeroCopy,
    /// Receive from a socket.
    Receive,
    /// Do nothing at all.
    Nop,
}

impl OpKind {
    /// All kinds, in the order of [`UringCounters::ops`].
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Write,
        Self::Sync,
        Self::Allocate,
        Self::Call,
        Self::Send,
        Self::SendZeroCopy,
        Self::Receive,
        Self::Nop,
    ];

    /// Name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Allocate => "allocate",
            Self::Call => "call",
            Self::Send => "send",
            Self::SendZeroCopy => "send_zero_copy",
            Self::Receive => "receive",
            Self::Nop => "nop",
        }
    }

    /// Whether the kind occupies a disk (and not a socket or nothing).
    pub(super) const fn is_file(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Sync | Self::Allocate)
    }
}

impl From<&Op> for OpKind {
    fn from(op: &Op) -> Self {
        match op {
            Op::Read { .. } => Self::Read,
            Op::Write { .. } => Self::Write,
            Op::Sync { .. } => Self::Sync,
            Op::Allocate { .. } => Self::Allocate,
            Op::Call { .. } => Self::Call,
            Op::Send { .. } => Self::Send,
            Op::SendZeroCopy { .. } => Self::SendZeroCopy,
            Op::Receive { .. } => Self::Receive,
            Op::Nop => Self::Nop,
        }
    }
}

/// Counters since the driver was made. They only grow, except for gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UringCounters {
    /// Number of `io_uring_enter` calls.
    pub enters: u64,
    /// Calls that waited for a completion.
    pub waits: u64,
    /// Other system calls: registrations, shutdowns, closes, reads of doorbells.
    pub other_syscalls: u64,
    /// Operations accepted, by [`OpKind`].
    pub ops: [u64; OpKind::ALL.len()],
    /// Reads and writes on registered buffers.
    pub buffers_fixed: u64,
    /// Reads and writes on unregistered buffers: the kernel pins pages for each.
    pub buffers_plain: u64,
    /// Operations on registered files or sockets.
    pub files_fixed: u64,
    /// Operations on unregistered files or sockets.
    pub files_plain: u64,
    /// Gauge: bytes registered now.
    pub registered_bytes: u64,
    /// Gauge: operations in flight now.
    pub in_flight: u64,
    /// Segments that could not be registered.
    pub registrations_failed: u64,
    /// Gauge: sends that have ended while the kernel still holds their memory.
    pub lent: u64,
    /// Whole receives that the kernel ended short and the driver continued.
    pub continued: u64,
    /// Cancellations asked of the kernel.
    pub cancels: u64,
    /// Number of doorbells received.
    pub wakes: u64,
    /// Times that the completion queue had overflowed into the kernel's memory.
    pub overflows: u64,
    /// Operations or memory accesses refused because of a bad id, length or span: a bug of the
    /// caller.
    pub misuses: u64,
}

impl UringCounters {
    /// Operations of one kind that were accepted.
    #[must_use]
    pub const fn ops_of(&self, kind: OpKind) -> u64 {
        self.ops[kind as usize]
    }

    /// Number of all system calls.
    #[must_use]
    pub const fn syscalls(&self) -> u64 {
        self.enters + self.other_syscalls
    }
}
