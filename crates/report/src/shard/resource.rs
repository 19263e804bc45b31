//! The resources of this node and of its peers that stages stand for.

use core::fmt;

use piped_core::ids::DeviceId;
use piped_core::link::{LaneClass, ReportedStage};

use crate::dial::DialPlace;

/// The resource that a stage stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StageResource {
    /// Reads of a device, or writes to it.
    Disk {
        /// The block device of the stage.
        device: DeviceId,
        /// Whether the stage is writes; otherwise it is reads.
        write: bool,
    },
    /// Reads of what the page cache has of a device.
    Cache {
        /// The block device below the page cache.
        device: DeviceId,
    },
    /// One direction of a connection.
    Net {
        /// The name of the other node.
        peer: String,
        /// The connection's class: latency or bulk.
        class: LaneClass,
        /// Whether this node sends the requests on the connection.
        outbound: bool,
        /// Whether the data comes to this node.
        incoming: bool,
    },
    /// Syncs of a device after durable writes.
    Sync {
        /// The block device of the stage.
        device: DeviceId,
    },
    /// Syncs at a peer: the time that a durable write takes there beyond another write.
    PeerSync {
        /// The name of the other node.
        peer: String,
    },
    /// Copies from memory to memory.
    Copy,
    /// Checksums of payloads on this node.
    Check,
    /// A stage at a peer that this node's data pass, as the peer reports it.
    Peer {
        /// The name of the peer that reports.
        peer: String,
        /// The class of the connection that the data pass.
        class: LaneClass,
        /// Whether this node sends the requests on the connection.
        outbound: bool,
        /// The stage that the peer measured.
        stage: ReportedStage,
        /// The peer's handle of a file on the disk of the stage; 0 for other stages.
        handle: u32,
    },
    /// A delay injection on this node.
    Dial {
        /// The stage that the injection slows.
        place: DialPlace,
        /// Whether the stage is the injection's time of the shard's thread (`o`).
        host: bool,
    },
}

impl fmt::Display for StageResource {
    /// The name of a stage that a peer reports. All other stages get their names from the planner.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Peer { peer, class, outbound, stage, handle } = self else {
            return write!(f, "{self:?}");
        };
        let lane = class.name();
        let side = if *outbound { "asked" } else { "served" };
        write!(f, "{} {peer} {lane} {side} out", stage.name())?;
        match stage {
            ReportedStage::DiskWrite | ReportedStage::DialDiskWrite => write!(f, " {handle}"),
            _ => Ok(()),
        }
    }
}
