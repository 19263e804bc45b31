//! Which stages a request passes, what they cost, and what is told of it to peers and to operators.

pub(in crate::shard) mod costs;
pub(in crate::shard) mod dial;
pub(in crate::shard) mod drafts;
pub(in crate::shard) mod facts;
pub(in crate::shard) mod observe;
pub(in crate::shard) mod paths;
pub(in crate::shard) mod reports;
