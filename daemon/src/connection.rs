//! Connections to the daemon's unix sockets.
//!
//! A caller may pass descriptors that are not received before the connection is closed, and the
//! kernel closes them with it. So an account is charged for a connection from the moment it is
//! accepted, see [`crate::doorstep`] and [`crate::closing`].

use std::io;

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags};
use tokio::io::unix::AsyncFd;

use crate::closing::{HeldFile, Room};
use crate::doorstep::{Doorstep, Knock};
use crate::io::socket::{asynchronous, let_pass_descriptors, peer_credentials};
use piped_control::parties::Credentials;

/// A connected, non-blocking unix socket. The other side sees its end as soon as it is dropped.
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

    /// Allows descriptors to be passed from here on, because an account is charged for them.
    pub(crate) fn take_descriptors(&self) {
        // Before Linux 6.16 they may come anyway.
        let _ = let_pass_descriptors(self.socket.get_ref(), true);
    }

    /// Moves the connection to another account.
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

/// Accepts the next connection, and finds its user. The account of the user's party is charged
/// while it has no place.
pub(crate) async fn accept(
    listener: &AsyncFd<HeldFile>,
    doorstep: &Doorstep,
    whose: impl Fn(&Credentials) -> Knock,
) -> Result<(Connection, Credentials), Errno> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener.get_ref(), flags) {
            Err(Errno::AGAIN) => match listener.readable().await {
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return Err(Errno::NOBUFS),
            },
            Err(error) => return Err(error),
            Ok(socket) => {
                let who = peer_credentials(&socket);
                let knock = who.as_ref().map_or(Knock::Stranger, &whose);
                let held = doorstep.hold(socket, knock).await;
                let connection = Connection::new(held).map_err(|_| Errno::NOBUFS)?;
                match who {
                    Ok(who) => return Ok((connection, who)),
                    Err(error) => {
                        tracing::debug!(%error, "the kernel does not name the user that connected")
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;
    use std::sync::Arc;

    use piped_ring::handshake::fds;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket_with};

    use super::*;
    use crate::closing::Account;
    use crate::closing::testing::{hanging, with_closer};
    use crate::limits::doorstep_files;
    use crate::unix_socket::listen;

    /// A listener that lets descriptors pass, as all do before Linux 6.16, or does not.
    fn listener(path: &Path, account: &Arc<Account>, passing: bool) -> AsyncFd<HeldFile> {
        let (socket, file) =
            listen("client.socket", path, SocketType::SEQPACKET, false).expect("a listener");
        // Its file is needed as long as clients connect.
        std::mem::forget(file);
        let set = let_pass_descriptors(&socket, passing);
        assert!(set.is_ok() || passing, "{set:?}");
        let mut room = account.try_room(1).expect("room for the listener");
        asynchronous(room.hold(socket)).expect("a socket")
    }

    fn socket() -> OwnedFd {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket")
    }

    fn dial(path: &Path) -> OwnedFd {
        let client = socket();
        let address = SocketAddrUnix::new(path).expect("a short path");
        connect(&client, &address).expect("somebody listens");
        client
    }

    /// The test would hang, not fail, if the connections or the listener were closed here, or
    /// waited for those of strangers.
    #[test]
    fn what_nobody_received_is_not_closed_here_and_nobody_else_waits_for_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        with_closer(async |closer| {
            let account = Account::new(closer.clone(), 1, 1, None);
            let doorstep = Doorstep::new(&closer, 0);
            let listener = listener(&path, &account, true);
            let (mut clients, mut others) = (Vec::new(), Vec::new());
            let mut dial_and_pass = || {
                let (client, (file, other)) = (dial(&path), hanging());
                fds::send(&client, b"unread", &[file.as_fd()]).expect("sent");
                clients.push(client);
                others.push(other);
            };
            // As many as strangers have room for: some of their closes hang, the others wait.
            for _ in 0..doorstep_files(0) {
                dial_and_pass();
                let accepted = accept(&listener, &doorstep, |_| Knock::Stranger).await;
                drop(accepted.expect("somebody connected"));
            }
            for whose in [Knock::Trusted, Knock::User(1)] {
                let _client = dial(&path);
                let accepted = accept(&listener, &doorstep, |_| whose).await;
                drop(accepted.expect("somebody connected"));
            }
            // This one is not accepted.
            dial_and_pass();
            let mut end = [0; 1];
            let flags = rustix::net::RecvFlags::empty();
            let seen = rustix::net::recv(&clients[0], &mut end, flags).map(|(count, _)| count);
            assert!(matches!(seen, Ok(0) | Err(Errno::CONNRESET)), "{seen:?}");
            drop(listener);
            drop(others);
            let _all = account.room(1).await;
        });
    }

    #[test]
    fn nothing_is_passed_before_there_is_a_place_for_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        with_closer(async |closer| {
            let account = Account::new(closer.clone(), 1, 1, None);
            let doorstep = Doorstep::new(&closer, 0);
            if let_pass_descriptors(socket(), false).is_err() {
                return eprintln!("skipped: this kernel lets everybody pass descriptors");
            }
            let listener = listener(&path, &account, false);
            let client = dial(&path);
            let (_, file) = std::io::pipe().expect("a pipe");
            let pass = || fds::send(&client, b"file", &[file.as_fd()]);
            assert!(pass().is_err(), "nobody has accepted it");
            let accepted = accept(&listener, &doorstep, |_| Knock::User(1)).await;
            let (connection, who) = accepted.expect("somebody connected");
            assert_eq!(who.uid, rustix::process::geteuid().as_raw());
            assert!(pass().is_err(), "it has no place");
            connection.take_descriptors();
            assert!(pass().is_ok());
        });
    }
}
