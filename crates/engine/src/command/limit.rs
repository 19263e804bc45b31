//! What may be used at once.

use piped_core::limits::{CREDIT_BYTES, CREDIT_STAGING_DIVISOR, FRAGMENT_BYTES_MAX, LINK_SHARES};

/// What may be used at once on a shard. At a limit work waits; what is larger than a limit is done
/// alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All clients' requests in execution.
    pub requests: u32,
    /// Bytes of all clients' requests in execution.
    pub in_flight: u64,
    /// Memory for messages that nobody has asked for, in bytes.
    pub early_arrival: u64,
    /// Limits that hold for each session by itself.
    pub client: ClientLimits,
    /// Limits that hold for each peer that asks this node, by itself.
    pub peer: PeerLimits,
}

/// What one session may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// Staging for the session's copies, in bytes.
    pub staging: u64,
    /// Bytes of the session's requests in execution.
    pub in_flight: u64,
    /// The session's requests in execution.
    pub requests: u32,
    /// Unexpected messages that the session holds, in bytes.
    pub early_arrival: u64,
    /// Bytes that the session may have moved in a second; 0 is no bound.
    pub rate: u64,
}

/// What one peer may use here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLimits {
    /// Staging for the peer's requests, in bytes: half for reads, a quarter for the writes of each
    /// lane.
    pub staging: u64,
    /// Bytes of the peer's reads in execution. The credit for writes is a quarter of this limit at
    /// most.
    pub in_flight: u64,
    /// The peer's reads and syncs in execution. Writes are bounded by their credit.
    pub requests: u32,
    /// Handles that the peer may have open.
    pub handles: u32,
    /// Bytes that the peer may have moved in a second; 0 is no bound.
    pub rate: u64,
}

impl PeerLimits {
    /// Write data that the peer may have under way on a connection, in bytes. `staging`: all of
    /// this node's.
    #[must_use]
    pub fn credit_window(&self, staging: u64) -> u64 {
        CREDIT_BYTES
            .min(staging / CREDIT_STAGING_DIVISOR)
            .min(self.staging / LINK_SHARES)
            .min(self.in_flight / LINK_SHARES)
            .max(u64::from(FRAGMENT_BYTES_MAX))
    }

    /// What the peer's reads may have of all of this node's staging, in bytes.
    #[must_use]
    pub fn read_staging(&self, staging: u64) -> u64 {
        staging.min(self.staging / LINK_SHARES * (LINK_SHARES / 2))
    }
}

impl Limits {
    /// No limit but those of [`piped_core::limits`].
    pub const NONE: Self = Self {
        requests: u32::MAX,
        in_flight: u64::MAX,
        early_arrival: u64::MAX,
        client: ClientLimits {
            staging: u64::MAX,
            in_flight: u64::MAX,
            requests: u32::MAX,
            early_arrival: u64::MAX,
            rate: 0,
        },
        peer: PeerLimits {
            staging: u64::MAX,
            in_flight: u64::MAX,
            requests: u32::MAX,
            handles: u32::MAX,
            rate: 0,
        },
    };
}
