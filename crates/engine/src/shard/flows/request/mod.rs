//! A client's request: checked, begun, moved by where its other end is, ended exactly once.

pub(in crate::shard) mod call;
pub(in crate::shard) mod copy;
pub(in crate::shard) mod home;
pub(in crate::shard) mod local_file;
pub(in crate::shard) mod memory;
pub(in crate::shard) mod once;
pub(in crate::shard) mod outbound;
pub(in crate::shard) mod packed;
pub(in crate::shard) mod remote;
pub(in crate::shard) mod replicas;
pub(in crate::shard) mod resolve;
pub(in crate::shard) mod session;
pub(in crate::shard) mod submit;
pub(in crate::shard) mod synced;
pub(in crate::shard) mod transfer;
pub(in crate::shard) mod vector;
pub(in crate::shard) mod ways;
