//! The data path of piped as a pure machine.
//!
//! ```text
//!   Request ──► Shard::submit ─► planner ─► transfer ─► Op ──► Io (uring | sim)
//!   Command ──► Shard::handle_command          ▲                 │
//!                                              └──── Done ◄──────┘
//!   Completion, Progress, Event ◄── Shard::poll_output
//! ```
//!
//! Nothing here reads a clock, opens a file or touches a socket: every effect is an
//! [`Op`](piped_core::io::Op) handed to an [`Io`](piped_core::io::Io), every cause is an argument.
//! The daemon runs this crate over io_uring, the tests and `pipectl simulate` run it in virtual
//! time over a simulated kernel, which this crate does not know.
//!
//! **Invariant:** a request completes exactly once, an operation owns its memory from `push` to its
//! one `Done`, and no format of reports or configuration is known here.
#![forbid(unsafe_code)]

pub mod command;
pub mod relay;
pub mod shard;
