//! A peer's request: what is asked, what is opened, how its bytes move, and the answer.

pub(in crate::shard) mod call;
pub(in crate::shard) mod inbound;
pub(in crate::shard) mod pieces;
pub(in crate::shard) mod read;
pub(in crate::shard) mod serve;
pub(in crate::shard) mod served;
pub(in crate::shard) mod update;
pub(in crate::shard) mod write;
