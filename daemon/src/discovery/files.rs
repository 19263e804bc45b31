//! A directory of files as a source of discovery.

use std::path::{Path, PathBuf};
use std::time::Duration;

use piped_config::FoundNodes;

use super::{Ear, Said};

/// How often a directory is read. It is read, and not watched: a directory on a network, or one
/// whose whole content is exchanged by a link, tells nobody.
const EVERY: Duration = Duration::from_secs(1);

/// Reads the directory again and again.
pub(super) async fn follow(mut ear: Ear, directory: PathBuf) {
    loop {
        let path = directory.clone();
        // A file system that hangs has this thread, and the last addresses stay.
        let said = tokio::task::spawn_blocking(move || read(&path)).await;
        ear.take(said.unwrap_or_else(|error| Said::away(&error.to_string()))).await;
        tokio::time::sleep(EVERY).await;
    }
}

fn read(directory: &Path) -> Said {
    match FoundNodes::read(directory) {
        Ok(FoundNodes { nodes, wrong, revocations }) => {
            Said { nodes: Ok(nodes), wrong, revocations }
        }
        Err(error) => Said::away(&format!("{} cannot be read: {error}", directory.display())),
    }
}
