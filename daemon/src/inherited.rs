//! Socket activation: the service manager opens the sockets, and keeps them while the daemon is
//! restarted.
//!
//! A passed socket is known by its path. The path must be in the configuration, and the socket must
//! be like one that the daemon would make itself. Otherwise unit and configuration disagree: the
//! daemon reports that and does not start, because clients would look in the wrong place. The names
//! of passed sockets are not used: all sockets of one unit have the same.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};

/// Sockets that the service manager passed.
#[derive(Debug, Default)]
pub struct Inherited(Vec<OwnedFd>);

/// Reason why a passed socket does not fit.
#[derive(Debug, thiserror::Error)]
pub enum InheritedError {
    /// The configuration has no key with its path.
    #[error(
        "the service manager passed a socket at {}, but client.socket is {} and admin.socket is \
         {}: have ListenSequentialPacket= and ListenStream= of piped.socket and the configuration \
         say the same",
        found.display(), client.display(), admin.display()
    )]
    Unknown {
        /// Path of the socket.
        found: PathBuf,
        /// Path in the configuration.
        client: PathBuf,
        /// Path in the configuration.
        admin: PathBuf,
    },
    /// The path is right, but not the socket.
    #[error(
        "{key}: the service manager passed a socket at {} {what}; piped.socket needs {line}{}",
        path.display(), path.display()
    )]
    Wrong {
        /// Key of the configuration.
        key: &'static str,
        /// Path of the socket.
        path: PathBuf,
        /// Fault of the socket.
        what: &'static str,
        /// Line that the unit should have.
        line: &'static str,
    },
    /// A descriptor that is no unix socket with a path.
    #[error(
        "the service manager passed a descriptor that is no unix socket with a path; piped.socket \
         needs ListenSequentialPacket= for clients and ListenStream= for operators, and nothing \
         else"
    )]
    Stranger,
    /// The kernel refuses a call.
    #[error("a socket that the service manager passed cannot be used: {0}")]
    Kernel(#[from] Errno),
}

/// A socket as the configuration has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'static str,
    pub(crate) path: &'a Path,
    pub(crate) kind: SocketType,
}

impl Inherited {
    /// Takes the sockets that the service manager passed to this process; nothing the second time.
    /// Call it before anything is opened.
    ///
    /// # Errors
    /// The environment names descriptors that are not open.
    pub fn take() -> io::Result<Self> {
        crate::io::inherited::take().map(Self)
    }

    /// Sockets of clients and of operators, if they were passed, made non-blocking.
    ///
    /// # Errors
    /// See [`InheritedError`]: another socket was passed.
    pub(crate) fn sort(
        self,
        client: Wanted<'_>,
        admin: Wanted<'_>,
    ) -> Result<[Option<OwnedFd>; 2], InheritedError> {
        let mut doors = [None, None];
        for socket in self.0 {
            let found = path_of(&socket)?;
            let place = [client, admin].iter().position(|wanted| wanted.path == found);
            let Some(place) = place else {
                let (client, admin) = (client.path.to_owned(), admin.path.to_owned());
                return Err(InheritedError::Unknown { found, client, admin });
            };
            let wanted = [client, admin][place];
            wanted.check(&socket, doors[place].is_some())?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            doors[place] = Some(socket);
        }
        Ok(doors)
    }
}

impl Wanted<'_> {
    fn check(&self, socket: &OwnedFd, is_second: bool) -> Result<(), InheritedError> {
        let what = if sockopt::socket_type(socket)? != self.kind {
            "of another kind"
        } else if !sockopt::socket_acceptconn(socket)? {
            "that does not listen (Accept=yes?)"
        } else if is_second {
            "twice"
        } else {
            return Ok(());
        };
        let line = match self.kind {
            SocketType::SEQPACKET => "ListenSequentialPacket=",
            _ => "ListenStream=",
        };
        Err(InheritedError::Wrong { key: self.key, path: self.path.to_owned(), what, line })
    }
}

/// Path that a unix socket is bound to.
fn path_of(socket: &OwnedFd) -> Result<PathBuf, InheritedError> {
    if sockopt::socket_domain(socket).ok() != Some(AddressFamily::UNIX) {
        return Err(InheritedError::Stranger);
    }
    let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket)?)?;
    let path = address.path().ok_or(InheritedError::Stranger)?;
    Ok(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::unix_socket::listen;

    fn sort(directory: &Path, passed: Vec<OwnedFd>) -> Result<[Option<OwnedFd>; 2], String> {
        let (client, admin) = (directory.join("client"), directory.join("admin"));
        Inherited(passed)
            .sort(
                Wanted { key: "client.socket", path: &client, kind: SocketType::SEQPACKET },
                Wanted { key: "admin.socket", path: &admin, kind: SocketType::STREAM },
            )
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_socket_is_taken_for_what_it_is_whatever_came_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str, kind| {
            let (socket, file) = listen("test", &dir.path().join(name), kind, true).expect("made");
            std::mem::forget(file);
            socket
        };
        let (admin, client) =
            (at("admin", SocketType::STREAM), at("client", SocketType::SEQPACKET));
        let doors = sort(dir.path(), vec![admin, client]).expect("as configured");
        let kinds =
            doors.map(|door| sockopt::socket_type(door.expect("passed")).expect("a socket"));
        assert_eq!(kinds, [SocketType::SEQPACKET, SocketType::STREAM]);
        // With only one of them the daemon makes the other.
        std::fs::remove_file(dir.path().join("admin")).expect("there");
        let doors = sort(dir.path(), vec![at("admin", SocketType::STREAM)]).expect("as configured");
        assert!(doors[0].is_none() && doors[1].is_some());
        assert!(sort(dir.path(), Vec::new()).expect("nothing").iter().all(Option::is_none));
    }

    #[test]
    fn what_the_configuration_does_not_say_is_refused_with_the_line_to_change() {
        let dir = tempfile::tempdir().expect("a directory");
        let refused = |passed: Vec<OwnedFd>, parts: &[&str]| {
            let error = sort(dir.path(), passed).expect_err("it does not fit");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        let at = |name: &str| UnixListener::bind(dir.path().join(name)).expect("made");
        refused(vec![at("elsewhere").into()], &["/elsewhere", "client.socket is", "piped.socket"]);
        refused(
            vec![at("client").into()],
            &["client.socket", "another kind", "ListenSequentialPacket=/"],
        );
        let admin = at("admin");
        let twice = admin.try_clone().expect("cloned");
        refused(vec![admin.into(), twice.into()], &["admin.socket", "twice", "ListenStream=/"]);
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        refused(vec![tcp.into()], &["no unix socket"]);
        let nameless = std::os::unix::net::UnixStream::pair().expect("made").0;
        refused(vec![nameless.into()], &["no unix socket with a path"]);
        refused(vec![std::fs::File::open("/dev/null").expect("there").into()], &["no unix socket"]);
    }

    #[test]
    fn a_socket_that_does_not_listen_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let address = SocketAddrUnix::new(dir.path().join("admin")).expect("short");
        let deaf =
            rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("made");
        rustix::net::bind(&deaf, &address).expect("bound");
        let error = sort(dir.path(), vec![deaf]).expect_err("it does not listen");
        assert!(error.contains("admin.socket") && error.contains("does not listen"), "{error}");
    }
}
