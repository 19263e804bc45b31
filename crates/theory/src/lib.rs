//! The theory of communication pipelines beyond what a daemon plans with, and its commands.
//!
//! `piped-model` has what piped itself computes while it works. Here is what people ask of the
//! theory: plans that no program executes but that show what is possible, and the papers' results,
//! computed anew.
//!
//! | module | what |
//! | --- | --- |
//! | [`best`] | the best of all planners, improved by search; with a certificate if asked |
//! | [`bound`] | a latency that no plan can beat |
//! | [`release`] | the release-curve planner: small sub-fragments, grouped for the slow stage |
//! | [`lp`] | the optimum with the same fragments in every stage, by linear programs |
//! | [`signature`] | the LogGP signature of a network with given parameters |
//! | [`svg`] | what all pictures share |
//! | `commands` | `pipectl model`: [`ModelArgs`] reads its arguments and runs them |
//!
//! The edge: this crate names `piped-model`, and `piped-model` never names this one. So neither the
//! daemon nor the client library compiles a linear program or a drawing library.
//!
//! *Why a library:* `pipectl` links it, so that `pipectl model` is there wherever `pipectl` is.
//! Rejected: a program `piped-theory` that `pipectl` runs. It would be a second file to install and
//! to find, with a version that may differ, and exit codes, terminal width and closed pipes would
//! have to pass between two processes.

#![forbid(unsafe_code)]

pub mod best;
pub mod bound;
pub mod lp;
pub mod release;
pub mod signature;
pub mod svg;

mod commands;
mod improve;

pub use commands::ModelArgs;
