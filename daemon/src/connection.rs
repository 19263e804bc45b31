//! Connections to the daemon's unix sockets.
//!
//! Whoever connects may pass descriptors that nobody receives before the connection is closed, and the
//! kernel closes them with it. So somebody answers for a connection before it is accepted, see
//! [`crate::closing`].

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags};
use tokio::io::unix::AsyncFd;

use crate::closing::{Account, HeldFile, Room};
use crate::io::socket::asynchronous;

/// A connected, non-blocking unix socket. Dropped, the other side sees its end at once.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: AsyncFd<HeldFile>,
}

impl Connection {
    pub(crate) fn new(socket: HeldFile) -> io::Result<Self> {
        Ok(Self { socket: asynchronous(socket)? })
    }

    pub(crate) fn socket(&self) -> &AsyncFd<HeldFile> {
        &self.socket
    }

    /// Has another account answer for it.
    pub(crate) fn move_to(&mut self, room: &mut Room) {
        self.socket.get_mut().move_to(room);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Its close may hang, or wait behind one that does.
        let _ = rustix::net::shutdown(self.socket.get_ref(), Shutdown::Both);
    }
}

/// The next connection, once the account has room for it. May be dropped and called again.
pub(crate) async fn accept(
    listener: &AsyncFd<HeldFile>,
    account: &Arc<Account>,
) -> Result<Connection, Errno> {
    let mut room = account.room(1).await;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener.get_ref(), flags) {
            Err(Errno::AGAIN) => match listener.readable().await {
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return Err(Errno::NOBUFS),
            },
            Err(error) => return Err(error),
            Ok(socket) => {
                return Connection::new(room.hold(socket)).map_err(|_| Errno::NOBUFS);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use piped_ring::handshake::fds;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket_with};

    use super::*;
    use crate::closing::testing::{hanging, with_closer};
    use crate::unix_socket::listen;

    /// Would hang, not fail, if the connection or the listener were closed here.
    #[test]
    fn what_nobody_received_is_not_closed_here() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        with_closer(async |closer| {
            let (socket, _file) =
                listen("client.socket", &path, SocketType::SEQPACKET, false).expect("a listener");
            let account = Account::new(closer, 2, 2, None);
            let mut room = account.room(1).await;
            let listener = asynchronous(room.hold(socket)).expect("a socket");
            let address = SocketAddrUnix::new(&path).expect("a short path");
            let (mut clients, mut others) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                let flags = SocketFlags::CLOEXEC;
                let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
                let client = client.expect("a socket");
                connect(&client, &address).expect("somebody listens");
                let (file, other) = hanging();
                fds::send(&client, b"unread", &[file.as_fd()]).expect("sent");
                clients.push(client);
                others.push(other);
            }
            let accepted = accept(&listener, &account).await.expect("somebody connected");
            drop(accepted);
            let mut end = [0; 1];
            let flags = rustix::net::RecvFlags::empty();
            let seen = rustix::net::recv(&clients[0], &mut end, flags).map(|(count, _)| count);
            assert!(matches!(seen, Ok(0) | Err(Errno::CONNRESET)), "{seen:?}");
            // The other one was not accepted.
            drop(listener);
            drop(others);
            let _all = account.room(2).await;
        });
    }
}
