//! Bodies of `plan`: the plan for a transfer that nobody has asked for.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Path of a forecast: `POST` of a [`PlanBody`], answered with [`Plans`]. Every user with leave to
/// look may ask, because nothing changes.
pub const PLAN: &str = "/v1/plan";

/// A transfer to be planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanBody {
    /// Source of the bytes.
    pub from: PlanEnd,
    /// Destination of the bytes.
    pub to: PlanEnd,
    /// Number of bytes to move.
    pub bytes: u64,
    /// Urgency; without it a copy is bulk and other transfers are not.
    #[serde(default)]
    pub class: Option<PlanClass>,
    /// Peer that asks this node for the transfer: `from` is here, `to` is its memory.
    #[serde(default)]
    pub peer_asks: Option<String>,
}

/// One end of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum PlanEnd {
    /// A client's arena, or a region at a peer.
    Memory {
        /// Peer that has the memory; none for this node.
        #[serde(default)]
        peer: Option<String>,
    },
    /// A file of the client's, by the device it lies on.
    Device {
        /// Major part of the device's number.
        major: u32,
        /// Minor part of the device's number.
        minor: u32,
    },
    /// A file below an export.
    Export {
        /// Peer that has the export; none for this node.
        #[serde(default)]
        peer: Option<String>,
        /// Name of the export.
        export: String,
        /// Path below the export.
        path: String,
    },
}

/// Urgency of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanClass {
    /// Somebody is blocked on it.
    Latency,
    /// Transfer for which throughput matters.
    Bulk,
}

/// The plans of a transfer. `F` is `piped_planner::draft::Forecast`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plans<F = Value> {
    /// Bytes of the transfer.
    pub bytes: u64,
    /// Size of the pieces that are planned one by one; none if the transfer is one piece.
    pub piece_bytes: Option<u64>,
    /// Parts in the order of the bytes' way, one for each node that plans.
    pub parts: Vec<PlanPart<F>>,
}

/// One node's part of the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanPart<F = Value> {
    /// Part of the way, in words.
    pub route: String,
    /// Peer that plans the part with parameters that are not known here; none for this node.
    pub planned_by: Option<String>,
    /// Command that asks that peer.
    pub ask_there: Option<String>,
    /// Forecast; for a peer's part only the stages that are seen from here.
    pub forecast: F,
}
