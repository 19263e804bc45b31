//! How fragment sizes are chosen: from what every stage was measured to cost, to the plan of a
//! transfer.
//!
//! ```text
//!   samples ─► stage (meter, estimator) ─► published cost ─► candidates ─► guard ─► a plan
//!                     ▲                                        ▲             ▲
//!               priors (kept)                        solve (elsewhere)    outlook (what was taken)
//! ```
//!
//! [`plan::Planner`] is the whole. It learns what passed each stage and how long each transfer
//! took, and is asked for plans. What takes longer than a look-up is a question that another thread
//! answers ([`solve`]).
//!
//! **Invariant:** this crate knows stages and times, not requests, connections or operations, and
//! does no IO; time is an argument. A peer's report of its stages is a claim, and bounded before it
//! is used.
#![forbid(unsafe_code)]

pub mod cost;
pub mod draft;
pub mod kept;
pub mod plan;
pub mod planned;
#[doc(hidden)]
pub mod probe;
pub mod schedule;
pub mod solve;
pub mod stage;
pub mod told;

mod candidates;
mod common;
mod costs;
mod guard;
mod late;
mod outlook;
mod path;
mod priors;
mod servers;
