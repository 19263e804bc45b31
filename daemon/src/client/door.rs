//! A client's socket, asynchronously.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use piped_ring::handshake::fds::{self, FDS_PER_MESSAGE_MAX, ReceiveFault};
use piped_ring::handshake::{MESSAGE_BYTES_MAX, Reply};
use tokio::io::unix::AsyncFd;

use crate::closing::{Account, HeldFile};
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

    /// The first message, its length and whether files came with it. Nobody answers for them yet, so
    /// the kernel keeps them.
    pub(super) async fn receive_bare(
        &self,
        buffer: &mut [u8],
    ) -> Result<(usize, bool), ReceiveFault> {
        self.receive_with(|socket| fds::receive_bare(socket, buffer)).await
    }

    /// The next message: its length, and the files that came with it, which are the account's from here
    /// on. While the account has no room for them the client waits. May be dropped and called again
    /// without losing a message.
    pub(super) async fn receive(
        &self,
        buffer: &mut [u8],
        account: &Arc<Account>,
    ) -> Result<(usize, Vec<HeldFile>), ReceiveFault> {
        let mut room = tokio::select! {
            biased;
            room = account.room(FDS_PER_MESSAGE_MAX as u32) => room,
            () = self.closed() => return Err(ReceiveFault::Closed),
        };
        self.receive_with(|socket| {
            let mut fds = Vec::new();
            let length = fds::receive_into(socket, buffer, &mut fds);
            let held: Vec<HeldFile> = fds.drain(..).map(|fd| room.hold(fd)).collect();
            Ok((length?, held))
        })
        .await
    }

    async fn receive_with<T>(
        &self,
        mut call: impl FnMut(&OwnedFd) -> Result<T, ReceiveFault>,
    ) -> Result<T, ReceiveFault> {
        loop {
            // First the call, then the wait: `closed` may have taken the notice of readiness away.
            match call(self.socket.get_ref()) {
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::closing::Closer;

    fn doors() -> (Door, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
        (Door::new(ours).expect("a socket"), theirs)
    }

    #[tokio::test]
    async fn what_comes_with_a_message_is_its_accounts_and_not_closed_here() {
        let (door, client) = doors();
        let (closer, mut leaving) = Closer::new();
        let account = Account::new(closer, FDS_PER_MESSAGE_MAX, 1, None);
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let (_, file) = std::io::pipe().expect("a pipe");
        let files = [file.as_fd(); 3];
        fds::send(&client, b"sound", &files).expect("sent");
        let (length, held) = door.receive(&mut buffer, &account).await.expect("a message");
        assert_eq!((length, held.len()), (5, 3));
        let all = FDS_PER_MESSAGE_MAX as u32;
        assert!(account.try_room(all - 2).is_none() && account.try_room(all - 3).is_some());
        drop(held);
        let mut left: Vec<_> = std::iter::from_fn(|| leaving.try_recv().ok()).collect();
        assert_eq!(left.len(), 3);
        assert!(account.try_room(all - 2).is_none(), "they are not closed yet");
        left.clear();
        assert!(account.try_room(all).is_some());
        // A fault does not close them here either.
        fds::send(&client, &[0; MESSAGE_BYTES_MAX + 1], &files).expect("sent");
        let fault = door.receive(&mut buffer, &account).await;
        assert!(matches!(fault, Err(ReceiveFault::TooLong)), "{fault:?}");
        assert_eq!(std::iter::from_fn(|| leaving.try_recv().ok()).count(), 3);
    }

    #[tokio::test]
    async fn what_comes_before_hello_is_not_taken() {
        let (door, client) = doors();
        let (mut reader, file) = std::io::pipe().expect("a pipe");
        fds::send(&client, b"first", &[file.as_fd()]).expect("sent");
        drop(file);
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let received = door.receive_bare(&mut buffer).await.expect("a message");
        assert_eq!(received, (5, true));
        assert_eq!(reader.read(&mut [0]).expect("its end"), 0, "the kernel dropped it");
        fds::send(&client, b"first", &[]).expect("sent");
        assert_eq!(door.receive_bare(&mut buffer).await.expect("a message"), (5, false));
    }
}
