//! A file for a picture.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::failure::Failure;

/// A file that can be written. It keeps its content until there is something to write; a new one is
/// removed if there is nothing.
#[derive(Debug)]
pub(super) struct Target<'a> {
    path: &'a Path,
    file: File,
    /// Whether this made it, and nothing was written yet.
    is_new: bool,
}

impl<'a> Target<'a> {
    /// Opens the file first, so that a wrong path wastes no work.
    pub(super) fn open(path: &'a Path) -> Result<Self, Failure> {
        let open = |must_be_new| {
            OpenOptions::new()
                .write(true)
                .create(true)
                .create_new(must_be_new)
                .truncate(false)
                .open(path)
        };
        let (opened, is_new) = match open(true) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => (open(false), false),
            opened => (opened, true),
        };
        let file = opened.map_err(|error| cannot(path, &error))?;
        Ok(Self { path, file, is_new })
    }

    pub(super) fn write(mut self, text: &str) -> Result<(), Failure> {
        let is_file = self.file.metadata().is_ok_and(|facts| facts.is_file());
        // A pipe or a terminal has no length.
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        self.is_new = false;
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|error| cannot(self.path, &error))
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        if self.is_new && self.is_still_empty() {
            let _ = fs::remove_file(self.path);
        }
    }
}

impl Target<'_> {
    /// Whether the name leads to the file made here, and nobody else has written to it.
    fn is_still_empty(&self) -> bool {
        let facts = |file: fs::Metadata| (file.dev(), file.ino(), file.len());
        let ours = self.file.metadata().map(facts);
        let there = fs::symlink_metadata(self.path).map(facts);
        matches!((ours, there), (Ok(ours), Ok(there)) if ours == there && ours.2 == 0)
    }
}

/// Failure with the exit code of a failed action: a missing directory is not a missing transfer.
fn cannot(file: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", file.display()))
}
