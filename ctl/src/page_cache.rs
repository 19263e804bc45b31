//! Files whose disk is measured: what the page cache has would be read from there.

use std::fs::File;

/// Drops a file from the page cache, if the kernel agrees. What is not on the disk yet would stay,
/// so it is written there first.
pub(crate) fn forget(file: &File) {
    let _ = file.sync_data();
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}
