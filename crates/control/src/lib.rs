//! The control thread of piped as a pure machine: which peers are dialled when and how, which
//! callers come in, which keys count, and what a reload changes.
//!
//! ```text
//!   Event (of a shard) ─► Control::handle_event ─┬─► Control::poll_effect ─► Dial, Note
//!   Next (configuration) ─► Control::reload ─────┴─► Control::poll_command ─► Command, for a shard
//!   Progress (of a dial) ─► Control::advance ──────► Step: wait, resolve, connect, prove, deliver
//!   caller at the door ─► Control::admit, meet_plain, come_in ─► Caller, or why not
//! ```
//!
//! Nothing here reads a clock, opens a file, touches a socket or waits. Time is an argument, and so
//! is whatever a file system, a name service or the other side of a connection had to say. The
//! daemon drives this crate over tokio. The simulated worlds drive it in virtual time, beside the
//! engine, with the same calls in every order that a seed makes.
//!
//! **Invariant.** No method waits, and each leaves the state whole. So whatever a driver does
//! between two calls, the next call decides by the configuration of now.
//!
//! # What was decided
//!
//! *Effects, not a trait of callbacks.* A trait `Driver` that the control thread calls would have
//! to be asynchronous for the daemon and not for the worlds, and could call back in the middle of a
//! change. Effects come out when the change is complete.
//!
//! *A dial is a value.* A table of dials in [`Control`](control::Control), by number, was tried on
//! paper: then a driver that gives up a dial must say so, and one that forgets to leaks an entry.
//! As a [`Dial`](dial::Dial) its owner drops it. What keeps a stale one from harm is not the table
//! but the comparison with the configuration at each step.
//!
//! *The handshake stays outside.* Its curves need randomness and its bytes come from a socket. What
//! counts of it here is the keyring under which it ran and the key that it proved.
//!
//! *Lines of the log are effects as well.* A crate that logs by itself would write under another
//! name than the parts of the daemon that `log.level` names.
//!
//! *The configuration is the daemon's own.* Types that only this crate knows would be a second
//! `Config` to keep in step.
#![forbid(unsafe_code)]

pub mod access;
pub mod channels;
mod cluster;
pub mod control;
pub mod dial;
pub mod discovery;
pub mod fault;
pub mod grants;
pub mod greeting;
pub mod holdings;
mod homes;
pub mod journal;
pub mod keyring;
pub mod members;
pub mod note;
pub mod offers;
pub mod opens;
mod owners;
pub mod parties;
pub mod patrol;
pub mod peers;
pub mod regions;
pub mod reload;
pub mod sessions;
pub mod times;
pub mod tokens;
