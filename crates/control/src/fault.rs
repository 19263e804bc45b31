//! Why something is not opened: a status, and a text with cause and fix.

use piped_core::access::OpenKind;
use piped_core::limits::PEERS_DIALLED_MAX;
use piped_core::status::Status;
use piped_engine::command::OpenRequest;

/// Why something was not opened. The text goes to the client; a peer gets the status alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct OpenFault {
    /// The kind of reason.
    pub status: Status,
    /// The cause and the fix.
    pub text: String,
}

impl OpenFault {
    /// A fault of a kind, with cause and fix.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// A refusal for want of a right.
    pub fn denied(text: impl Into<String>) -> Self {
        Self::new(Status::Denied, text)
    }

    /// The fault as it is told to who may not read what the path leads through: without what lies
    /// there.
    #[must_use]
    pub fn for_who_may_not_read(self) -> Self {
        match self.status.for_who_may_not_read() {
            told if told == self.status => self,
            Status::NotFound => Self::new(Status::NotFound, "no such file, or no directory for it"),
            told => Self::new(told, "only regular files below the export are served"),
        }
    }
}

/// What a peer was asked to open.
#[derive(Debug)]
pub struct Asked {
    peer: String,
    kind: OpenKind,
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
        Self { peer: peer.to_owned(), kind: open.kind, export: open.name.clone(), what }
    }

    /// The status of a peer in the words of what was asked for.
    #[must_use]
    pub fn refused(&self, status: Status) -> OpenFault {
        let Self { peer, export, what, .. } = self;
        let text = match status {
            Status::NoExport => {
                format!("`{peer}` has no export `{export}` for this node; see [exports] there")
            }
            Status::NoDirectory => {
                format!("cannot create {what}: its directory is not there; make it first")
            }
            Status::IsDirectory => {
                format!("{what} is a directory; only regular files are served")
            }
            _ => format!("{what}: {}", self.words(status)),
        };
        OpenFault::new(status, text)
    }

    fn words(&self, status: Status) -> String {
        let peer = &self.peer;
        match (self.kind, status) {
            (OpenKind::File, Status::NotFound) => format!("no such file at `{peer}`"),
            (OpenKind::Directory, Status::NotFound) => format!("no such directory at `{peer}`"),
            (OpenKind::File, Status::Denied) => format!(
                "`{peer}` does not allow it: the export may be for reading or writing alone, or \
                 the path may lead out of it or to what is no file; its log says which"
            ),
            (_, Status::WouldBlock) => format!(
                "as much is open there as may be; or {PEERS_DIALLED_MAX} peers are in use here, or \
                 so many that you would leave none to others (the log says which): close what is \
                 not needed, and try again"
            ),
            _ => status.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_core::access::{Access, Creation};

    use super::*;

    #[test]
    fn who_may_not_read_learns_nothing_of_what_is_there() {
        let told = Status::ALL.map(|status| OpenFault::new(status, "text").for_who_may_not_read());
        for fault in &told {
            let names = [Status::NotFound, Status::Denied].contains(&fault.status);
            assert!(names || fault.text == "text", "{fault:?}");
        }
        for status in [
            Status::NoDirectory,
            Status::NotDirectory,
            Status::IsDirectory,
            Status::Loop,
            Status::CrossDevice,
        ] {
            assert!(told.iter().all(|fault| fault.status != status), "{status:?}");
        }
    }

    #[test]
    fn who_asked_a_peer_is_told_what_is_missing_where() {
        let asked = Asked::of(
            "beta",
            &OpenRequest {
                kind: OpenKind::File,
                name: "data".to_owned(),
                path: b"a/b".to_vec(),
                access: Access::WRITE,
                create: Creation::No,
            },
        );
        for (status, words) in [
            (Status::NoExport, "`beta` has no export `data`"),
            (Status::NotFound, "no such file at `beta`"),
            (Status::NoDirectory, "its directory is not there"),
            (Status::IsDirectory, "is a directory"),
            (Status::Denied, "`beta` does not allow it"),
            (Status::PeerLost, "not reachable"),
            (Status::WouldBlock, "256 peers are in use here"),
        ] {
            let fault = asked.refused(status);
            let OpenFault { text, status: told } = &fault;
            assert!(text.contains(words) && text.contains("data"), "{status:?}: {text}");
            assert_eq!(*told, status);
        }
    }
}
