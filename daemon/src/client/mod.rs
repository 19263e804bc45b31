//! Clients: their sockets, sessions and rings.
//!
//! ```text
//!   accept ─► user ─► Hello ─► memory made ─► shard ─► Welcome ─► session: opens, grows, closes
//!                                                    ▲
//!   ring:  descriptor ─► request ────────────────────┘──► completion ─► ring
//! ```

mod accept;
pub mod completion;
mod door;
mod handles;
pub mod reasons;
pub mod request;
mod session;
pub mod wanted;
mod welcome;

pub(crate) use self::accept::listen;
