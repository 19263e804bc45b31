//! Messages: received on this node, taken in from peers, and sent to peers.

pub(in crate::shard) mod between;
pub(in crate::shard) mod inbox;
pub(in crate::shard) mod mail;
pub(in crate::shard) mod receive;
