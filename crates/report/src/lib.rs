//! What a shard says of itself: to operators, to metrics, and to whoever asks for a plan or a
//! recording.
//!
//! [`shard`] is what it reports at a glance and in detail, [`tally`] what it counts ([`histogram`]
//! how), [`trace`] what a recording of fragments holds, [`dial`] the delays that operators inject.
//!
//! **Invariant:** plain types without behaviour of the engine. With the feature `serde` they are
//! the JSON of the admin API, in which names and forms stay; without it nothing here knows of a
//! format.
#![forbid(unsafe_code)]

pub mod dial;
pub mod histogram;
pub mod shard;
pub mod tally;
pub mod trace;
