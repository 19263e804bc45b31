//! What a daemon has: by its own account, and by the kernel's.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{Daemon, eventually};

/// What must be as before when a client is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Descriptors of the process.
    pub files: usize,
    /// Mappings of clients' memory.
    pub mappings: usize,
    /// Sessions of its shard.
    pub sessions: u64,
    /// Segments its driver knows: places in the table of registered buffers.
    pub segments: u64,
    /// Bytes registered with the kernel.
    pub registered_bytes: u64,
    /// Staging memory in use, in bytes.
    pub staging_bytes: u64,
}

impl Footprint {
    /// What the daemon has now.
    #[must_use]
    pub fn of(daemon: &Daemon) -> Self {
        let status = daemon.status();
        let shard = &status["shards"][0];
        let number = |of: &serde_json::Value, what: &str| {
            of[what].as_u64().unwrap_or_else(|| panic!("no {what} in {status}"))
        };
        Self {
            files: fs::read_dir(process(daemon, "fd")).expect("it lives").count(),
            mappings: client_mappings(daemon),
            sessions: number(shard, "sessions"),
            segments: number(&shard["reactor"], "segments"),
            registered_bytes: number(&shard["reactor"], "registered_bytes"),
            // Lanes have more once they have worked.
            staging_bytes: number(shard, "staging_used_bytes")
                - number(shard, "staging_lanes_bytes"),
        }
    }

    /// What it has once nothing of it changes any more: pools of its runtime and lanes have what
    /// they keep.
    ///
    /// # Panics
    /// If that does not come.
    #[must_use]
    pub fn settled(daemon: &Daemon) -> Self {
        let mut last = None;
        eventually("the daemon settles", || {
            let now = Self::of(daemon);
            (last.replace(now) == Some(now)).then_some(now)
        })
    }

    /// Waits until the daemon has no more than this.
    ///
    /// # Panics
    /// If something is left.
    pub fn await_again(&self, daemon: &Daemon) {
        let mut now = *self;
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("all that clients had is free", || {
                now = Self::of(daemon);
                now.is_within(self).then_some(())
            });
        }));
        if let Err(panic) = end {
            eprintln!("now {now:?}\nbefore {self:?}\n{}", daemon.log());
            std::panic::resume_unwind(panic);
        }
    }

    /// Whether nothing of it is more than that.
    fn is_within(&self, other: &Self) -> bool {
        self.files <= other.files
            && self.mappings <= other.mappings
            && self.sessions <= other.sessions
            && self.segments <= other.segments
            && self.registered_bytes <= other.registered_bytes
            && self.staging_bytes <= other.staging_bytes
    }
}

/// Memory of the process in KiB, by a line of /proc/PID/status.
///
/// # Panics
/// If the kernel does not say it.
#[must_use]
pub fn memory_kib(daemon: &Daemon, line: &str) -> u64 {
    let status = fs::read_to_string(process(daemon, "status")).expect("it lives");
    let line = status.lines().find_map(|it| it.strip_prefix(line));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.expect("the kernel says it")
}

/// Mappings of memfds that are clients' segments or queues.
fn client_mappings(daemon: &Daemon) -> usize {
    let maps = fs::read_to_string(process(daemon, "smaps")).expect("it lives");
    maps.lines().filter(|line| line.contains("memfd:piped")).count()
}

fn process(daemon: &Daemon, what: &str) -> PathBuf {
    Path::new("/proc").join(daemon.process.0.id().to_string()).join(what)
}
