//! What may be used at once.

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
