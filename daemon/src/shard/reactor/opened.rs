//! Opened files and directories as the driver and the engine have them.

use piped_engine::command::{DirectoryTarget, FileTarget};

use crate::io::{UringError, UringIo};
use crate::open::directory::OpenedDirectory;
use crate::open::file::OpenedFile;

/// Gives a file to the driver.
pub(super) fn file(io: &mut UringIo, file: OpenedFile) -> Result<FileTarget, UringError> {
    let OpenedFile { direct, buffered, device, length, access, foreign, .. } = file;
    let mut add = |file| match foreign {
        true => io.add_foreign_file(file),
        false => io.add_file(file),
    };
    let buffered = add(buffered)?;
    // Without room for the second descriptor the file is served through the page cache.
    let direct = direct.and_then(|(fd, alignment)| Some((add(fd).ok()?, alignment)));
    Ok(FileTarget { direct, buffered, device, length, access, foreign, cached: false })
}

/// Gives a directory to the driver.
pub(super) fn directory(
    io: &mut UringIo,
    directory: OpenedDirectory,
) -> Result<DirectoryTarget, UringError> {
    let OpenedDirectory { fd, device, access, foreign } = directory;
    let directory = io.add_directory(fd, foreign)?;
    Ok(DirectoryTarget { directory, device, access, foreign })
}
