//! The theory of optimal communication pipelines, pure.
#![forbid(unsafe_code)]
pub mod units;
