//! Messages and file descriptors over a SOCK_SEQPACKET socket.
//!
//! A receiver that has less room for descriptors than a message carries would leave it to chance
//! which of them arrive, so the room is fixed, and anything beyond it is a fault.

use core::mem::MaybeUninit;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
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
    let mut fds = Vec::new();
    let length = receive_into(socket, buffer, &mut fds)?;
    Ok(Received { length, fds })
}

/// As [`receive`], for who must not close a descriptor here: all that came are in `fds`, also with a
/// fault. The length of the message in bytes.
///
/// # Errors
/// See [`ReceiveFault`].
pub fn receive_into(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<usize, ReceiveFault> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let result = message(socket.as_fd(), buffer, &mut control)?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            fds.extend(received);
        }
    }
    if result.flags.contains(ReturnFlags::CTRUNC) || fds.len() > FDS_PER_MESSAGE_MAX {
        return Err(ReceiveFault::TooManyFds);
    }
    check(&result)
}

/// As [`receive`], for a message that has no descriptors: the kernel keeps those that come
/// nevertheless. The length of the message in bytes, and whether some came.
///
/// # Errors
/// See [`ReceiveFault`].
pub fn receive_bare(socket: impl AsFd, buffer: &mut [u8]) -> Result<(usize, bool), ReceiveFault> {
    let result = message(socket.as_fd(), buffer, &mut RecvAncillaryBuffer::default())?;
    Ok((check(&result)?, result.flags.contains(ReturnFlags::CTRUNC)))
}

fn message(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut RecvAncillaryBuffer<'_>,
) -> Result<RecvMsg, ReceiveFault> {
    loop {
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut parts, control, flags) {
            Ok(result) => return Ok(result),
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

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX));
