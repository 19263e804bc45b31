//! The data path of piped as a pure machine.
//!
//! ```text
//!   Request ──► Shard::submit ─► planner ─► transfer ─► Op ──► Io (uring | sim)
//!   Command ──► Shard::handle_command          ▲                 │
//!                                              └──── Done ◄──────┘
//!   Completion, Progress, Event ◄── Shard::poll_output
//! ```
//!
//! Nothing here reads a clock, opens a file or touches a socket: every effect is an [`io::Op`] handed
//! to an [`io::Io`], every cause is an argument. The daemon runs this crate over io_uring, the tests
//! and `pipectl simulate` run it in virtual time over [`sim`].
#![forbid(unsafe_code)]

pub mod command;
pub mod cost;
pub mod dial;
pub mod draft;
pub mod histogram;
pub mod ids;
pub mod io;
pub mod kept;
pub mod limits;
pub mod pieces;
pub mod report;
pub mod request;
pub mod shard;
pub mod sim;
pub mod sizes;
pub mod solve;
pub mod tally;
pub mod trace;
pub mod wire;
