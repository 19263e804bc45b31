//! Messages and file descriptors over a SOCK_SEQPACKET socket.
//!
//! What does not fit into the receiver's room the kernel closes, in the receiver's own thread, and
//! a close may hang. So there is room for as many descriptors as a message can carry, and more than
//! one may is a fault with all of them in hand.

use core::mem::MaybeUninit;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use super::MESSAGE_BYTES_MAX;

/// The most file descriptors one message may carry.
pub const FDS_PER_MESSAGE_MAX: usize = 64;

/// The most the kernel lets anybody send with one message (its `SCM_MAX_FD`).
pub const FDS_RECEIVED_MAX: usize = 253;

/// A message as it came from the socket.
#[derive(Debug)]
pub struct Received {
    /// Length of the message in bytes; the bytes are in the caller's buffer.
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
    send_with(socket.as_fd(), message, fds, SendFlags::NOSIGNAL)
}

/// Sends as [`send`], but does not wait for room on a blocking socket either: that is
/// `WouldBlock`.
///
/// # Errors
/// As of [`send`].
pub fn try_send(socket: impl AsFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket.as_fd(), message, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    if fds.len() > FDS_PER_MESSAGE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many file descriptors"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many file descriptors"));
    }
    loop {
        let parts = [IoSlice::new(message)];
        match rustix::net::sendmsg(socket, &parts, &mut control, flags) {
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
    let mut fds = Vec::new();
    let length = receive_into(socket, buffer, &mut fds)?;
    Ok(Received { length, fds })
}

/// Receives a message as [`receive`], for a caller that must not close a descriptor here: all that
/// came, up to [`FDS_RECEIVED_MAX`], are in `fds`, also with a fault. Returns the length of the
/// message in bytes.
///
/// # Errors
/// See [`ReceiveFault`].
pub fn receive_into(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<usize, ReceiveFault> {
    let result = message(socket.as_fd(), buffer, fds)?;
    if result.flags.contains(ReturnFlags::CTRUNC) || fds.len() > FDS_PER_MESSAGE_MAX {
        return Err(ReceiveFault::TooManyFds);
    }
    check(&result)
}

/// Receive bytes of a stream that carries no descriptors; those that come nevertheless are in
/// `fds`.
///
/// # Errors
/// The error of the kernel; `WouldBlock` on a non-blocking socket.
pub fn receive_bytes(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    match message(socket.as_fd(), buffer, fds) {
        Ok(result) => Ok(result.bytes),
        Err(ReceiveFault::System(error)) => Err(error),
        Err(fault) => Err(io::Error::new(io::ErrorKind::ConnectionReset, fault)),
    }
}

fn message(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<RecvMsg, ReceiveFault> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_RECEIVED_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut parts, &mut control, flags) {
            Ok(result) => {
                for part in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = part {
                        fds.extend(received);
                    }
                }
                return Ok(result);
            }
            Err(rustix::io::Errno::INTR) => {}
            // So the kernel says it when the other side left some of our messages unread.
            Err(rustix::io::Errno::CONNRESET) => return Err(ReceiveFault::Closed),
            Err(errno) => return Err(ReceiveFault::System(errno.into())),
        }
    }
}

fn check(result: &RecvMsg) -> Result<usize, ReceiveFault> {
    if result.flags.contains(ReturnFlags::TRUNC) {
        return Err(ReceiveFault::TooLong);
    }
    if result.bytes == 0 {
        return Err(ReceiveFault::Closed);
    }
    Ok(result.bytes)
}
