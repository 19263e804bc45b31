//! What a shard reports about itself: to operators, to metrics, and to clients of the admin API
//! that ask for a plan or a recording.
//!
//! [`shard`] has reports at a glance and in detail, [`tally`] the counters ([`histogram`] their
//! buckets), [`trace`] recordings of fragments, [`dial`] the delay injections of operators.
//!
//! **Invariant:** plain types without behaviour of the engine. With the feature `serde` they are
//! the JSON of the admin API, whose names and forms stay; without it, nothing here knows of a
//! format.
#![forbid(unsafe_code)]

mod device;
pub mod dial;
pub mod histogram;
pub mod shard;
pub mod tally;
pub mod trace;
