//! The socket of a client, asynchronously.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use piped_ring::handshake::fds::{self, FDS_RECEIVED_MAX, ReceiveFault};
use piped_ring::handshake::{MESSAGE_BYTES_MAX, Reply};
use rustix::net::Shutdown;
use tokio::io::unix::AsyncFd;

use crate::closing::{Account, HeldFile};
use crate::connection::Connection;
use crate::limits::HANDSHAKE_TIMEOUT;

/// A connection of kind SOCK_SEQPACKET.
#[derive(Debug)]
pub(super) struct Door {
    connection: Connection,
}

impl Door {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Moves the socket to another account, if that has room.
    pub(super) fn move_to(&mut self, account: &Arc<Account>) {
        if let Some(mut room) = account.try_room(1) {
            self.connection.move_to(&mut room);
        }
    }

    fn socket(&self) -> &AsyncFd<HeldFile> {
        self.connection.socket()
    }

    /// Receives a message: its length, and the files that came with it, which belong to the account
    /// from here on. While the account has no room for them the client waits. May be dropped and
    /// called again without losing a message.
    pub(super) async fn receive(
        &self,
        buffer: &mut [u8],
        account: &Arc<Account>,
    ) -> Result<(usize, Vec<HeldFile>), ReceiveFault> {
        let mut room = tokio::select! {
            biased;
            room = account.room(FDS_RECEIVED_MAX as u32) => room,
            () = self.closed() => return Err(ReceiveFault::Closed),
        };
        loop {
            // Call first, then wait: `closed` may have taken the notice of readiness away.
            let mut fds = Vec::new();
            let length = fds::receive_into(self.socket().get_ref(), buffer, &mut fds);
            let held: Vec<HeldFile> = fds.drain(..).map(|fd| room.hold(fd)).collect();
            match length {
                Err(ReceiveFault::System(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket().readable().await?.clear_ready();
                }
                length => return Ok((length?, held)),
            }
        }
    }

    /// Resolves when the client has hung up, whatever it sent before.
    pub(super) async fn closed(&self) {
        while let Ok(mut guard) = self.socket().readable().await {
            if guard.ready().is_read_closed() {
                return;
            }
            guard.clear_ready();
        }
    }

    /// Shows the client the end; [`Self::await_hang_up`] waits for that of the client.
    pub(super) fn end(&self) {
        // An error means that the client is gone.
        let _ = rustix::net::shutdown(self.socket().get_ref(), Shutdown::Write);
    }

    /// Resolves when a client that was shown the end has hung up. Messages until then are received
    /// and dropped, so that the client does not wait for that.
    pub(super) async fn await_hang_up(&self, account: &Arc<Account>) {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        loop {
            let received = self.receive(&mut buffer, account).await;
            if let Err(ReceiveFault::Closed | ReceiveFault::System(_)) = received {
                return;
            }
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
                match fds::send(self.socket().get_ref(), &buffer[..length], &passed) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.socket().writable().await?.clear_ready();
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
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::closing::Closer;
    use crate::closing::testing::{hanging, with_closer};
    use crate::limits::FILES_PER_HANDSHAKE;

    fn doors(account: &Arc<Account>) -> (Door, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
        let held = account.try_room(1).expect("an empty account").hold(ours);
        (Door::new(Connection::new(held).expect("a socket")), theirs)
    }

    #[tokio::test]
    async fn what_comes_with_a_message_is_its_accounts_and_not_closed_here() {
        let (closer, mut leaving) = Closer::new();
        let account = Account::new(closer.clone(), FDS_RECEIVED_MAX, 1, None);
        let (door, client) = doors(&Account::new(closer, 1, 1, None));
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let (_, file) = std::io::pipe().expect("a pipe");
        let files = [file.as_fd(); 3];
        fds::send(&client, b"sound", &files).expect("sent");
        let (length, held) = door.receive(&mut buffer, &account).await.expect("a message");
        assert_eq!((length, held.len()), (5, 3));
        let all = FDS_RECEIVED_MAX as u32;
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

    /// The test would hang, not fail, if a descriptor were closed here.
    #[test]
    fn a_descriptor_that_hangs_hangs_its_own_place_alone() {
        with_closer(async |closer| {
            let account = Account::new(closer, FILES_PER_HANDSHAKE, 1, None);
            let (door, client) = doors(&account);
            let mut others = Vec::new();
            let mut send = || {
                let (file, other) = hanging();
                fds::send(&client, b"hello", &[file.as_fd()]).expect("sent");
                others.push(other);
            };
            send();
            send();
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            let (_, files) = door.receive(&mut buffer, &account).await.expect("a message");
            assert_eq!(files.len(), 1);
            drop(files);
            // The second one is unread.
            drop(door);
            assert!(account.try_room(FILES_PER_HANDSHAKE as u32).is_none(), "they are not closed");
            drop(others);
            let _all = account.room(FILES_PER_HANDSHAKE as u32).await;
        });
    }
}
