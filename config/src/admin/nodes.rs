//! Body of `nodes`: what sources of discovery say of other nodes.

use serde::{Deserialize, Serialize};

/// Path of [`Nodes`], read with `GET`.
pub const NODES: &str = "/v1/nodes";

/// All sources of discovery and the nodes that they name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nodes {
    /// Sources that have spoken.
    pub sources: Vec<SourceReport>,
    /// Nodes of each source, by name.
    pub nodes: Vec<NodeReport>,
}

/// One source of discovery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// Name of the source: `files`, `etcd` or `dns`.
    pub source: String,
    /// Nodes that it named when it was last there.
    pub nodes: u64,
    /// Nodes that it named beyond the limit, and that are left out.
    pub left_out: u64,
    /// Seconds since it was last there.
    pub heard_seconds_ago: f64,
    /// Why it is away; none if it is there. What it said last stays.
    pub away: Option<String>,
}

/// One node that a source names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Name of the node.
    pub node: String,
    /// Source that names it.
    pub source: String,
    /// Address where it listens, as the source says.
    pub address: String,
    /// Second address; empty if it has none.
    pub second_address: String,
    /// Whether this node dials it there: `[peers]` has a key for it and no address, or it is a node
    /// of the cluster; and no earlier source knows it.
    pub dialled: bool,
    /// Directories that it offers, as the source says.
    pub exports: Vec<String>,
    /// Version of its daemon, as the source says.
    pub version: String,
    /// Load of its CPUs in percent over a minute, as the source says; none if it does not.
    pub load_percent: Option<u32>,
}
