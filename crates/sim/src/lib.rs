//! The simulated kernel: nodes with memory, disks and sockets in virtual time.
//!
//! ```text
//!   Shard ──Op──► SimIo(node) ─► SimKernel ─┬─ memory: pins and windows on every byte in use
//!     ▲                            │  ▲     ├─ disk: Server(L, g, G, window) per device, bytes
//!     └──────────── Done ◄─────────┘  │     └─ net: Server per link, streams, resets
//!                         EventQueue(now), one Random, Faults
//! ```
//!
//! The engine that runs over io_uring also runs here, as fast as the host computes, from one seed.
//! The order of everything follows from the seed, so a failure replays. Time is what the stages
//! define, hence a predicted latency can be compared with a "measured" one to the nanosecond.
//!
//! The simulated kernel is strict where the real one is not. It panics, and names the operation, in
//! these cases: a span outside its segment; an operation on a closed file or socket; a token used
//! twice; memory released while an operation (or an ended send that lent it) uses it; two
//! operations on the same bytes of which one writes; two sends or two receives at a time on one
//! socket, whose order would be the kernel's; a touch of a client's byte that no request in flight
//! owns. Each of these would be silent corruption.
//!
//! **Invariant:** this crate knows operations, not the engine that makes them; all chance comes
//! from one seed, and nothing here reads a clock.
#![forbid(unsafe_code)]

mod calls;
mod clock;
mod disk;
mod dones;
mod events;
mod far;
mod faults;
mod hand;
mod kernel;
mod lent;
mod locks;
mod memories;
mod memory;
mod names;
mod net;
mod operations;
mod pending;
mod random;
mod stage;
mod streams;
#[cfg(test)]
mod tests;

pub use disk::{DeviceCosts, InodeId};
pub use events::EventQueue;
pub use far::{FarEnds, LineId};
pub use faults::Faults;
pub use hand::{Hand, Way};
pub use kernel::{SimIo, SimKernel};
pub use lent::ZeroCopy;
pub use memory::WindowId;
pub use net::{ConnectionId, LinkId, NodeId, Notice, SILENCE};
pub use random::Random;
pub use stage::{Cost, Server, Visit};
