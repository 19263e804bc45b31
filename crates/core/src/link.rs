//! What is said of a link between two nodes by more than one part of piped.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::request::Class;

/// Which of a peer's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum LaneClass {
    /// Small and urgent frames.
    Latency,
    /// Frames that are neither small nor urgent.
    Bulk,
    /// Frames as on the bulk connection, by way of the peer's second address.
    Second,
}

impl LaneClass {
    /// All connections that a peer can have.
    pub const ALL: [Self; 3] = [Self::Latency, Self::Bulk, Self::Second];

    /// The word in configurations, in reports and in output for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bulk => "bulk",
            Self::Second => "second",
        }
    }
}

impl From<Class> for LaneClass {
    fn from(class: Class) -> Self {
        match class {
            Class::Latency => Self::Latency,
            Class::Bulk => Self::Bulk,
        }
    }
}

/// What connections of peers with keys are protected against. Two nodes use the stronger of their
/// two choices, which is the later variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Protection {
    /// Frames come from the peer, unchanged; everybody on the way can read them.
    #[default]
    Integrity,
    /// Frames come from the peer, unchanged, and nobody on the way can read them.
    Encrypted,
}

impl Protection {
    /// The word in the configuration and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Integrity => "integrity",
            Self::Encrypted => "encrypted",
        }
    }
}

/// What checksums cover on connections of a peer that have no keys. Those with keys carry an
/// authentication tag over all bytes instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Checksum {
    /// Headers and payloads; headers alone if both nodes are on this machine.
    #[default]
    Auto,
    /// Headers and payloads, wherever the peer is.
    Payload,
    /// Headers alone: TCP's own checksum is all that covers payloads.
    Header,
}

impl Checksum {
    /// All choices of a node.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Payload, Self::Header];

    /// Whether a node with this choice wants checksums of payloads. Two nodes use them if one of
    /// them does. `same_machine`: the peer is on the machine of this node.
    #[must_use]
    pub const fn covers_payloads(self, same_machine: bool) -> bool {
        match self {
            Self::Auto => !same_machine,
            Self::Payload => true,
            Self::Header => false,
        }
    }
}

/// When a node has connections to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Dialling {
    /// All the time: the first request finds them.
    #[default]
    Always,
    /// While something is open at the peer, and for a while after that.
    Used,
}

/// The stage that a report of a peer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportedStage {
    /// Reads of the device below a handle.
    DiskRead,
    /// Writes to the device below a handle.
    DiskWrite,
    /// The connection itself, as the reporter receives.
    Net,
    /// The computation of checksums at the reporter.
    Check,
    /// A delay injection on the connection, as the reporter receives.
    DialNet,
    /// A delay injection behind the connection, on the receiving host.
    DialReceive,
    /// A delay injection behind writes to the device below a handle.
    DialDiskWrite,
}

impl ReportedStage {
    /// All stages that a report can be about.
    pub const ALL: [Self; 7] = [
        Self::DiskRead,
        Self::DiskWrite,
        Self::Net,
        Self::Check,
        Self::DialNet,
        Self::DialReceive,
        Self::DialDiskWrite,
    ];

    /// The stage's name in output for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DiskRead => "disk read",
            Self::DiskWrite => "disk write",
            Self::Net => "net",
            Self::Check => "check",
            Self::DialNet => "dial net",
            Self::DialReceive => "dial receive",
            Self::DialDiskWrite => "dial disk write",
        }
    }
}
