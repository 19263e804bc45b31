//! Why something is not opened: a status, a text with cause and fix, and where statuses say too
//! little, a reason.

use piped_core::access::OpenKind;
use piped_core::status::Status;
use piped_engine::command::OpenRequest;
use piped_ring::handshake::FEATURE_OPEN_REASONS;

/// Why something was not opened. The text goes to the client; a peer gets a status alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct OpenFault {
    /// The kind of reason.
    pub status: Status,
    /// What the status leaves open.
    pub reason: Option<Reason>,
    /// The cause and the fix.
    pub text: String,
}

impl OpenFault {
    /// A fault of a kind, with cause and fix.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, reason: None, text: text.into() }
    }

    /// A fault that can be told more exactly.
    pub fn told(reason: Reason, text: impl Into<String>) -> Self {
        Self { status: reason.coarse(), reason: Some(reason), text: text.into() }
    }

    /// What a peer is told of it.
    #[must_use]
    pub fn for_peer(&self) -> Status {
        self.reason.map_or(self.status, Reason::for_peer)
    }

    /// The status that a client with these features is told.
    #[must_use]
    pub fn for_client(&self, features: u64) -> Status {
        match self.reason {
            Some(reason) if features & FEATURE_OPEN_REASONS != 0 => match reason {
                Reason::NoExport => Status::NoExport,
                Reason::NoDirectory => Status::NoDirectory,
                Reason::IsDirectory => Status::IsDirectory,
            },
            _ => self.status,
        }
    }

    /// A refusal for want of a right.
    pub fn denied(text: impl Into<String>) -> Self {
        Self::new(Status::Denied, text)
    }
}

/// What a status leaves open when a file is not opened.
///
/// Frames between nodes have no statuses for these, and a peer that met one it does not know would
/// close the lane. So a peer is told one that opens of files have no other use for, and the node
/// that asked, which knows what it asked for, tells its client the reason again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// No such export, or none for the party that asks.
    NoExport,
    /// The directory is not there in which the file was to be made.
    NoDirectory,
    /// The path leads to a directory.
    IsDirectory,
}

impl Reason {
    /// The status for a client that knows no reasons.
    pub(crate) const fn coarse(self) -> Status {
        match self {
            Self::NoExport | Self::NoDirectory => Status::NotFound,
            Self::IsDirectory => Status::Denied,
        }
    }

    /// The status that a peer is told.
    pub(crate) const fn for_peer(self) -> Status {
        match self {
            // Also the end of handles after a reload took their export away.
            Self::NoExport => Status::Gone,
            Self::NoDirectory => Status::NotFound,
            Self::IsDirectory => Status::Unsupported,
        }
    }

    /// What a peer means that was asked to open a file, or to make one.
    const fn of_peer(status: Status, kind: OpenKind, create: bool) -> Option<Self> {
        match (kind, status) {
            (OpenKind::File, Status::Gone) => Some(Self::NoExport),
            (OpenKind::File, Status::NotFound) if create => Some(Self::NoDirectory),
            (OpenKind::File, Status::Unsupported) => Some(Self::IsDirectory),
            _ => None,
        }
    }
}

/// What a peer was asked to open.
#[derive(Debug)]
pub struct Asked {
    peer: String,
    kind: OpenKind,
    create: bool,
    export: String,
    what: String,
}

impl Asked {
    /// Remembers what is asked of a peer.
    #[must_use]
    pub fn of(peer: &str, open: &OpenRequest) -> Self {
        let what = match open.kind {
            OpenKind::File | OpenKind::Directory => {
                let path = piped_text::shown_bytes(&open.path);
                format!("`{path}` of the export `{}` at `{peer}`", open.name)
            }
            OpenKind::Region => format!("the region `{}` at `{peer}`", open.name),
            OpenKind::Channel => format!("the channel `{}` at `{peer}`", open.name),
        };
        let (kind, create, export) = (open.kind, open.create, open.name.clone());
        Self { peer: peer.to_owned(), kind, create, export, what }
    }

