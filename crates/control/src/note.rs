//! What an operator may read in the log of the decisions made here.

use std::net::SocketAddr;

use piped_core::ids::SegmentId;
use piped_core::link::LaneClass;
use piped_engine::command::{Crowded, Standing};

/// A line of the log, which the driver writes in its words. `left_out`: lines of its kind that were
/// not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A connection is up.
    LaneUp {
        /// The shard at this end.
        shard: usize,
        /// The peer at the other end.
        peer: String,
        /// Which of the connections to the peer.
        class: LaneClass,
        /// The incarnation of the connection.
        epoch: u32,
        /// Lines that were not written.
        left_out: u64,
    },
    /// A connection is down.
    LaneDown {
        /// The shard at this end.
        shard: usize,
        /// The peer at the other end.
        peer: String,
        /// Which of the connections to the peer.
        class: LaneClass,
        /// The cause in words.
        reason: String,
        /// Lines that were not written.
        left_out: u64,
    },
    /// A connection that came to the door has no place, or made room for another one.
    NoPlace {
        /// The shard that has no place for it.
        shard: usize,
        /// What stands behind the name of the node.
        standing: Standing,
        /// The cause in words.
        why: Crowded,
        /// Lines that were not written; none: this line has no place in the log either.
        left_out: Option<u64>,
    },
    /// A client opened nothing at a peer: as many peers are in use as may be.
    PeersFull {
        /// The shard that dials no further peer.
        shard: usize,
        /// The peer by its name.
        peer: String,
        /// The user that the client is of.
        user: u32,
        /// Lines that were not written.
        left_out: u64,
    },
    /// A peer was not dialled, for the connection would be plain where it may not be.
    DialForbidden {
        /// The peer by its name.
        peer: String,
        /// An address of the peer.
        address: SocketAddr,
        /// Lines that were not written.
        left_out: u64,
    },
    /// A peer answered and did not prove itself, or refused this node.
    NotConnected {
        /// The peer by its name.
        peer: String,
        /// An address of the peer.
        address: SocketAddr,
        /// The cause in words.
        error: String,
        /// Lines that were not written.
        left_out: u64,
    },
    /// Staging memory was given back.
    StagingDrained {
        /// The shard that had it.
        shard: usize,
        /// The memory by its number.
        segment: SegmentId,
    },
}
