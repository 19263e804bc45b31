//! The piped daemon.
//!
//! ```text
//!              control thread (tokio)                     shard threads (io_uring)
//!   client ──► client::accept ─► session ─┐ mailbox  ┌─────────────────────────────────┐
//!   client ══ ring ═══════════════════════╪═════════►│ sessions ─► engine::Shard ─► io │──► disk
//!   peer ────► peer::listen ──────────────┤          │      ▲          │               │◄─► peer
//!   operator ► admin ─────────────────────┤◄─────────│      └──────────┘               │
//!              open: files, regions ──────┘ notices  └─────────────────────────────────┘
//! ```
//!
//! The double line is the data path: after the handshake a request touches the shard's thread and
//! nothing else. Calls that may block (opening files, resolving names, making memory) run on the
//! control thread's blocking pool, and their results arrive at the shard as messages.
#![deny(unsafe_code)]

mod advising;
mod arenas;
mod calls;
pub mod closing;
mod cluster;
mod given;
mod limiting;
pub mod limits;
mod machine;

pub mod client;
#[allow(unsafe_code, reason = "the door to the kernel; every block says why it is sound")]
pub mod io;
pub mod open;
mod patience;
pub mod peer;
mod places;
pub mod shard;

pub mod admin;
mod connection;
mod control;
mod daemon;
mod discovery;
mod doorstep;
mod inherited;
mod joining;
pub mod kept;
pub mod log;
mod metrics;
mod preflight;
#[cfg(test)]
mod reference;
mod reload;
pub mod replace;
mod sandbox;
mod settings;
mod syscalls;
mod systemd;
mod unix_socket;
mod watchdog;

pub use daemon::{Daemon, DaemonError, Stopper};
pub use inherited::{Inherited, InheritedError};
pub use joining::join;
pub use reload::SetLevel;
pub use sandbox::SandboxError;