    /// The status of a peer in the words of what was asked for.
    #[must_use]
    pub fn refused(&self, status: Status) -> OpenFault {
        let Self { peer, export, what, .. } = self;
        match Reason::of_peer(status, self.kind, self.create) {
            Some(reason @ Reason::NoExport) => {
                let text =
                    format!("`{peer}` has no export `{export}` for this node; see [exports] there");
                OpenFault::told(reason, text)
            }
            Some(reason @ Reason::NoDirectory) => {
                let text =
                    format!("cannot create {what}: its directory is not there; make it first");
                OpenFault::told(reason, text)
            }
            Some(reason @ Reason::IsDirectory) => OpenFault::told(
                reason,
                format!("{what} is a directory; only regular files are served"),
            ),
            None => OpenFault::new(status, format!("{what}: {}", self.words(status))),
        }
    }

    fn words(&self, status: Status) -> String {
        let peer = &self.peer;
        match (self.kind, status) {
            (OpenKind::File, Status::NotFound) => format!("no such file at `{peer}`"),
            (OpenKind::File, Status::Denied) => format!(
                "`{peer}` does not allow it: the export may be for reading or writing alone, the \
                 path may lead out of it or to what is no file, or the user of its daemon may lack \
                 the right; its log says which"
            ),
            (OpenKind::File, Status::Invalid) => "a name in the path is too long".to_owned(),
            _ => status.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_core::access::Access;

    use super::*;

    #[test]
    fn what_a_peer_is_told_of_a_reason_leads_back_to_it() {
        for (reason, create) in [
            (Reason::NoExport, false),
            (Reason::NoExport, true),
            (Reason::NoDirectory, true),
            (Reason::IsDirectory, false),
            (Reason::IsDirectory, true),
        ] {
            let told = OpenFault::told(reason, "text").for_peer();
            assert_eq!(Reason::of_peer(told, OpenKind::File, create), Some(reason), "{create}");
            assert_eq!(Reason::of_peer(told, OpenKind::Region, create), None);
        }
        // What else an open of a file ends with is taken for none of them.
        for status in
            [Status::NotFound, Status::Denied, Status::Invalid, Status::Io, Status::WouldBlock]
        {
            let told = OpenFault::new(status, "text").for_peer();
            assert_eq!(Reason::of_peer(told, OpenKind::File, false), None, "{status:?}");
        }
    }

    #[test]
    fn a_client_that_knows_no_reasons_is_told_none() {
        for (reason, coarse) in [
            (Reason::NoExport, Status::NotFound),
            (Reason::NoDirectory, Status::NotFound),
            (Reason::IsDirectory, Status::Denied),
        ] {
            let fault = OpenFault::told(reason, "text");
            assert_eq!(fault.for_client(0), coarse);
            assert!(fault.for_client(FEATURE_OPEN_REASONS) as u16 > Status::TooLong as u16);
        }
    }

    #[test]
    fn who_asked_a_peer_is_told_what_is_missing_where() {
        let asked = |create| {
            Asked::of(
                "beta",
                &OpenRequest {
                    kind: OpenKind::File,
                    name: "data".to_owned(),
                    path: b"a/b".to_vec(),
                    access: Access::WRITE,
                    create,
                },
            )
        };
        for (status, create, words) in [
            (Status::Gone, false, "`beta` has no export `data`"),
            (Status::NotFound, false, "no such file at `beta`"),
            (Status::NotFound, true, "its directory is not there"),
            (Status::Unsupported, false, "is a directory"),
            (Status::Denied, false, "`beta` does not allow it"),
            (Status::PeerLost, false, "not reachable"),
        ] {
            let text = asked(create).refused(status).text;
            assert!(text.contains(words) && text.contains("data"), "{status:?}: {text}");
        }
    }
}
