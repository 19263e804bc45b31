//! What crosses components: the ways of requests, of connections and of plans through a shard.
//!
//! A component holds state and its rules, in private fields, and knows no other one's flow. A flow
//! is what happens because of one event, in one component after the other. It has no state: its
//! functions are `impl Shard`, in a file for each step. Which ones a request passes:
//!
//! ```text
//!  client ─► request/session ─► request/transfer ─┬─► request/{local_file, memory, copy, vector}
//!                                                 ├─► request/{remote, once} ─► connection ─► peer
//!                                                 └─► message/{receive, mail}
//!  peer ─► connection/lane ─┬─► service/inbound ─► service/{read, write, pieces, update, served}
//!                           ├─► message/inbox
//!                           └─► request/outbound (answers)
//! ```
//!
//! Flows name components and each other; no component names a flow.

pub(super) mod connection;
pub(super) mod message;
pub(super) mod permit;
pub(super) mod plan;
pub(super) mod request;
pub(super) mod service;
