//! Commands for files and directories of exports: `ls`, `stat`, `rm`, `mv`, `mkdir`, `df`, `du`,
//! `cat` and `put`.
//!
//! ```text
//! operands ► found (patterns) ► tree (calls of client-lib) ► shown (words, JSON) ► output
//!            cat, put                 requests of client-lib
//! ```
//!
//! A command does what it can: a failure at one operand is told, and the others are done all the
//! same, unless the daemon is gone.

use std::io::Write as _;

use crate::failure::{self, Exit, Failure};

pub(crate) mod cat;
pub(crate) mod complete;
pub(crate) mod df;
pub(crate) mod du;
mod found;
pub(crate) mod ls;
pub(crate) mod mkdir;
pub(crate) mod mv;
mod pattern;
pub(crate) mod put;
pub(crate) mod rm;
mod shown;
pub(crate) mod stat;
mod tree;

/// Does something for each of several operands. Failures are told as they come, and the last one is
/// returned; without a daemon the rest is left.
fn each<T>(
    operands: impl IntoIterator<Item = T>,
    mut work: impl FnMut(T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut last = Ok(());
    for operand in operands {
        if let Err(failure) = work(operand) {
            last = go_on(last, failure)?;
        }
    }
    last
}

/// The outcome so far after a further failure; an error if nothing can be done after that one.
fn go_on(before: Result<(), Failure>, failure: Failure) -> Result<Result<(), Failure>, Failure> {
    let ends = ends(&failure);
    let last = after(before, failure);
    if ends { last.map(Ok) } else { Ok(last) }
}

/// Whether whatever is tried next would fail as well, or is not wanted any more.
fn ends(failure: &Failure) -> bool {
    let is_over = matches!(failure.exit(), Exit::Unreachable | Exit::Interrupted);
    is_over || failure.is_reader_gone()
}

/// The outcome after a further failure; the one before is told.
fn after(before: Result<(), Failure>, failure: Failure) -> Result<(), Failure> {
    if let Err(before) = before {
        let _ = writeln!(std::io::stderr(), "pipectl: {}", failure::shown(&before));
    }
    Err(failure)
}

/// Permission bits as they are typed: in octal.
fn mode(text: &str, most: u32) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = if digits { u32::from_str_radix(text, 8).ok() } else { None };
    mode.filter(|&mode| mode <= most)
        .ok_or_else(|| format!("write permission bits in octal, at most {most:o}, as in 640"))
}
