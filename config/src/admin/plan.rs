//! Bodies of `plan`: what would be done for a transfer that nobody has asked for.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `POST`: [`PlanBody`], answered with [`Plans`]. It changes nothing, so whoever may look may ask.
pub const PLAN: &str = "/v1/plan";

/// A transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanBody {
    /// Where the bytes come from.
    pub from: PlanEnd,
    /// Where they go to.
    pub to: PlanEnd,
    /// How many.
    pub bytes: u64,
    /// How urgent; a copy is bulk if nothing is said, the rest is not.
    #[serde(default)]
    pub class: Option<PlanClass>,
    /// This peer asks this node for it: `from` is here, `to` its memory.
    #[serde(default)]
    pub peer_asks: Option<String>,
}

/// One end of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum PlanEnd {
    /// A client's arena, or a region at a peer.
    Memory {
        /// The peer; none: this node.
        #[serde(default)]
        peer: Option<String>,
    },
    /// A file of the client's, by the device it lies on.
    Device {
        /// Of the device's number.
        major: u32,
        /// The same.
        minor: u32,
    },
    /// A file below an export.
    Export {
        /// The peer; none: this node.
        #[serde(default)]
        peer: Option<String>,
        /// The export's name.
        export: String,
        /// The path below it.
        path: String,
    },
}

/// How urgent it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanClass {
    /// Somebody is blocked on it.
    Latency,
    /// Throughput matters.
    Bulk,
}

/// The plans of a transfer. `F` is `piped_planner::draft::Forecast`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plans<F = Value> {
    /// Bytes of the transfer.
    pub bytes: u64,
    /// It goes in pieces of so many bytes, each planned by itself; none: as a whole.
    pub piece_bytes: Option<u64>,
    /// In the order of the bytes' way: what one node plans is one part.
    pub parts: Vec<PlanPart<F>>,
}

/// What one node plans.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanPart<F = Value> {
    /// Which part of the way, in words.
    pub route: String,
    /// The peer that plans it, and whose parameters are not known here; none: this node.
    pub planned_by: Option<String>,
    /// How to ask that peer.
    pub ask_there: Option<String>,
    /// What is planned; of a peer's plan only the stages that are seen from here.
    pub forecast: F,
}
