//! Simulated nodes of piped, in virtual time: the control thread that ships, its driver played.
//!
//! ```text
//!   Shard ─Event─► Controls ─► piped_control::Control ─► dials, door ─► SimKernel::connect
//!     ▲                │                                                      │
//!     └───Command──────┴── mailbox (in order, later) ◄────────────────────────┘
//! ```
//!
//! [`Controls`](controls::Controls) plays what the daemon's driver does with sockets and name
//! services: it resolves, connects, proves and accepts, each in its own time and with faults from a
//! seed, and asks the control thread of each node at every step. [`Nodes`](nodes::Nodes) has the
//! kernel and the shards as well, and gives each its turn.
//!
//! **Invariant.** Everything follows from the seed and from the order of calls, so a failure
//! replays.
#![forbid(unsafe_code)]

pub mod controls;
pub mod nodes;
