//! What programs for the command line share: [`failure`] by exit code, [`output`] that no foreign
//! text can disturb, and [`table`]s.
//!
//! The invariant: whatever others chose (names, paths, their words) is escaped before a terminal
//! sees it. `pipectl` and the commands of `piped-theory` print through this crate and in no other
//! way.

#![forbid(unsafe_code)]

pub mod failure;
pub mod output;
pub mod table;
