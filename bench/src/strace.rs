//! System calls of a process or a thread while something runs, counted by strace.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::outside;

/// Target of the watch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Watched {
    /// One thread of a process.
    Thread(u32),
    /// A process with all its threads.
    Process(u32),
}

/// A strace that is attached; ended when dropped.
#[derive(Debug)]
pub(crate) struct Strace {
    process: Child,
    summary: tempfile::NamedTempFile,
}

/// Calls while it was attached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) total: u64,
    /// Calls by name, most first.
    pub(crate) by_name: Vec<(String, u64)>,
}

impl Strace {
    pub(crate) fn is_installed() -> bool {
        outside::is_installed("strace")
    }

    /// Attaches strace, and returns when it is attached.
    pub(crate) fn attach(watched: Watched) -> Result<Self, Failure> {
        let summary = tempfile::NamedTempFile::new()?;
        let mut command = Command::new("strace");
        command.arg("-c").arg("-o").arg(summary.path());
        let number = match watched {
            Watched::Thread(number) => number,
            Watched::Process(number) => {
                command.arg("-f");
                number
            }
        };
        command.arg("-p").arg(number.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().doing("strace")?;
        let mut strace = Self { process, summary };
        let attached = clock::poll(Duration::from_secs(5), || match strace.process.try_wait() {
            Ok(None) => is_traced(number).then_some(true),
            _ => Some(false),
        });
        if attached == Some(true) {
            return Ok(strace);
        }
        Err(Failure::new("strace could not attach: run this as root, or allow ptrace"))
    }

    /// Detaches strace, and returns the counts.
    pub(crate) fn finish(mut self) -> Result<Calls, Failure> {
        // The process is not awaited yet, so the number is still its own.
        kill_process(Pid::from_child(&self.process), Signal::INT).doing("strace")?;
        let ended = clock::poll(Duration::from_secs(5), || {
            (!matches!(self.process.try_wait(), Ok(None))).then_some(())
        });
        ended.ok_or_else(|| Failure::new("strace did not end"))?;
        Ok(parse(&fs::read_to_string(self.summary.path())?))
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

fn is_traced(number: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0")
}

/// Reads lines of `% time, seconds, usecs/call, calls, [errors,] name`.
fn parse(summary: &str) -> Calls {
    let mut calls = Calls::default();
    for line in summary.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [share, _, _, count, .., name] = fields[..] else { continue };
        let (Ok(_), Ok(count)) = (share.parse::<f64>(), count.parse::<u64>()) else { continue };
        if name != "total" {
            calls.total += count;
            calls.by_name.push((name.to_owned(), count));
        }
    }
    calls.by_name.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_summed_with_and_without_errors() {
        let summary = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 75.00    0.000300          10        30           io_uring_enter
 25.00    0.000100          10        70         5 read
------ ----------- ----------- --------- --------- ----------------
100.00    0.000400          10       100         5 total
";
        let calls = parse(summary);
        assert_eq!(calls.total, 100);
        assert_eq!(calls.by_name[0], ("read".to_owned(), 70));
        assert_eq!(parse(""), Calls::default());
    }
}
