//! Everything that the demo makes outside its own memory: two directories and two processes. One
//! owner removes all of it, however the demo ends.
//!
//! The owner stays with the thread that waits for Ctrl-C, not with the worker thread: a worker that
//! hangs in a request is freed by the end of its daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use crate::daemon::{Node, interrupted};
use crate::failure::Failure;
use crate::units;

/// Things that have to be removed again.
#[derive(Debug)]
struct Parts {
    /// Dropped before the directories: field order is drop order.
    nodes: Vec<Node>,
    directories: Vec<TempDir>,
}

/// Owner of all parts, shared with the worker and closed by [`Site::clear`].
#[derive(Debug, Clone)]
pub(super) struct Site {
    parts: Arc<Mutex<Option<Parts>>>,
}

impl Site {
    pub(super) fn new() -> Self {
        let parts = Parts { nodes: Vec::new(), directories: Vec::new() };
        Self { parts: Arc::new(Mutex::new(Some(parts))) }
    }

    /// Makes a directory in `parent` that is removed with all in it.
    pub(super) fn directory(&self, parent: &Path) -> Result<PathBuf, Failure> {
        let mut parts = self.lock();
        let parts = parts.as_mut().ok_or_else(interrupted)?;
        let directory =
            tempfile::Builder::new().prefix("piped-demo-").tempdir_in(parent).map_err(|error| {
                Failure::io(format_args!("cannot make a directory in {}", parent.display()), &error)
            })?;
        let path = directory.path().to_owned();
        parts.directories.push(directory);
        Ok(path)
    }

    /// Starts a daemon; it is ended with the site.
    pub(super) fn start(
        &self,
        start: impl FnOnce() -> Result<Node, Failure>,
    ) -> Result<u32, Failure> {
        // Keep the lock: a node started while the site is cleared would be left behind.
        let mut parts = self.lock();
        let parts = parts.as_mut().ok_or_else(interrupted)?;
        let node = start()?;
        let pid = node.pid();
        parts.nodes.push(node);
        Ok(pid)
    }

    /// Fails with a node's last words if it has ended by itself.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let mut parts = self.lock();
        let parts = parts.as_mut().ok_or_else(interrupted)?;
        parts.nodes.iter_mut().try_for_each(Node::check)
    }

    /// Ends the daemons and removes the directories. A second call does nothing.
    pub(super) fn clear(&self) {
        drop(self.lock().take());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Parts>> {
        // A worker that panicked leaves valid parts behind, and they have to be removed.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a directory on a real disk, or a warning sentence beside it.
pub(super) fn disk(out: Option<&Path>) -> Result<(PathBuf, Option<String>), Failure> {
    if let Some(out) = out {
        let real = fs::canonicalize(out).map_err(|error| {
            Failure::io(format_args!("--out {}: name an existing directory", out.display()), &error)
        })?;
        let note = in_memory(&real).then(|| memory_note(&real));
        return Ok((real, note));
    }
    let temporary = std::env::temp_dir();
    if !in_memory(&temporary) {
        return Ok((temporary, None));
    }
    match std::env::current_dir() {
        Ok(current) if !in_memory(&current) => Ok((current, None)),
        _ => {
            let note = memory_note(&temporary);
            Ok((temporary, Some(note)))
        }
    }
}

fn memory_note(directory: &Path) -> String {
    format!(
        "{} is a file system in memory: the figures below are not those of a disk. Name one with \
         --out DIR.",
        directory.display()
    )
}

fn in_memory(directory: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::statfs(directory).is_ok_and(|system| matches!(system.f_type, TMPFS | RAMFS))
}

/// Refuses a full disk early, not in the middle.
pub(super) fn require_space(directory: &Path, bytes: u64) -> Result<(), Failure> {
    let free = rustix::fs::statvfs(directory)
        .map(|system| system.f_bavail.saturating_mul(system.f_frsize))
        .map_err(|error| Failure::io(directory.display(), &error.into()))?;
    if free >= bytes {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} has {} free, the demo needs {}: choose a smaller --size, or another disk with --out \
         DIR",
        directory.display(),
        units::bytes(free),
        units::bytes(bytes)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_site_leaves_nothing_and_takes_nothing() {
        let parent = tempfile::tempdir().expect("a directory");
        let site = Site::new();
        let made = site.directory(parent.path()).expect("made");
        fs::write(made.join("file"), b"x").expect("write");
        let other = site.clone();
        site.clear();
        assert!(!made.exists());
        assert!(other.directory(parent.path()).is_err(), "closed for the worker too");
        assert_eq!(fs::read_dir(parent.path()).expect("readable").count(), 0);
    }

    #[test]
    fn a_panicking_worker_leaves_nothing() {
        let parent = tempfile::tempdir().expect("a directory");
        let site = Site::new();
        let worker = site.clone();
        let path = parent.path().to_owned();
        let thread = std::thread::spawn(move || {
            let _made = worker.directory(&path).expect("made");
            let _held = worker.lock();
            panic!("expected by this test");
        });
        assert!(thread.join().is_err());
        site.clear();
        assert_eq!(fs::read_dir(parent.path()).expect("readable").count(), 0);
    }

    #[test]
    fn a_directory_without_room_is_refused_with_the_fix() {
        let parent = tempfile::tempdir().expect("a directory");
        assert!(require_space(parent.path(), 1).is_ok());
        let error = require_space(parent.path(), u64::MAX).expect_err("no disk has this");
        assert!(error.to_string().contains("--out"), "{error}");
    }
}
