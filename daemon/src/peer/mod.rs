//! The peer door, as far as it is sockets and opens: the bytes of a lane are parsed by the engine.
//!
//! ```text
//!   accept ──► attempts left? ──► handshake, or in a plain network? ──► options ──► shard: LaneAccepted
//!   shard: Connect ──► wait, resolve, check, connect ──► handshake ──► options ──► shard: LaneConnected
//!   shard: ServeOpen ──► exports | regions ──► shard: ServeOpened
//! ```

pub(crate) mod connect;
pub(crate) mod greet;
mod listen;
pub mod noise;
mod options;
pub(crate) mod serve;

pub(crate) use self::listen::{ListenError, bind, listen};
