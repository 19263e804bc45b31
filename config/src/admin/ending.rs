//! What clients and peers have open, and the end of it: of a handle, a client, a node's lanes.

use serde::{Deserialize, Serialize};

/// `GET`: [`Handles`]. For those who may change: it names files.
pub const HANDLES: &str = "/v1/handles";
/// `PUT`: [`EndHandle`]; answered by [`Ended`].
pub const HANDLES_END: &str = "/v1/handles/end";
/// `PUT`: [`EndClient`]; answered by [`Ended`].
pub const CLIENTS_END: &str = "/v1/clients/end";
/// `PUT`: [`EndPeer`]; answered by [`Ended`].
pub const PEERS_END: &str = "/v1/peers/end";

/// The most handles that are listed.
pub const HANDLES_LISTED_MAX: usize = 4096;

/// What is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handles {
    /// How many there are.
    pub total: u64,
    /// Of them, those that were opened first; at most [`HANDLES_LISTED_MAX`].
    pub handles: Vec<HandleReport>,
}

/// Something that a client or a peer has open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleReport {
    /// Its number, which no other has until the daemon ends.
    pub handle: u64,
    /// The session of the client that has it, if a client has it.
    pub session: Option<u32>,
    /// The client's user.
    pub uid: Option<u32>,
    /// The node that has it, if a node has it.
    pub peer: Option<String>,
    /// `file`, `export`, `region` or `channel`.
    pub kind: String,
    /// What it is: a name; of an export also the path below it.
    pub name: String,
    /// The node where it is; none: this one.
    pub at: Option<String>,
    /// Its client offers it to others.
    pub offers: bool,
    /// Whether it was opened to be read.
    pub read: bool,
    /// Whether it was opened to be written.
    pub write: bool,
}

/// Ends a handle: what is under way by it, and what comes later, ends with `Gone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndHandle {
    /// Its number.
    pub handle: u64,
}

/// Ends the session of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndClient {
    /// Which.
    pub session: u32,
}

/// Closes the lanes from and to a node. It may come back, unless its access was taken from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndPeer {
    /// Its name.
    pub peer: String,
}

/// What was ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// In words.
    pub ended: String,
}
