//! What crosses components: the ways of requests, of connections and of plans through a shard.
//!
//! A component holds state and its rules, in private fields, and knows no other one's flow. A flow
//! is what happens because of one event, in one component after the other. It has no state: its
//! functions are `impl Shard`, or take what they need, in a file for each step. What a request
//! passes:
//!
//! ```text
//!  client ─► request/{submit, resolve} ─► request/transfer
//!              ├─► request/{local_file, memory, copy, vector}
//!              ├─► request/{remote, once}, message/mail ─► connection ─► peer
//!              └─► message/receive
//!  peer ─► connection/lane
//!              ├─► service/inbound ─► service/{serve, read, write, pieces, update, served}
//!              │                   └─► message/inbox
//!              └─► request/outbound (answers) ─► request/transfer, message/mail
//! ```
//!
//! Flows name components and each other; no component names a flow.

pub(super) mod connection;
pub(super) mod message;
pub(super) mod permit;
pub(super) mod plan;
pub(super) mod request;
pub(super) mod service;
