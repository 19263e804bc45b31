//! What a client was made with.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use piped_ring::handshake::Hello;

use crate::error::ConnectError;
use crate::socket::SocketOrigin;

/// How to connect, the first time and every other.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) path: PathBuf,
    /// Where the path is from.
    pub(crate) origin: SocketOrigin,
    pub(crate) hello: Hello,
    pub(crate) timeout: Duration,
    /// `None`: as the daemon recommends.
    pub(crate) spin_ns: Option<u64>,
    /// How long a reconnect may take; `None`: there is none.
    pub(crate) reconnect: Option<Duration>,
}

impl Settings {
    /// There is no connection, because of the socket.
    pub(crate) fn no_socket(&self, source: io::Error) -> ConnectError {
        ConnectError::Socket { path: self.path.clone(), origin: self.origin, source }
    }
}
