//! Bodies of `trace`: the fragments of a few transfers, recorded.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `PUT`: [`TraceBody`], answered with [`Traces`]. `GET`: [`Traces`]; the transfers are there once it is over.
pub const TRACE: &str = "/v1/trace";

/// What is to be recorded, instead of what is being recorded or was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceBody {
    /// The next so many transfers; 0: nothing more.
    pub transfers: u32,
}

/// A recording. `T` is `piped_report::trace::TransferTrace`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Traces<T = Value> {
    /// Its number, so that who waits for one sees when another operator has begun the next; 0: there was none.
    pub recording: u64,
    /// Transfers it was asked for.
    pub wanted: u32,
    /// Transfers that began since.
    pub begun: u32,
    /// Of them, those that ended.
    pub ended: u32,
    /// Nothing more is recorded: there are enough, or it was stopped.
    pub over: bool,
    /// What was recorded, in the order in which they began; empty before it is over.
    pub transfers: Vec<T>,
}
