//! Messages and file descriptors over a SOCK_SEQPACKET socket.
//!
//! A receiver that has less room for descriptors than a message carries would leave it to chance
//! which of them arrive, so the room is fixed, anything beyond it is a fault, and every descriptor
//! that arrived with a faulty message is closed.

use core::mem::MaybeUninit;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::MESSAGE_BYTES_MAX;

/// The most file descriptors one message carries.
pub const FDS_PER_MESSAGE_MAX: usize = 64;

/// A message as it came from the socket.
#[derive(Debug)]
pub struct Received {
    /// Its length in bytes; the bytes are in the caller's buffer.
    pub length: usize,
    /// The descriptors that came with it, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// Why nothing was received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveFault {
    /// The other side closed its end.
    #[error("the other side closed the connection")]
    Closed,
    /// The message was longer than the buffer.
    #[error("a message is longer than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// More descriptors came than one message may have, or the process has no room for them.
    #[error(
        "a message has more than {FDS_PER_MESSAGE_MAX} file descriptors, or this process may not \
         open more (see `ulimit -n`)"
    )]
    TooManyFds,
    /// The kernel said something else; `WouldBlock` on a non-blocking socket.
    #[error("receiving from the socket failed: {0}")]
    System(#[from] io::Error),
}

/// Send one message with its descriptors, whole or not at all. A lost connection is an error, not a
/// signal.
///
/// # Errors
/// `InvalidInput` for more than [`FDS_PER_MESSAGE_MAX`] descriptors, `WouldBlock` on a non-blocking
/// socket, else what the kernel says.
pub fn send(socket: impl AsFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > FDS_PER_MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many file descriptors"));
    }
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many file descriptors"));
    }
    loop {
        let parts = [IoSlice::new(message)];
        match rustix::net::sendmsg(socket.as_fd(), &parts, &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == message.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Receive one message into `buffer` ([`MESSAGE_BYTES_MAX`] bytes) with its descriptors.
///
/// # Errors
/// See [`ReceiveFault`]; no descriptor stays open then.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received, ReceiveFault> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let result = loop {
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut control, flags) {
            Ok(result) => break result,
            Err(rustix::io::Errno::INTR) => {}
            // So the kernel says it when the other side left some of our messages unread.
            Err(rustix::io::Errno::CONNRESET) => return Err(ReceiveFault::Closed),
            Err(errno) => return Err(ReceiveFault::System(errno.into())),
        }
    };
    // Own all of them first, so that every way out of here closes them.
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    if result.flags.contains(ReturnFlags::CTRUNC) || fds.len() > FDS_PER_MESSAGE_MAX {
        return Err(ReceiveFault::TooManyFds);
    }
    if result.flags.contains(ReturnFlags::TRUNC) {
        return Err(ReceiveFault::TooLong);
    }
    if result.bytes == 0 {
        return Err(ReceiveFault::Closed);
    }
    Ok(Received { length: result.bytes, fds })
}

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX));
