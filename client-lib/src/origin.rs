//! How a handle was opened, for opening the same thing again.

use std::os::fd::{AsFd, OwnedFd};

use piped_core::access::{Access, Creation};
use piped_ring::handshake::Request;

use crate::control::{Answer, Control};
use crate::error::SessionError;

/// Kept only by clients that reconnect.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A local file, by its descriptors: its path may name another one by now.
    File { access: Access, file: OwnedFd, direct: Option<OwnedFd> },
    /// A thing with a name, by the request that opened it.
    Named(Request),
}

impl Origin {
    /// The request for opening it again. A file that was made is not made twice: it would be an
    /// empty one.
    pub(crate) fn named(request: &Request) -> Self {
        let mut request = request.clone();
        if let Request::OpenExport { create, .. } = &mut request {
            *create = Creation::No;
        }
        Self::Named(request)
    }

    pub(crate) fn ask(&self, control: &Control) -> Result<Answer, SessionError> {
        match self {
            Self::Named(request) => control.ask(request, &[]),
            Self::File { access, file, direct: None } => {
                control.ask(&Request::OpenFile { access: *access, direct: false }, &[file.as_fd()])
            }
            Self::File { access, file, direct: Some(direct) } => {
                let request = Request::OpenFile { access: *access, direct: true };
                control.ask(&request, &[direct.as_fd(), file.as_fd()])
            }
        }
    }
}
