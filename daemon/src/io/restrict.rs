//! Limits that the kernel puts on a shard's ring once it serves.
//!
//! A ring can do far more than this daemon needs: open files by path, connect, change another
//! file's attributes. An attacker that could write entries into its queue could do all of that,
//! past a filter of system calls, which does not see operations of a ring. So the ring is made
//! disabled, gets its tables and the list of allowed operations, and is then enabled. After that
//! the kernel refuses everything else with EACCES, and nobody can undo the list.
//!
//! If all files, sockets and doorbells are in the ring's table, every entry has to name one of them
//! (or none) by its place there. The number of another open descriptor is then of no use.

use std::fmt;
use std::io;

use io_uring::register::Restriction;
use io_uring::{IoUring, Probe, opcode, squeue};

use super::probe::Shape;

/// Operations that the driver needs in any case.
pub(super) const NEEDED: [(u8, &str); 13] = [
    (opcode::Nop::CODE, "NOP"),
    (opcode::Read::CODE, "READ"),
    (opcode::Write::CODE, "WRITE"),
    (opcode::ReadFixed::CODE, "READ_FIXED"),
    (opcode::WriteFixed::CODE, "WRITE_FIXED"),
    (opcode::Fsync::CODE, "FSYNC"),
    (opcode::Fallocate::CODE, "FALLOCATE"),
    (opcode::Send::CODE, "SEND"),
    (opcode::SendMsg::CODE, "SENDMSG"),
    (opcode::Recv::CODE, "RECV"),
    (opcode::RecvMsg::CODE, "RECVMSG"),
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
];

/// Operations that the driver uses if the kernel has them.
pub(super) const LENDING: [u8; 2] = [opcode::SendZc::CODE, opcode::SendMsgZc::CODE];

/// Values from `linux/io_uring.h`: updates of the tables of files and buffers, and the thread
/// letting go of the ring at its end.
const REGISTER_FILES_UPDATE: u8 = 6;
const REGISTER_BUFFERS_UPDATE: u8 = 16;
const UNREGISTER_RING_FDS: u8 = super::ring::UNREGISTER_RING_FDS as u8;

/// Bounds of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bounds {
    /// The ring does whatever io_uring can.
    None,
    /// The operations above, on any descriptor of the process.
    Operations,
    /// The operations above, only on files in its table.
    Files,
}

impl Bounds {
    /// Flags that every entry must have.
    pub(super) const fn flags(self) -> squeue::Flags {
        match self {
            Self::Files => squeue::Flags::FIXED_FILE,
            Self::None | Self::Operations => squeue::Flags::empty(),
        }
    }
}

/// Registrations that the ring makes while it serves.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Registers {
    pub(super) files: bool,
    pub(super) buffers: bool,
    pub(super) ring_fd: bool,
}

/// Reason why a ring cannot be bounded.
#[derive(Debug)]
pub(super) struct Unbounded(io::Error);

impl fmt::Display for Unbounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this kernel does not have it ({})", self.0)
    }
}

/// Finds the narrowest bounds of this kernel, with a ring of the smallest size.
pub(super) fn offered() -> Result<Bounds, Unbounded> {
    try_out().map_err(Unbounded)
}

fn try_out() -> io::Result<Bounds> {
    let mut ring = Shape { disabled: true, ..Shape::TRIAL }.build()?;
    bound(&ring, Bounds::Files, Registers { files: true, buffers: true, ring_fd: false })?;
    let mut ends_with = |entry: squeue::Entry| -> io::Result<i32> {
        let entry = entry.flags(Bounds::Files.flags());
        // SAFETY: the entries below name no memory and no descriptor.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        ring.submit_and_wait(1)?;
        let first = ring.completion().next().map(|cqe| cqe.result());
        first.ok_or_else(|| io::Error::other("no completion"))
    };
    let nop = ends_with(opcode::Nop::new().build())?;
    // Kernels before 5.19 do not take the flag for it, because it names no file.
    let cancel = ends_with(opcode::AsyncCancel::new(1).build())?;
    Ok(if (nop, cancel) == (0, -libc::ENOENT) { Bounds::Files } else { Bounds::Operations })
}

/// Bounds a ring that was made disabled, for good, and enables it.
pub(super) fn bound(ring: &IoUring, bounds: Bounds, registers: Registers) -> io::Result<()> {
    let submitter = ring.submitter();
    if bounds != Bounds::None {
        submitter.register_restrictions(&mut list(ring, bounds, registers)?)?;
    }
    submitter.register_enable_rings()
}

fn list(ring: &IoUring, bounds: Bounds, registers: Registers) -> io::Result<Vec<Restriction>> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let lending = LENDING.into_iter().filter(|&code| probe.is_supported(code));
    let operations = NEEDED.into_iter().map(|(code, _)| code).chain(lending);
    let registered = [
        (registers.files, REGISTER_FILES_UPDATE),
        (registers.buffers, REGISTER_BUFFERS_UPDATE),
        (registers.ring_fd, UNREGISTER_RING_FDS),
    ];
    let registered = registered.into_iter().filter(|(used, _)| *used).map(|(_, code)| code);
    let mut list: Vec<Restriction> = operations.map(Restriction::sqe_op).collect();
    list.extend(registered.map(Restriction::register_op));
    // Other flags are not needed: no links, no draining, no chosen buffers.
    let fixed = squeue::Flags::FIXED_FILE.bits();
    list.push(match bounds {
        Bounds::Files => Restriction::sqe_flags_required(fixed),
        _ => Restriction::sqe_flags_allowed(fixed),
    });
    Ok(list)
}
