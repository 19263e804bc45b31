//! `pipectl`: shows, controls and measures piped for an operator.
//!
//! ```text
//! arguments ► command ► admin API (HTTP on a unix socket)   status, stages, explain, trace, …
//!                     ► client-lib (shared memory)          bench, cp, ls, put, rm, …
//!                     ► daemons of its own                  demo, lab
//!                     ► the engine in virtual time          simulate
//!                     ► the theory alone                    model
//! ```
//!
//! Data goes to stdout (tables for people, `--json` for programs), everything else to stderr. The
//! exit code tells programs what kind of failure it was: see [`failure::Exit`].

#![forbid(unsafe_code)]

mod args;
mod below;
mod client;
mod clock;
mod commands;
mod daemon;
mod interrupts;
mod node;
mod page_cache;
mod place;
mod random;
mod regular;

use std::io::Write as _;
use std::process::ExitCode;

use piped_admin as admin;
use piped_cli::{failure, output, table};
use piped_config::{measured as quantity, units};

fn main() -> ExitCode {
    let args = match args::Args::of_process() {
        Ok(args) => args,
        Err(error) => {
            // Help goes to stdout and may be cut short by `| head`, which is no failure.
            let _ = error.print();
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            return ExitCode::from(code);
        }
    };
    match commands::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_reader_gone() => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "pipectl: {}", failure::shown(&failure));
            failure.exit_code()
        }
    }
}
