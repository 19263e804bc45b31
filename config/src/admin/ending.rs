//! Open handles of clients and peers, and how to end a handle, a client or a node's lanes.

use serde::{Deserialize, Serialize};

/// Path of [`Handles`], read with `GET` by users that may change the daemon, because it names
/// files.
pub const HANDLES: &str = "/v1/handles";
/// Path to end a handle: `PUT` of an [`EndHandle`], answered by [`Ended`].
pub const HANDLES_END: &str = "/v1/handles/end";
/// Path to end a client: `PUT` of an [`EndClient`], answered by [`Ended`].
pub const CLIENTS_END: &str = "/v1/clients/end";
/// Path to end a peer: `PUT` of an [`EndPeer`], answered by [`Ended`].
pub const PEERS_END: &str = "/v1/peers/end";

/// The most handles in one report.
pub const HANDLES_LISTED_MAX: usize = 4096;

/// All handles that are open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handles {
    /// Number of open handles.
    pub total: u64,
    /// The oldest handles, at most [`HANDLES_LISTED_MAX`].
    pub handles: Vec<HandleReport>,
}

/// One handle of a client or a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleReport {
    /// Number of the handle, never used twice while the daemon runs.
    pub handle: u64,
    /// Session of the client that has the handle, if a client has it.
    pub session: Option<u32>,
    /// User of that client.
    pub uid: Option<u32>,
    /// Node that has the handle, if a node has it.
    pub peer: Option<String>,
    /// Kind of the handle: `file`, `export`, `region` or `channel`.
    pub kind: String,
    /// Name of the opened thing; for an export also the path below it.
    pub name: String,
    /// Node where the opened thing is; none for this one.
    pub at: Option<String>,
    /// Whether the client offers it to others.
    pub offers: bool,
    /// Whether it was opened for reading.
    pub read: bool,
    /// Whether it was opened for writing.
    pub write: bool,
}

/// Ends a handle: its present and later requests end with `Gone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndHandle {
    /// Number of the handle.
    pub handle: u64,
}

/// Ends the session of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndClient {
    /// Number of the session.
    pub session: u32,
}

/// Closes all lanes from and to a node. The node may come back, unless its access was taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndPeer {
    /// Name of the peer.
    pub peer: String,
}

/// Result of ending something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Ended thing, in words.
    pub ended: String,
}
