//! The door for peers, as far as it is sockets and opens. The engine parses the bytes of a
//! connection.
//!
//! ```text
//!   accept ──► attempts left? ──► handshake, or a plain network? ──► options
//!          ──► shard: LaneAccepted
//!   shard: Connect ──► wait, resolve, check, connect ──► handshake ──► options
//!          ──► shard: LaneConnected
//!   shard: ServeOpen ──► exports | regions ──► shard: ServeOpened
//! ```

pub(crate) mod connect;
pub(crate) mod greet;
pub(crate) mod join;
mod listen;
pub mod noise;
mod options;
mod payload;
pub(crate) mod serve;

pub(crate) use self::listen::{ListenError, bind, listen};
