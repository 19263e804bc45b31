//! Where the daemon's socket is.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// The environment variable that names the daemon's socket where a program does not.
pub const SOCKET_VARIABLE: &str = "PIPED_CLIENT_SOCKET";

/// The path of the daemon's socket where nothing names another.
pub const DEFAULT_SOCKET: &str = "/run/piped/client.sock";

/// The socket where a program names none; `named`: by the environment, where empty is not at all.
pub(crate) fn default_socket(named: Option<OsString>) -> (PathBuf, SocketOrigin) {
    match named {
        Some(path) if !path.is_empty() => (path.into(), SocketOrigin::Environment),
        _ => (DEFAULT_SOCKET.into(), SocketOrigin::Default),
    }
}

/// Where the path of a daemon's socket is from.
///
/// ```
/// use piped_client::{Client, ConnectError, SocketOrigin};
/// let error = Client::connect("/nowhere/client.sock").expect_err("nobody is there");
/// assert!(matches!(error, ConnectError::Socket { origin: SocketOrigin::Given, .. }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SocketOrigin {
    /// The program named it.
    Given,
    /// The environment variable [`crate::SOCKET_VARIABLE`].
    Environment,
    /// Nothing named one: [`crate::DEFAULT_SOCKET`].
    Default,
}

impl fmt::Display for SocketOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given => "",
            Self::Environment => " (as PIPED_CLIENT_SOCKET says)",
            Self::Default => " (the default; PIPED_CLIENT_SOCKET or the program may name another)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ConnectError;

    #[test]
    fn the_environment_names_the_socket_where_the_program_does_not() {
        let named = |named: &str| default_socket(Some(named.into()));
        assert_eq!(named("/a/b"), ("/a/b".into(), SocketOrigin::Environment));
        let default = (PathBuf::from(DEFAULT_SOCKET), SocketOrigin::Default);
        assert_eq!(named(""), default);
        assert_eq!(default_socket(None), default);
    }

    #[test]
    fn an_error_says_where_the_path_is_from_and_how_to_name_another() {
        let error = |origin| {
            let source = std::io::Error::from_raw_os_error(2);
            ConnectError::Socket { path: "/a/b".into(), origin, source }.to_string()
        };
        let given = error(SocketOrigin::Given);
        assert!(given.contains("/a/b: ") && !given.contains(SOCKET_VARIABLE), "{given}");
        for origin in [SocketOrigin::Environment, SocketOrigin::Default] {
            let told = error(origin);
            assert!(told.contains("/a/b (") && told.contains(SOCKET_VARIABLE), "{told}");
        }
    }
}
