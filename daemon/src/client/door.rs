//! A client's socket, asynchronously.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use piped_ring::handshake::fds::{self, ReceiveFault, Received};
use piped_ring::handshake::{MESSAGE_BYTES_MAX, Reply};
use tokio::io::unix::AsyncFd;

use crate::io::socket::asynchronous;
use crate::limits::HANDSHAKE_TIMEOUT;

/// A connected, non-blocking SOCK_SEQPACKET socket.
#[derive(Debug)]
pub(super) struct Door {
    socket: AsyncFd<OwnedFd>,
}

impl Door {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: asynchronous(socket)? })
    }

    /// The next message. May be dropped and called again without losing one.
    pub(super) async fn receive(&self, buffer: &mut [u8]) -> Result<Received, ReceiveFault> {
        loop {
            // First the call, then the wait: `closed` may have taken the notice of readiness away.
            match fds::receive(self.socket.get_ref(), buffer) {
                Err(ReceiveFault::System(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.readable().await?.clear_ready();
                }
                result => return result,
            }
        }
    }

    /// Resolves when the client has hung up, whatever it sent before.
    pub(super) async fn closed(&self) {
        while let Ok(mut guard) = self.socket.readable().await {
            if guard.ready().is_read_closed() {
                return;
            }
            guard.clear_ready();
        }
    }

    /// Sends a reply with its descriptors; a client that does not take it in time is given up.
    pub(super) async fn send(
        &self,
        reply: &Reply,
        sequence: u32,
        passed: &[OwnedFd],
    ) -> io::Result<()> {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let length = reply.encode(sequence, &mut buffer).map_err(io::Error::other)?;
        let passed: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
        let send = async {
            loop {
                match fds::send(self.socket.get_ref(), &buffer[..length], &passed) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.socket.writable().await?.clear_ready();
                    }
                    result => return result,
                }
            }
        };
        tokio::time::timeout(HANDSHAKE_TIMEOUT, send).await?
    }
}
