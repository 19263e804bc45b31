//! Choices among a few words that operators make and several parts follow.

use core::fmt;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::sizes::Sizes;

/// Which messages are sent without being announced first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum EagerMode {
    /// Short messages, as measured: copying one out of the unexpected-message buffer takes no
    /// longer than a rendezvous and the transfer that follows it, and the message does not hold the
    /// connection for long.
    #[default]
    Auto,
    /// Messages of at most this many bytes.
    Fixed(u32),
}

/// How the planner chooses fragment sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum PlannerMode {
    /// Sizes solved from the measured costs.
    #[default]
    Auto,
    /// Every fragment has this many bytes.
    Fixed(u32),
    /// One fragment: store the whole request, then forward it.
    Whole,
}

impl fmt::Display for PlannerMode {
    /// The mode as operators write it, with a size in the largest unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Auto => f.write_str("auto"),
            Self::Whole => f.write_str("whole"),
            Self::Fixed(size) if size > 0 && size.trailing_zeros() >= 20 => {
                write!(f, "fixed:{}MiB", size >> 20)
            }
            Self::Fixed(size) if size > 0 && size.trailing_zeros() >= 10 => {
                write!(f, "fixed:{}KiB", size >> 10)
            }
            Self::Fixed(size) => write!(f, "fixed:{size}"),
        }
    }
}

/// A plan to execute instead of a solved one, to see what it would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForcedPlan {
    /// Fragments where the bytes are read.
    pub source: Sizes,
    /// Payloads of the frames in between.
    pub lane: Sizes,
    /// Fragments where the bytes are written.
    pub sink: Sizes,
    /// The most fragments in work at the source at once, up to [`crate::limits::DEPTH_MAX`].
    pub depth: u32,
}

/// Whether connections send long payloads without a copy into the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum ZeroCopyMode {
    /// Each connection where, and from the size at which, measurements say that it pays.
    #[default]
    Auto,
    /// Wherever the kernel supports it.
    On,
    /// No connection does so.
    Off,
}

/// Whether costs follow what is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum CalibrationMode {
    /// Samples update the costs and the plans.
    #[default]
    Live,
    /// Samples are shown, but costs and plans stay as they are.
    Frozen,
    /// No samples are taken, and costs stay as they are.
    Off,
}

impl CalibrationMode {
    /// The word in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Frozen => "frozen",
            Self::Off => "off",
        }
    }
}

/// How a node trades CPU time for latency: which side spins, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Profile {
    /// Spin for a short time, then sleep.
    #[default]
    Balanced,
    /// Spin long: the lowest latency, for one CPU each of the daemon and of a waiting client.
    Latency,
    /// Sleep at once: the fewest CPU seconds per byte.
    Throughput,
}

impl Profile {
    /// The word in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A feature of io_uring the daemon can live without. Masking one forces the fallback that an older
/// kernel, or one with less locked memory, would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "snake_case"))]
pub enum IoFeature {
    /// The kernel's completion work runs when the shard asks for it.
    DeferTaskrun,
    /// No interrupt of the shard for completion work.
    CoopTaskrun,
    /// Segments are pinned once instead of per operation.
    RegisteredBuffers,
    /// Files are looked up once instead of per operation.
    RegisteredFiles,
    /// The ring's own descriptor is looked up once instead of per system call.
    RingFd,
    /// One bad operation does not stop the rest of a batch.
    SubmitAll,
    /// The submission queue has no indirection array.
    NoSqarray,
    /// A doorbell is armed once instead of after every ring.
    MultishotPoll,
    /// Sends that lend their memory instead of having it copied.
    SendZeroCopy,
    /// The ring can do only what the daemon needs, on registered files alone.
    Restrictions,
    /// Reads of what the page cache has come from there.
    PageCache,
}

impl IoFeature {
    /// All features, in the order of the tiers.
    pub const ALL: [Self; 11] = [
        Self::DeferTaskrun,
        Self::CoopTaskrun,
        Self::RegisteredBuffers,
        Self::RegisteredFiles,
        Self::RingFd,
        Self::SubmitAll,
        Self::NoSqarray,
        Self::MultishotPoll,
        Self::SendZeroCopy,
        Self::Restrictions,
        Self::PageCache,
    ];

    /// The word in the configuration and in `pipectl status`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeferTaskrun => "defer_taskrun",
            Self::CoopTaskrun => "coop_taskrun",
            Self::RegisteredBuffers => "registered_buffers",
            Self::RegisteredFiles => "registered_files",
            Self::RingFd => "ring_fd",
            Self::SubmitAll => "submit_all",
            Self::NoSqarray => "no_sqarray",
            Self::MultishotPoll => "multishot_poll",
            Self::SendZeroCopy => "send_zero_copy",
            Self::Restrictions => "restrictions",
            Self::PageCache => "page_cache",
        }
    }
}

impl fmt::Display for IoFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
