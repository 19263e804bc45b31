//! Connections of nodes: dialled and accepted, named, driven, and lost; what they may hold.

pub(in crate::shard) mod crowd;
pub(in crate::shard) mod greeting;
pub(in crate::shard) mod lane;
pub(in crate::shard) mod peering;
pub(in crate::shard) mod scratch;
pub(in crate::shard) mod sending;
