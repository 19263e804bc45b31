//! What may be done at all: limits, rates, and access that is taken back.

pub(in crate::shard) mod admission;
pub(in crate::shard) mod ending;
pub(in crate::shard) mod throttle;
