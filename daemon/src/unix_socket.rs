//! Listening on a unix socket's path: the owner of its file, the users that may connect, and its
//! end.
//!
//! A file left behind by a killed daemon is replaced; a file with a listener is not. At exit the
//! file is removed, if it is still ours. The file of a socket that was passed to us is not.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections that wait to be accepted: as many as the kernel allows by default
/// (`net.core.somaxconn`). They are accepted as fast as they come, and a flood should find it hard
/// to keep others out.
const BACKLOG: i32 = 4096;

/// Reason why there is no listener. The key names the setting to change.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens there.
    #[error("{key}: somebody listens on {} already; is another piped running?", path.display())]
    InUse {
        /// Key of the configuration.
        key: &'static str,
        /// Path of the socket.
        path: PathBuf,
    },
    /// Another kind of file is there.
    #[error("{key}: {} exists and is no socket; move it or change the key", path.display())]
    NotASocket {
        /// Key of the configuration.
        key: &'static str,
        /// Path of the socket.
        path: PathBuf,
    },
    /// The kernel refuses to listen.
    #[error(
        "{key}: cannot listen on {} ({error}); its directory must exist and be writable by this \
         user, or the key be changed",
        path.display()
    )]
    Listen {
        /// Key of the configuration.
        key: &'static str,
        /// Path of the socket.
        path: PathBuf,
        /// Error that it reports.
        error: Errno,
    },
}

/// The file of a listening socket; removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another daemon may have put its own there meanwhile.
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens on `path`, non-blocking. With `open` anybody may connect (and be refused by user); else
/// only this user and root.
///
/// # Errors
/// See [`SocketError`].
pub(crate) fn listen(
    key: &'static str,
    path: &Path,
    kind: SocketType,
    open: bool,
) -> Result<(OwnedFd, SocketFile), SocketError> {
    let fail = |error| SocketError::Listen { key, path: path.to_owned(), error };
    let address = SocketAddrUnix::new(path).map_err(fail)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).map_err(fail)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(key, path, &address, kind)?;
            rustix::net::bind(&socket, &address).map_err(fail)?;
        }
        result => result.map_err(fail)?,
    }
    let file = SocketFile { path: path.to_owned(), identity: identity(path) };
    set_mode(path, open).map_err(fail)?;
    rustix::net::listen(socket.as_fd(), BACKLOG).map_err(fail)?;
    Ok((socket, file))
}

/// The file of a socket that another process made and keeps: its mode follows the configuration, as
/// if it were ours, but the file stays.
pub(crate) fn adopt(path: &Path, open: bool) -> SocketFile {
    match set_mode(path, open) {
        Ok(()) => {
            tracing::info!(path = %path.display(), "listening on the service manager's socket")
        }
        Err(error) => tracing::warn!(
            path = %path.display(), %error,
            "the service manager's socket keeps its mode; SocketUser=piped in piped.socket lets \
             the daemon set it (clients are admitted or refused all the same)"
        ),
    }
    SocketFile { path: path.to_owned(), identity: None }
}

/// Sets whether anybody may connect, or this user and root alone.
///
/// # Errors
/// Errors of the kernel.
pub(crate) fn set_mode(path: &Path, open: bool) -> Result<(), Errno> {
    let mode = if open { 0o666 } else { 0o600 };
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

/// Removes a socket's file that has no listener.
fn remove_stale(
    key: &'static str,
    path: &Path,
    address: &SocketAddrUnix,
    kind: SocketType,
) -> Result<(), SocketError> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|facts| facts.file_type().is_socket());
    if !is_socket {
        return Err(SocketError::NotASocket { key, path: path.to_owned() });
    }
    let fail = |error| SocketError::Listen { key, path: path.to_owned(), error };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).map_err(fail)?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(fail(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
            }
            _ => Ok(()),
        },
        Err(Errno::NOENT) => Ok(()),
        // Connected, a full backlog, another kind of socket: there is a listener.
        _ => Err(SocketError::InUse { key, path: path.to_owned() }),
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|facts| (facts.dev(), facts.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn try_listen(path: &Path, open: bool) -> Result<(OwnedFd, SocketFile), SocketError> {
        listen("admin.socket", path, SocketType::STREAM, open)
    }

    #[test]
    fn a_file_left_behind_is_replaced_and_a_listener_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let (socket, file) = try_listen(&path, true).expect("nobody is there");
        assert!(matches!(try_listen(&path, true), Err(SocketError::InUse { .. })));
        UnixStream::connect(&path).expect("the first one still listens");
        // As after a kill: the socket is gone, its file is not.
        drop(socket);
        std::mem::forget(file);
        assert!(path.exists());
        let (_socket, file) = try_listen(&path, true).expect("nobody is there any more");
        drop(file);
        assert!(!path.exists(), "removed at exit");
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        std::fs::write(&path, b"precious").expect("written");
        assert!(matches!(try_listen(&path, true), Err(SocketError::NotASocket { .. })));
        assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
        let missing = dir.path().join("no/such/socket");
        let error = try_listen(&missing, true).expect_err("no directory").to_string();
        assert!(error.contains("admin.socket"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_ours_any_more_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let (_first, file) = try_listen(&path, true).expect("nobody is there");
        std::fs::remove_file(&path).expect("removed");
        let (_second, _file) = try_listen(&path, true).expect("nobody is there");
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn a_private_socket_is_for_its_user() {
        let dir = tempfile::tempdir().expect("a directory");
        let mode = |open| {
            let path = dir.path().join("socket");
            let (_socket, _file) = try_listen(&path, open).expect("nobody is there");
            std::fs::metadata(&path).expect("there").permissions().mode() & 0o777
        };
        assert_eq!(mode(false), 0o600);
        assert_eq!(mode(true), 0o666);
    }
}
