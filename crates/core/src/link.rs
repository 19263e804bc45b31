//! What is said of a link between two nodes by more than one part of piped.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::request::Class;

/// Which of a peer's two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum LaneClass {
    /// Small and urgent frames.
    Latency,
    /// Everything else.
    Bulk,
}

impl From<Class> for LaneClass {
    fn from(class: Class) -> Self {
        match class {
            Class::Latency => Self::Latency,
            Class::Bulk => Self::Bulk,
        }
    }
}

/// What lanes of peers that have keys are protected against. Two nodes use the stronger one of
/// theirs, which is the later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Protection {
    /// Frames are the peer's, and as it sent them; whoever is on the way can read them.
    #[default]
    Integrity,
    /// Nor can anybody read them.
    Encrypted,
}

impl Protection {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Integrity => "integrity",
            Self::Encrypted => "encrypted",
        }
    }
}

/// The stage that a report of a peer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportedStage {
    /// Reads of the device below a handle.
    DiskRead,
    /// Writes to the device below a handle.
    DiskWrite,
    /// The lane itself, as the reporter receives.
    Net,
    /// The checksum at the reporter.
    Check,
    /// A dial on the lane, as the reporter receives.
    DialNet,
    /// A dial behind it, on the receiving host.
    DialReceive,
    /// A dial behind writes to the device below a handle.
    DialDiskWrite,
}

impl ReportedStage {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::DiskRead,
        Self::DiskWrite,
        Self::Net,
        Self::Check,
        Self::DialNet,
        Self::DialReceive,
        Self::DialDiskWrite,
    ];

    /// For people.
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
